"""Rules that users lay down, taken word for word because a model's summary paraphrases rules or drops them.

A sentence is a rule by its form, in each of the supported languages, not by a single word. 'Always' makes a rule only with
a demand: at the beginning of an imperative, or after 'you' or a duty. In a statement about something else ('her pictures
always give me ideas') it does not. A demand on oneself ('I must go') is not a rule either.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from proxy.core.history.embedded import authored_text
from proxy.core.history.marks import carried_rules, is_summary
from proxy.core.history.sentences import newest_within, sentences
from proxy.core.request import Message, text_of

_S = r"^\W{0,4}"
_ENGLISH = (
    (
        rf"{_S}(?:(?:please|also|and|but|so|then|ok(?:ay)?|remember(?: to)?|from now on|in (?:the )?future|when \w+ing|if [^,]{{1,60}})\W+){{0,3}}"
        r"(?:(?:always|never) (?!(?:been|mind|had|heard|seen|was|were|is|are|knew|thought|got|went|a|an|the|my|this|that|again|ever|in|on|at)\b)\w+(?<!ed)(?<!ing)\b"
        r"|(?:(?:do not|don['’]t)(?! (?:worry|mind|bother|mention it|you|be (?:sorry|shy|silly))\b)|avoid|make sure|ensure|be sure to|stick to|only (?:ever )?(?:use|write|answer|reply|respond|change|edit|touch|give|call)"
        r"|(?:use|write|answer|reply|respond|speak|change|edit|touch|give|call)\b(?! of\b)[^.]{0,40}(?<!\bi )(?<!\bwe )(?<!\bthey )\bonly|no more than|at most|at least|under no circumstances"
        r"|refrain from|instead of \w+ing)\b)"
    ),
    rf"{_S}no [\w-]+(?: [\w-]+)?(?: or [\w-]+)?,? please[.!]?$",
    r"^(?!\W*(?:he|she)\b)[^.!?]{0,120}?\b(?:must|shall)(?:n['’]t)?\b (?!have\b|be (?:kidding|joking|tired|nice|hard|fun|very|so|really|quite|such)\b)",
    r"\b(?:you|it|this|that|everything|nothing|all|each|every|any|the|these|those|no|[a-z]{2,}s)\b(?: [\w'’-]+){0,5}? (?:may not|may only|(?:is|are) (?:not allowed|forbidden|required)(?: to)?|(?:has|have|needs?) to be|you (?:have|need) to|should (?:never|always|not|only))\b",
    r"^(?!\W*(?:i|we|he|she|they|it|you|my|his|her|their|our|the|a|an)\b)[^.!?]{1,120}?(?:\band|\bbut|\bthen|,)\W+(?:please )?(?:(?:do not|don['’]t)(?! (?:know|feel|think|understand|remember|have)\b)|avoid|make sure|ensure|never|always)\b",
    rf"{_S}(?:please )?(?:use|write|keep|limit|give|answer|reply|respond|make|stay)\b[^.!?]{{0,60}}\b(?:at most|no more than|at least|fewer than|less than|under|below|within|without)\b",
    r"\b(?:answers?|repl(?:y|ies)|responses?|functions?|lines?|code|messages?|sentences?)\b[^.]{0,40}\b(?:at most|no more than|at least|without)\b",
    r"\b(?:could|can|would|will) you (?:please )?(?:always|never|only|not|stop)\b",
    r"\b(?:from now on|for the rest of (?:this|our)|in (?:all|every one of|each of) your|(?:each|every) time you|whenever you)\b",
    r"\b(?:you (?:can|do) ?not|you can['’]t|not allowed|is forbidden|off[- ]limits)\b(?=.{3})",
)
_GERMAN_VERBS = (
    r"(?:antworte|schreibe?|verwende|benutze|nutze|nimm|gib|sprich|rede|nenne?|halte?|lass|mache?|achte|stelle?|vermeide|prüfe|teste"
    r"|frage?|erkläre|zeige?|bleibe?|beachte|formuliere|übersetze|ändere|lösche|füge|erstelle|setze|duze|sieze|begründe|fasse)"
)
_GERMAN = (
    (
        rf"{_S}(?:(?:bitte|also|und|aber|ab (?:jetzt|sofort)|von nun an|in zukunft|künftig)\W+){{0,3}}(?:{_GERMAN_VERBS}|[a-zäöüß]+en sie)\b[^.!]{{0,120}}?"
        r"\b(?:immer|nie|niemals|nur|ausschließlich|stets|nicht|keine?[nrms]?|höchstens|maximal|mindestens|ohne|statt|anstatt|grundsätzlich|jedes mal|dass|darauf)\b"
    ),
    rf"{_S}(?:bitte\W+)?(?:immer|nie|niemals|nur|stets|auf keinen fall|keinesfalls|höchstens|maximal|mindestens|kein(?:e|en)?) (?:[\wäöüß-]+ ){{0,6}}?[\wäöüß-]+(?:en|n)\b[.!]?$",
    r"\b(?:du|sie|man|es|das|die|der|alle[sn]?|jede[rs]?)\b[^.!?]{0,40}\b(?:darfst|dürfen|darf|sollst|sollen|soll|musst|müssen|muss)\b(?! (?:ich|wir)\b)",
    r"\b(?:vermeide|vermeiden sie|stelle? sicher|stellen sie sicher|achte darauf|achten sie darauf|auf keinen fall|keinesfalls|verboten|nicht erlaubt)\b",
    r"\b(?:ab jetzt|ab sofort|von nun an|in zukunft|künftig|von jetzt an)\b",
)
_FRENCH = (
    rf"{_S}(?:(?:s['’]il (?:te|vous) pla[iî]t|merci de|et|mais|désormais|dorénavant)\W+){{0,2}}(?:ne |n['’])[^.!?]{{1,80}}?\b(?:pas|jamais|plus|que|aucune?)\b",
    rf"{_S}(?:(?:s['’]il (?:te|vous) pla[iî]t|merci de)\W+)?(?:toujours|jamais|uniquement) \w+(?:er|ir|re)\b",
    rf"{_S}(?:(?:s['’]il (?:te|vous) pla[iî]t|merci de)\W+)?(?:réponds|répondez|utilise[sz]?|écri[st]|écrivez|parle[sz]?|garde[sz]?|donne[sz]?|fai[st]|faites|emploie[sz]?|employez|mets|mettez|limite[sz]?|reste[sz]?|\w+ez)\b[^.!?]{{0,80}}?\b(?:toujours|jamais|uniquement|seulement|exclusivement|au (?:plus|maximum)|sans|systématiquement)\b",
    r"\b(?:tu|vous|il|elle|on|cela|ça|les? \w+)\b (?:ne |n['’])?(?:dois|devez|doit|doivent|faut)\b",
    r"\b(?:évite[sz]?|assure-toi|assurez-vous|veille[sz]? à|il est interdit|interdiction de|à partir de maintenant|désormais|dorénavant|en aucun cas)\b",
    rf"{_S}(?:au (?:plus|maximum)|pas plus de|pas de|aucune?) ",
)
_SPANISH = (
    rf"{_S}(?:(?:por favor|y|pero|además)\W+){{0,2}}(?:no|nunca|jamás) (?:\w+ )?(?:us|utilic|hag|escrib|respond|contest|mencion|incluy|pong|cambi|toqu|borr|olvid|agregu|añad|dig|repit|invent|traduzc|expliqu|modifiqu|elimin|cre|llam|emple|habl|emit|omit|acept|ejecut|d[eé])(?:e|es|en|as|a|an|s)\b",
    rf"{_S}(?:por favor\W+)?siempre (?:usa|utiliza|responde|contesta|escribe|habla|incluye|pon|haz|di|explica|llama|emplea|mantén|cita|\w+[ae]r)\b",
    rf"{_S}(?:por favor\W+)?(?:usa|utiliza|responde|contesta|escribe|habla|incluye|pon|haz|explica|emplea|mantén|use|utilice|responda|escriba|hable)\b[^.!?]{{0,80}}?\b(?:siempre|nunca|solo|sólo|solamente|únicamente|exclusivamente|como máximo|al menos|sin)\b",
    r"\b(?:(?:tú|usted|se|ello|todo|nada|l[oa]s? \w+)\b[^.!?]{0,20} )?(?:no )?(?:debes|debe|deben|tienes que|tiene que|tienen que|puedes solo|hay que|está prohibido)\b",
    r"\b(?:evita|evite|asegúrate|asegúrese|a partir de ahora|de ahora en adelante|en ningún caso|bajo ninguna circunstancia)\b",
    rf"{_S}(?:como máximo|no más de|al menos|nada de) ",
)
_PORTUGUESE = (
    rf"{_S}(?:(?:por favor|e|mas|também)\W+){{0,2}}(?:não|nunca|jamais) (?:\w+ )?(?:us|utiliz|faç|escrev|respond|mencion|inclu|ponh|mud|toqu|apagu|esqueç|adicion|acrescent|dig|repit|invent|traduz|expliqu|modifiqu|elimin|cri|cham|empregu|fal|mex|d[eê]|coloqu|execut)(?:e|es|em|a|as|am|is)?\b",
    rf"{_S}(?:por favor\W+)?sempre (?:use|usa|utilize|responda|responde|escreva|fale|inclua|faça|diga|explique|chame|mantenha|cite|\w+[aei]r)\b",
    rf"{_S}(?:por favor\W+)?(?:use|utilize|responda|escreva|fale|inclua|faça|explique|mantenha|responde|usa|escreve)\b[^.!?]{{0,80}}?\b(?:sempre|nunca|só|somente|apenas|unicamente|exclusivamente|no máximo|pelo menos|sem)\b",
    r"\b(?:você|tu|ele|ela|tudo|nada|[oa]s? \w+)\b (?:não )?(?:deve|deves|devem|tem que|tem de|têm que|precisa|pode apenas|só pode|não pode)\b",
    r"\b(?:evite|evita|certifique-se|assegure-se|a partir de agora|de agora em diante|em hipótese alguma|de jeito nenhum|é proibido)\b",
    rf"{_S}(?:no máximo|não mais de|pelo menos|nada de) ",
)
_ITALIAN = (
    rf"{_S}(?:(?:per favore|e|ma|inoltre)\W+){{0,2}}(?:non|mai) (?:\w+ )?\w+(?:are|ere|ire|arlo|erlo|arla|armi)\b",
    rf"{_S}(?:per favore\W+)?(?:sempre|mai) (?:usa|usare|rispondi|rispondere|scrivi|scrivere|parla|\w+[aei]re)\b",
    rf"{_S}(?:per favore\W+)?(?:rispondi|usa|utilizza|scrivi|parla|includi|metti|fai|spiega|mantieni|tieni|usi|scriva|risponda)\b[^.!?]{{0,80}}?\b(?:sempre|mai|solo|soltanto|solamente|esclusivamente|unicamente|al massimo|almeno|senza)\b",
    r"\b(?:tu|lei|esso|tutto|nulla|si|(?:il|lo|la|le|gli|i) \w+)\b (?:non )?(?:devi|deve|devono|debba)\b|^\W{0,4}(?:non )?devi\b|\bbisogna\b|\bnon puoi\b",
    r"\b(?:evita|eviti|assicurati|si assicuri|d['’]ora in poi|da ora in poi|da adesso in poi|in nessun caso|è vietato)\b",
    rf"{_S}(?:al massimo|non più di|almeno|niente) ",
)
_IMPERATIVE = r"(?!очень|теперь|опять|лишь|здесь|жаль|есть|моги|какой|такой)[а-яё]{2,}(?:йте|йтесь|ите|итесь|ьте|ьтесь|й|йся|и|ись|ь)"
_RUSSIAN = (
    rf"{_S}(?:(?:пожалуйста|и|но|также|впредь|отныне)\W+){{0,3}}(?:всегда|никогда не|не|только|обязательно) {_IMPERATIVE}\b",
    rf"{_S}(?:пожалуйста\W+)?{_IMPERATIVE}\b[^.!?]{{0,80}}?\b(?:всегда|никогда|только|исключительно|не более|не больше|максимум|минимум|без)\b",
    r"\b(?:ты|вы|он[аои]?|это|всё|все|ничего|ответы?|код|текст)\b[^.!?]{0,20}\b(?:долж(?:ен|на|но|ны)|обязан[аы]?)\b|\b(?:нельзя|запрещено|необходимо|следует)\b",
    r"\b(?:избегай(?:те)?|убедись|убедитесь|впредь|отныне|с этого момента|ни в коем случае|ни при каких)\b",
    rf"{_S}(?:не более|не больше|максимум|минимум|не менее|никаких) ",
)
_CHINESE = (
    r"(?<![我他她它们俩家人要])(?:不要(?!紧)|请勿|切勿|绝不(?!会)|不得(?!不|了|已)|禁止|不许|不准|严禁|务必|必须|不可以(?!吗)|只能|只用|只许|一律)",
    r"^\W{0,4}(?:请\W?)?(?:别(?![人的处墅扭名致说])|永远不要|总是用|始终|一定要|每次(?!都?有)|最多|至少|不超过|尽量不)",
    r"(?:请|你)(?:要|得)?(?:始终|总是|一直|永远|每次|只|都|一定)(?:要|用|以(?!来)|使用|回答|写|说)",
    r"(?:从现在开始|从今以后|今后|以后)(?:请|都|要|不|只|你)",
    r"(?:不超过|不多于|最多|至少)\s?[\d一二三四五六七八九十百]+\s?(?:个|字|句|行|词|段|条)",
)
_JAPANESE = (
    r"(?:ないで(?:ください|下さい|くれ|ね)?|ないように(?:して|すること)?|ては(?:いけ|なら|だめ|ダメ)|てはいけません|禁止|厳禁|べからず|しないこと|ないこと)[。！!]?$",
    r"(?:必ず|常に|いつも|毎回|絶対に?|決して|今後は?|これから(?:は|も)?|以後|だけ|のみ|以内|以下|以上|ずに|なしで|代わりに)[^。]{0,60}(?:てください|て下さい|てくれ|てほしい|ましょう|ること|うこと|くこと|すこと|しろ|せよ|ように)[。！!]?$",
    r"(?:こと|必要がある|なければならない|なければなりません|べきです?)[。！!]?$(?<!という事)(?<!ということ)(?<!のこと)(?<!なこと)(?<!たこと)",
)
_KOREAN = (
    r"(?:지\s?(?:마(?:세요|십시오|라|요)?|말(?:아|고|것|도록)|않도록)|(?:면|서는)\s?안\s?(?:되|돼|됩)|금지|금하|쓰지\s?마)",
    r"(?:항상|언제나|반드시|꼭|절대로?|무조건|매번|앞으로(?:는|도)?|이제부터|오직)[^.!?]{0,80}(?:세요|십시오|시오|해라|하라|할\s?것|도록|해야\s?(?:해|한다|합니다|돼|됩니다)|해줘|해\s줘|달라)[.!]?$",
    r"(?:만|이내로?|이하로?|이상|최대|없이|대신)\s[^.!?]{0,40}(?:세요|십시오|시오|해라|하라|할\s?것|해줘|해\s줘)[.!]?$",
    r"(?:너는|당신은|답변은|코드는|모든)[^.!?]{0,60}(?:해야\s?(?:해|한다|합니다|돼|됩니다)|어야\s?(?:해|한다|합니다))[.!]?$",
)
_FIRST_PERSON = re.compile(
    r"^\W{0,4}(?:\w+, )?(?:i|we|ich|wir|je|j['’]|nous|yo|nosotros|eu|nós|io|noi|я|мы)\b(?! (?:want|need|expect|require|ask|insist|would like|will|möchte|will|brauche|veux|voudrais|quiero|necesito|quero|preciso|voglio|vorrei|хочу|прошу))"
    r"|^\W{0,4}(?:我|我们|他|她|私は|僕は|俺は|나는|저는|제가|내가)",
    re.IGNORECASE,
)
"""Beginning of a sentence about the speaker, not of a demand on the model."""
_PLEASE = re.compile(
    r"\b(?:please|bitte|s['’]il (?:te|vous) pla[iî]t|por favor|per favore|пожалуйста)\b|请|請", re.IGNORECASE
)
"""Beginning of a demand later in such a sentence."""
_ANY = re.compile(
    "|".join(
        f"(?:{pattern})" for pattern in (*_ENGLISH, *_GERMAN, *_FRENCH, *_SPANISH, *_PORTUGUESE, *_ITALIAN, *_RUSSIAN)
    ),
    re.IGNORECASE,
)
_UNSPACED = re.compile("|".join(f"(?:{pattern})" for pattern in (*_CHINESE, *_JAPANESE, *_KOREAN)))
_IS_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]")
_QUESTION = re.compile(r"[?？؟]\W*$|吗[。！]?$|[ますでしょう]か[。]?$")
_REQUEST = re.compile(
    r"^\W{0,4}(?:could|can|would|will) you (?:please )?(?:always|never|only|not|stop)\b", re.IGNORECASE
)
_LONGEST_HEADING = 80
_HEADING = re.compile(
    r"^[\W\d]{0,8}(?:[\w'’ -]{0,40}\b)?(?:rules|guidelines|constraints|requirements|conventions|regeln|vorgaben|richtlinien|règles|consignes|contraintes"
    r"|reglas|normas|requisitos|regras|diretrizes|regole|vincoli|requisiti|правила|требования|ограничения)\b[^:\n]{0,40}:?[\W]{0,4}$"
    r"|^\W{0,6}(?:规则|規則|要求|约定|约束|ルール|規約|制約|条件|규칙|요구사항|지침)[^:：\n]{0,10}[:：]?\W{0,4}$",
    re.IGNORECASE,
)
_LONGEST_TEXT = 20_000
"""Characters of one message that are searched: rules are in the text people type, not in the text they paste."""
_LONGEST, _SHORTEST = 300, 4
_PASTED = re.compile(
    r"^[ \t]*(?P<fence>```|~~~).*?(?:^[ \t]*(?P=fence)|\Z)"  # code
    r"|^[ \t]*>.*?$"  # what somebody else wrote
    r"|(?P<line>^[ \t]*)?<(?P<tag>[A-Za-z][\w-]{0,40})(?:\s[^<>]{0,400})?>.*?(?:</(?P=tag)>|(?(line)\Z|(?!)))",  # documents added by a client; an unclosed tag within a line is a placeholder
    re.DOTALL | re.MULTILINE,
)
_DOCUMENT = re.compile(r"<(?!system.reminder)([A-Za-z][\w-]{0,40})(?:\s[^<>]{0,400})?>.*</\1>", re.DOTALL)
"""Document, from its first opening tag to the last closing one: a page may close the element around it and go on."""
_ASIDE = "\ue000"
"""Placeholder for a quotation, which lays down nothing itself but may be part of a rule."""
_QUOTED = re.compile(
    r"\"[^\"\n]{1,400}\"|[“„][^“”\n]{1,400}[“”]|«[^»\n]{1,400}»|「[^」\n]{1,400}」|『[^』\n]{1,400}』|‘[^’\n]{1,400}’|`[^`\n]{1,400}`"
    r"|(?<!\w)'(?:[^'\n]|(?<=\w)'(?=\w)){1,400}'(?!\w)"
)
_PAGE = re.compile(r"(?ims)^[ \t]*<(?:!doctype|html|head|title|meta|body|div|p|h\d|table|ul|span|script|style)\b.*")
_SET_APART = re.compile(
    r" {0,3}(?:[\[\]<>{}|+=/\\$%&~^;,]|--|\"{3}|'{3}|@@|(?:[^\w\s]|_)[\W_]{2,}$|https?://\S*\s*$|#{1,6}\s.*[.!?]\s*$|\d+(?:\s*$|\s*\||:\d\d|/\d+/|(?<=\d{4})-\d\d|,[^\W\d])|\w+\s?=|\([^()]{3,60}\)\s\S)"
    r"|(?: {4}| {0,3}\t)\s*(?![-*•]\s|\d{1,3}[.)]\s)\S|.*(?:</|<!--|/>|<br\b|.\t| \| |(?:  | — ).{0,20}\d:\d\d(?: ?[AP]M)?$)"
    r"|(?:TOOL|OBSERVATION|OUTPUT|RESULT|RESPONSE|CONTEXT|DOCUMENT|BEGIN|START|WEBVTT)[A-Z _-]*$|[A-Z-]{3,}:\S"
)
"""Line that nobody types as prose: code, data, logs, a table or a page."""
_LABEL = re.compile(r"([^:：]{1,80})(?::(?=\s)|：)|(.*)[:：]\W{0,4}$")
_THINGS = r"(?:contexts?|documents?|contents?|passages?|excerpts?|information|sources?|materials?|snippets?|files?|pages?|articles?|texts?|results?|e?mails?|messages?|letters?|posts?|transcripts?|logs?|outputs?|issues?|readme|code|essays?|prompts?|contracts?|drafts?|reviews?|stor(?:y|ies)|poems?|recipes?|kontext\w*|text\w*|dokument\w*|inhalt\w*|contenus?|contextes?|textes?|contenidos?|contextos?|conteúdos?|textos?|contest[oi]|test[oi]|контекст\w*|текст\w*)"
_LAYS_DOWN = re.compile(
    r"\b(?:rules?|notes?|important|remember|reminder|please|prefer\w*|styles?|tone|format|language|things?|points?|wish(?:es)?|i (?:want|need|like)|instructions?|conditions?|for (?:this|the|our) (?:project|chat|conversation|session)|p\.?s|regeln?|hinweis|wichtig|bitte|beachte|merke?|wünsche?|importante?|attention|rappel|nota|recuerda|lembre|ricorda|важно|запомни|правила?|пожалуйста)\b"
    rf"|^(?:my|mein\w*|mon|ma|mi|meu|minha) (?!{_THINGS}\b)\w+$|注意|记住|规则|要求|请记|お願い|ルール|覚え|규칙|주의|기억|부탁",
    re.IGNORECASE,
)
"""Words before a colon that announce a rule; any others announce someone else's text."""
_SPEAKS = re.compile(
    r"\b(?:i|i['’]\w+|my|me|please|thank\w*|hi|hello|ich|mir|mich|mein\w*|je|mon|ma|mes|moi|yo|mis?|eu|meu|minha|io|mi[oa]|я|мне|мо[йяи]|меня)\b|\bj['’]|我|私|僕|俺|나|저|내|제",
    re.IGNORECASE,
)
"""Words that show the user speaking for himself."""
_POINTED = r"(?:following|below|provided|given|attached|retrieved|reference|search (?=results)|here(?:['’]s| is| are)|folgend\w*|suivant\w*|siguientes?|seguintes?|seguent[ei]|следующ\w*)"
_HANDED_OVER = re.compile(
    rf"\b{_POINTED}\b[^:\n]{{0,40}}\b{_THINGS}\b|\b{_THINGS}\b[^:\n]{{0,30}}\b(?:{_POINTED}|follows)\b|\b(?:copied|pasted|forwarded|taken) from\b|(?<!\bi )\b(?:says|said|writes|wrote)\b"
    r"|\b(?:summari[sz]|translat|proofread|paraphras|fass|übersetz|résum|tradu|resum|riassum|переве|переска)\w*\b[^.:\n]{0,40}\b(?:this|these|dies\w*|ce\w{0,3}|est\w{1,2}|quest\w|эт\w{1,2})\b"
    r"|(?:总结|翻译|概括|要約|翻訳|요약|번역)[^。\n]{0,12}(?:以下|下面|这|次の|この|다음)|(?:以下|下面|这[篇段]|次の|この|다음)[^。\n]{0,12}(?:总结|翻译|概括|要約|翻訳|요약|번역|内容|文脈|文章|信息|资料|資料|내용|문서|글)"
    r"|\((?:summary of the earlier|instruction from the system)|as somebody puts them|own words",
    re.IGNORECASE,
)
"""Words saying that the text that follows is not the user's: a program's template, a paste, or a disarmed mark."""
_OF_OTHERS = re.compile(
    r"\b(?:sent|gave|found|got|explain\w*|check|review|are these)\b|^\W*(?:what|which)\b", re.IGNORECASE
)
"""Words in a heading that show it to be about someone else's rules."""
_POINTS = re.compile(
    rf"\b(?:this|these|it|that|here|das|dies\w*|ceci|esto|isto|questo|это|{_THINGS})\b[^.!。]*[.!。]?$", re.IGNORECASE
)
"""End of a line that points at a text pasted below it."""
_LONG, _DENSE = 1_000, 1 / 8
"""Characters above which a message is taken for a paste, unless at least this share of its sentences are rules."""
_MOST_TAGS = 64
"""Opening tags above which tags are not matched: each may cost the length of the text."""
_ITEM = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+(?P<item>\S.*)$")
_VALUE = re.compile(r"\d|^[\"'«“„「]")
_LABELS = frozenset({"must", "shall", "should", "is", "are", "has", "may", "needs"})
"""Words after a number that make it part of the subject ("step 3 must …"), not a value."""
_MARKERS = frozenset(
    re.findall(
        r"\S+",
        """always never only not no don don't do t please now from on in the future instead actually sorry rather again but and
    must should immer nie niemals nur nicht bitte jetzt ab statt doch toujours jamais ne pas plus seulement siempre nunca solo
    sempre não nao só so apenas mai non soltanto всегда никогда не только пожалуйста""",
    )
)


def is_rule(sentence: str) -> bool:
    """Return whether a sentence lays down how things are to be done."""
    if _QUESTION.search(sentence):
        return _REQUEST.match(sentence) is not None
    if _FIRST_PERSON.match(sentence):
        asked = _PLEASE.search(sentence)
        return asked is not None and is_rule(sentence[asked.start() :])
    return bool(_UNSPACED.search(sentence) if _IS_UNSPACED.search(sentence) else _ANY.search(sentence))


def constraints(messages: Sequence[Message], *, limit: int) -> list[str]:
    """Return the users' rules, in order and once each: the newest ones that fit into `limit` characters in total.

    If two differ only in a value, the later one replaces the earlier. Rules carried by an earlier summary of Spillway's
    count; the words of tools, pages and models do not, wherever they are.
    """
    found: dict[str, str] = {}
    is_known_rule = cache(is_rule)  # logs and transcripts say the same sentence thousands of times
    for message in messages:
        if is_summary(message):
            rules: Iterable[str] = carried_rules(message)
        else:
            rules = _stated_rules(message, is_known_rule) if message.get("role") == "user" else ()
        for rule in rules:
            subject = _subject(rule)
            found.pop(subject, None)
            found[subject] = rule
    return newest_within(found.values(), limit=limit)


def typed_text(message: Message) -> str:
    """Return the text that a user typed, without pasted code, quotations and documents."""
    text = authored_text(message)[:_LONGEST_TEXT]
    return _PASTED.sub("\n", text) if text.count("<") <= _MOST_TAGS else text.split("<", 1)[0]


def typed_sentences(message: Message, is_known_rule: Callable[[str], bool]) -> list[tuple[str, bool]]:
    """List the sentences that a person certainly typed, up to the first sign of someone else's words, and whether each is a rule."""
    text = text_of(message)[: 10 * _LONGEST_TEXT]
    text = _DOCUMENT.sub("\n", _PAGE.sub("", text)) if text.count("<") <= _MOST_TAGS else text
    return [*_own_sentences(typed_text({**message, "content": text}), is_known_rule)]


def _stated_rules(message: Message, is_known_rule: Callable[[str], bool]) -> list[str]:
    """Find the rules that a person certainly typed, and not in a paste."""
    told = typed_sentences(message, is_known_rule)
    found = [sentence for sentence, rules in told if rules]
    short = sum(len(sentence) for sentence, _ in told) <= _LONG
    return found if short or len(found) >= len(told) * _DENSE else []


def _own_sentences(text: str, is_known_rule: Callable[[str], bool]) -> Iterator[tuple[str, bool]]:
    """Yield the sentences before any text announced or set apart as someone else's, and whether each is a rule."""
    lines = text.split("\n")
    in_list = opens = elsewhere = False
    for line, following in zip(lines, (*lines[1:], "-"), strict=True):
        heading = len(line) <= _LONGEST_HEADING and _HEADING.match(line) is not None
        if _SET_APART.match(line) or (heading and (_HANDED_OVER.search(line) or _OF_OTHERS.search(line))):
            return
        item, said, rules = _ITEM.match(line), "", False
        if in_list and item is not None:
            yield item["item"].strip()[:_LONGEST], not elsewhere
            continue
        in_list = heading or (in_list and not line.strip())
        quotations = _QUOTED.findall(line)
        for sentence in sentences(_QUOTED.sub(_ASIDE, line), longest=_LONGEST):
            said = sentence if item is None else sentence.lstrip("-*• \t")
            label = _LABEL.match(said)
            before = "" if label is None or heading else label[1] or label[2]
            if _HANDED_OVER.search(said) or (before and not (_LAYS_DOWN.search(before) or is_known_rule(before))):
                return
            rules = len(said) >= _SHORTEST and not line.startswith("#") and is_known_rule(said)
            # A new paragraph that neither states a rule nor speaks for the user may begin a pasted page: nothing after it counts.
            elsewhere |= opens and not (rules or heading or before or line.startswith("#") or _SPEAKS.search(said))
            opens = False
            while _ASIDE in said and quotations:
                said = said.replace(_ASIDE, quotations.pop(0), 1)
            yield said, rules and not elsewhere
        opens = opens or not line.strip() or line.startswith("#")
        if not (rules or following.strip()) and _POINTS.search(said):
            return


def _subject(rule: str) -> str:
    """Return the subject of a rule: its words without values, and without the words that only make it a rule."""
    words = rule.split()
    if len(words) == 1:
        return re.sub(r"\d+", "#", rule)
    subject: list[str] = []
    for at, word in enumerate(words):
        bare = word.strip(".,;:!?()").lower()
        label = at + 1 < len(words) and words[at + 1].lower() in _LABELS
        value = _VALUE.search(word) is not None or (at > 0 and word[:1].isupper())
        if value and not label:
            subject.append("#")
        elif bare not in _MARKERS or label:
            subject.append(bare)
    return " ".join(subject) if len(subject) > 1 and any(word != "#" for word in subject) else rule

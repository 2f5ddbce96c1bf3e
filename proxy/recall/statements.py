# ruff: noqa: RUF001 - words in Cyrillic
"""Statements that users make about themselves or their work: a closed set of forms, the first person and a present fact.

A sentence is taken only where a person surely typed it, and not if it asks, wishes, supposes, quotes, points at something in its own
conversation, lays down a rule, or holds what may be a secret. Better none than a wrong one: it will be brought into other
conversations, where nobody sees where it came from.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from proxy.core.history.embedded import authored_text
from proxy.core.history.rules import is_rule, typed_sentences
from proxy.core.request import Message, text_of
from proxy.recall.passages import asked, passages_of
from proxy.recall.ranking import Passage, Query, choose, rank
from proxy.recall.words import folded, terms, terms_of_folded

LONGEST: Final = 240
"""Most characters of a statement."""
_TYPED: Final = 1_000
"""Most characters of a message that may hold one: longer ones may be pasted, as far as anybody can tell."""

_OPENING: Final = 4_000
"""Characters at the start of a system message in which a role may be given."""

_KIN: Final = r"(?:wife|husband|partner|spouse|girlfriend|boyfriend|fianc\S{1,2}|sons?|daughters?|child(?:ren)?|kids?|baby|twins|mother|father|mom|mum|dad|parents|brothers?|sisters?|grand(?:mother|father|ma|pa|son|daughter)s?|niece|nephew|cousin|dogs?|cats?|pets?|horses?|hamsters?|rabbits?)"
_WORK: Final = r"(?:job|profession|employer|company|team|boss|manager|school|university|startup|business|(?:tech )?stack|database|back-?end|front-?end|infrastructure|servers?|cluster|codebase|office|product|site)"
_ILL: Final = r"(?:\w+ )?(?:diabetes|asthma|adhd|autism|epilepsy|migraines?|arthritis|hypertension|h\w+ blood pressure|dementia|dyslexia|c\w{0,2}eliac\w*|\w*intoleran\w+|allerg\w+)"
_NOT: Final = r"(?! (?:the|it|this|that|these|those|to|you|your|yours|how|where|what|when|my|a lot|with|answers?|responses?|repl\w+)\b)"
_SINGLE: Final = {
    "name": r"""my\sname(?:'s|\sis)\s(?!not) i(?:'m|\sam)\scalled\s ich\shei(?:ss|ß)e\s mein\sname\sist\s je\sm'appelle\s mon\snom\sest\s (?:yo\s)?me\sllamo\s mi\snombre\ses\s (?:eu\s)?me\schamo\s chamo-me\s (?:o\s)?meu\snome\s(?:e|é)\s mi\schiamo\s (?:il\s)?mio\snome\s(?:e|è)\s меня\sзовут\s мое\sимя\s 我(?:的名字)?(?:叫|是叫) 我的名字是 (?:私|僕|俺)の名前は 제\s?이름은 저는\s\S+(?:라고\s?(?:합|해))""",
    "home": r"""i\s(?:now\s|currently\s)?live\s(?:in|near|on|at|with)\b we\slive\s(?:in|near|on)\b i(?:'m|\sam)\s(?:now\s)?(?:based|living|located)\sin\b i(?:'ve|\shave)?\s(?:just\s|recently\s)?(?:moved|relocated)\sto\b(?!\s(?:the|a)\b) ich\s(?:wohne|lebe)\s(?:jetzt\s|in\b|bei\b|auf\b) ich\sbin\s(?:\w+\s){0,2}nach\s\w+\s(?:um)?gezogen j'habite\s je\svis\s(?:a|à|en|au|dans)\s (?:yo\s)?vivo\s(?:en|a|in|con)\s (?:eu\s)?(?:moro|vivo)\s(?:em|no|na)\s abito\s(?:a|in)\s (?:я\s)?живу\s(?:в|во|на)\s 我(?:现在)?住在 我家在 (?:私|僕|俺)は\S{1,20}に住んで 저는\s\S+에\s?(?:살아|삽니다|살고\s있)""",
    "age": r"""i(?:'m|\sam)\s\d{1,3}(?:\syears?\sold\b|\W*$) ich\sbin\s\d{1,3}(?:\sjahre\b|\W*$) j'ai\s\d{1,3}\sans\b (?:yo\s)?tengo\s\d{1,3}\sa(?:n|ñ)os\b (?:eu\s)?tenho\s\d{1,3}\sanos\b ho\s\d{1,3}\sanni\b мне\s\d{1,3}\s(?:лет|год) 我(?:今年)?[\d一二三四五六七八九十]{1,4}岁 (?:私|僕)は\d{1,3}歳 저는\s\d{1,3}\s?살""",
}
"""Forms of which only the latest statement holds, by what they tell."""
_OTHERS: Final = (
    rf"i(?:'m| am) (?:also |now |originally )?(?:an? (?!bit\b|little\b|lot\b|few\b|huge|big|mess|idiot)\w|the (?!one|same|only|first|last)\w+ (?:of|at)\b|on (?:an? )?[\w -]+\bdiet\b|(?:not )?allergic|vegan|vegetarian|diabetic|married|divorced|single|retired|pregnant|left-handed|colou?r-?blind|deaf|dyslexic|autistic|from (?!now|here|then)|learning\b|studying\b|\w+[ -]intolerant)|i (?:was born|grew up)\b|my birthday is|(?:i|we)(?:'ve| have) (?:got )?(?:\w+ ){{0,3}}?(?:{_KIN}|{_ILL})\b|i(?:'ve| have) (?:been (?:an? |working (?:as|at|for|in)\b|living in\b|vegan|vegetarian|married)|worked (?:as|at|for)\b|lived in\b)|i (?:also |now |mostly |usually |mainly )?(?:work (?:as|at|in|for|from|with|nights|part-time)|study|teach|speak|own|drive|play|prefer|like|love|hate|dislike|enjoy|collect|commute|smoke|eat|drink)\b{_NOT}|i take [^.]{{1,40}}\b(?:daily|once|twice|every|a day)\b|i (?:don'?t|do not|can'?t|can ?not|never) (?:eat|drink|like|smoke|drive|speak|own|tolerate|have (?:gluten|dairy|lactose|sugar|nuts|alcohol))\b{_NOT}|i graduated\b|i run (?:marathons|an? )|(?:i|we)(?:'ve| have)? (?:just |recently |now )?(?:moved(?! on\b)|switched|migrated|upgraded|changed|converted)\b(?: \S+){{0,3}}? to\b(?! (?:the|a|your?)\b)|(?:i|we) (?:no longer|stopped|quit)\b{_NOT}|(?:my|our) (?:(?:favou?rite|native|first|mother) \w+|{_KIN}|{_WORK}|hometown|blood type|diet|car|phone|laptop|bike|{_KIN}'s (?:name|birthday)|hobb(?:y|ies)|{_KIN} \w+|\w+ {_KIN})(?:,? [A-Z]\w+,?)? (?:is|are|has|have|lives?|works?|runs?|uses?|speaks?|studies|goes|was born|loves?|likes?|hates?)\b(?! (?:not working|wrong|broken|here|it)\b)|we (?:also |now |mostly |currently |mainly )?(?:use|run|host|deploy|rely on|sell|write|work with|are (?:an? (?!bit|little|lot)|based in|\w+ people)|have (?:\d+|\w+) (?:employees|developers|engineers|customers))\b{_NOT}|i use\b(?! (?:a|an)\b){_NOT}"
    r"|ich bin (?:seit \w+ )?(?:allergisch|vegan\w*|vegetarier\w*|veganer\w*|diabetiker\w*|verheiratet|geschieden|ledig|rentner\w*|schwanger|von beruf|(?-i:[A-ZÄÖÜ]\w{3,})|\w+(?:intolerant|lehrerin|lehrer|arzt|ärztin|in rente))|ich (?:habe|hab) (?:\w+ ){0,3}?(?:kind(?:er)?|s[oö]hne?|t[oö]chter|sohn|br[uü]der|schwestern?|hunde?|katzen?|diabetes|asthma|eine \w*allergie|\w+allergie)\b(?!.*\bge\w+(?:t|en)\W*$)|ich vertrage kein\w*|ich (?:arbeite (?:als|bei|in|im|für|seit)|komme aus|spreche|studiere|unterrichte|fahre ein\w*|spiele|mag|liebe|hasse|trinke|esse|lerne|bevorzuge)\b(?! (?:das|es|dies\w*|den|die|dich|dein\w*|nicht so)\b)|mein geburtstag ist|ich bin (?:in \w+ )?(?:geboren|aufgewachsen)|ich wurde \S+ .{0,30}geboren|(?:mein|meine|unser|unsere) (?:frau|mann|sohn|tochter|kind(?:er)?|mutter|vater|eltern|bruder|schwester|oma|opa|hund|katze|freundin|partner\w*|firma|team|chef\w*|server|datenbank|backend|frontend|arbeitgeber|beruf|hobbys?|lieblings\w+|muttersprache|auto|blutgruppe)(?: [A-ZÄÖÜ]\w+)? (?:hei(?:ss|ß)t|ist|sind|hat|haben|arbeite[tn]|wohn(?:t|en)|leb(?:t|en)|l[aä]uft|nutzt|verwendet|spricht)\b|wir (?:verwenden|benutzen|nutzen|arbeiten mit|setzen auf|hosten|sind (?:\w+ )?(?:ein|eine|auf [^.]+ (?:umgestiegen|gewechselt|umgezogen)|von [^.]+ (?:umgestiegen|gewechselt)))\b(?! (?:das|es|dies\w*|den|die)\b)"
    r"|je suis (?:allergique|vég[ée]tari\w+|végane?|diabétique|marié\w*|divorcé\w*|célibataire|retraité\w*|originaire|né\w* |infirmi\w+|professeur\w*|médecin|étudiant\w*|développeu\w+|intolérant\w*|d'origine)|j'ai (?:\S+ ){1,3}?(?:enfants?|fils|filles?|frères?|s(?:œ|oe)urs?|chiens?|chats?|diabète|asthme)\b|j'ai (?:du diabète|de l'asthme)|je (?:travaille (?:comme|chez|à|dans|pour)|parle|étudie|joue d\w|viens de|préfère|déteste|bois|mange|conduis une?|apprends)\b(?! (?:le|la|ça|cela|que|te|de rien)\b)|je (?:ne (?:mange|bois|fume|conduis|parle|supporte)|n'aime) (?:pas|plus|jamais)\b|j'(?:adore|aime)\b(?! (?:ça|cela|bien ta|ton|ta|votre|que)\b)|(?:mon|ma|mes|notre|nos) (?:femme|mari|fils|fille|enfants?|mère|père|parents|frère|s(?:œ|oe)ur|chien|chat|équipe|entreprise|société|serveur|base de données|métier|langue maternelle|\w+ préférée?)(?: [A-ZÉ]\w+)? (?:s'appelle\w*|est|sont|ont|a|utilise|travaille|habite|tourne)\b|nous (?:utilisons|travaillons avec|hébergeons|sommes (?:une?|pass[ée]s))\b|je suis passée? à\b"
    r"|(?:yo )?soy (?:alérgic[oa]|vegetarian[oa]|vegan[oa]|diabétic[oa]|de [A-Z]\w+|profesora?\b|enfermer[oa]|médic[oa]|ingenier[oa]|estudiante|programadora?|abogad[oa]|celíac[oa]|intolerante|madre|padre)|(?:yo )?tengo (?:\w+ ){0,2}?(?:hij[oa]s?|hermanos?|hermanas?|perr[oa]s?|gat[oa]s?|diabetes|asma|alergia)\b|(?:yo )?(?:trabajo (?:como|en|de|para)|hablo|estudio|prefiero|odio|nací en|toco el)\b(?! (?:el|la|esto|eso|que)\b)|(?:yo )?no (?:como|bebo|fumo|conduzco)\b|(?:a mí )?(?:no )?me gustan? (?!(?:eso|esto|tu|la idea)\b)|(?:mi|mis|nuestr[oa]) (?:mujer|esposa|marido|esposo|hij[oa]s?|madre|padre|hermanos?|hermana|perr[oa]|gat[oa]|equipo|empresa|servidor|base de datos|profesión|\w+ favorit[oa])(?: [A-Z]\w+)? (?:se llama\w*|es|son|tienen?|usa|trabaja|vive|corre)\b|(?:nosotros )?(?:usamos|utilizamos|migramos a|nos mudamos a)\b(?! (?:esto|eso|el|la)\b)"
    r"|(?:eu )?sou (?:alérgic[oa]|vegetarian[oa]|vegan[oa]|diabétic[oa]|professora?\b|enfermeir[oa]|médic[oa]|engenheir[oa]|estudante|programadora?|d[eoa] [A-Z]\w+|casad[oa]|intolerante)|(?:eu )?tenho (?:\w+ ){0,2}?(?:filh[oa]s?|irmãos?|irmãs?|cachorros?|gat[oa]s?|diabetes|asma|alergia)\b|(?:eu )?(?:trabalho (?:como|em|no|na|para)|falo|estudo|prefiro|odeio|nasci em)\b(?! (?:o|a|isso|isto|que)\b)|(?:eu )?não (?:como|bebo|fumo)\b|(?:(?:o|a) )?(?:meu|minha|nosso|nossa) (?:mulher|esposa|marido|filh[oa]|mãe|pai|irmã|irmão|cachorro|gat[oa]|equipe|empresa|servidor|banco de dados)(?: [A-Z]\w+)? (?:se chama|é|tem|usa|trabalha|mora|roda)\b|(?:nós )?(?:usamos|utilizamos|migramos para)\b(?! (?:isso|o|a)\b)"
    r"|(?:io )?sono (?:allergic[oa]|vegetarian[oa]|vegan[oa]|diabetic[oa]|di [A-Z]\w+|un[oa']? ?(?:infermier[ea]|insegnante|medico|avvocat[oa]|student\w+|programmat\w+)|sposat[oa]|celiac[oa]|nat[oa] )|(?:io )?ho (?:\w+ ){1,2}?(?:figli[oae]?|fratell[oi]|sorell[ae]|can[ei]|gatt[oi])\b|(?:io )?(?:lavoro (?:come|in|a|per|da)|parlo|studio|preferisco|odio|vivo (?:a|in|con))\b(?! (?:il|la|questo|che)\b)|(?:io )?non (?:mangio|bevo|fumo)\b|(?:(?:il|la) )?(?:mi[oa]|nostr[oa]) (?:moglie|marito|figli[oa]|madre|padre|fratello|sorella|cane|gatto|team|azienda|server|database)(?: [A-Z]\w+)? (?:si chiama|è|ha|usa|lavora|vive|gira)\b|(?:noi )?(?:usiamo|utilizziamo|siamo passati a)\b(?! (?:questo|il|la)\b)"
    r"|у меня (?:есть )?(?:\w+ ){0,2}?(?:аллергия|диабет|астма|непереносимость|сын|дочь|дети|детей|ребенок|ребёнка|брат|сестра|собака|кошка|кот|муж|жена)\b|я (?:работаю|родил(?:ся|ась)|из [А-Я]|говорю на|изучаю|учусь (?:в|на)|люблю|ненавижу|предпочитаю|не ем|не пью|не курю|вегетариан\w+|веган\w*|врач|учитель\w*|программист\w*|медсестра|инженер|студент\w*|женат|замужем|переехала?)\b(?! (?:это|над|тебя|то)\b)|(?:мой|моя|мои|моего|мою|наш|наша) (?:муж|жену?|жена|сын[а]?|дочь|дети|мать|мама|отец|папа|брат[а]?|сестр[уа]|собак[уа]|кошк[уа]|кота?|команда|компания|сервер|любим\w+ \w+)(?: [А-Я]\w+)? (?:зовут|работает|живет|живёт|любит|использует|учится|—|-)|мы (?:используем|работаем (?:на|с)|перешли на|переехали (?:на|в))\b(?! (?:это|эт\w+)\b)"
    r"|我(?:是(?:一[名个位])?(?:[^的不否在想说问，。]{0,8})(?:师|生|士|员|人|者|家|素食主义者)[。！]?$|对[^，。]{1,10}过敏|不吃|不喝(?!了)|(?:最)?喜欢(?!你|这|那)|讨厌|更喜欢|会说|在[^，。]{1,20}(?:工作|上班|上学|读书)|从事|有[^，。]{0,4}(?:孩子|女儿|儿子|哥哥|弟弟|姐姐|妹妹|糖尿病|哮喘|过敏|狗|猫)|来自|出生(?:在|于)|养了|的(?:生日|职业|工作|爱好|母语|专业|家乡|血型)是)|我(?:的)?(?:们)?(?:的)?(?:女儿|儿子|孩子|妻子|老婆|丈夫|老公|妈妈|爸爸|母亲|父亲|哥哥|弟弟|姐姐|妹妹|狗|猫)(?:叫|是|今年|在|有|喜欢|对)|(?:我们|我们公司|我们团队|公司|我)(?:现在)?(?:都)?(?:使用|用的是|改用|迁移到|换成了)(?!这|那|它)"
    r"|(?:私|僕|俺|わたし)は(?!.*(?:たい|思|欲し|ほしい|かも|困|分か|わか|知)).{1,40}?(?:アレルギー(?:です|があります|だ)|師です|員です|生です|者です|家です|医です|人です|が(?:大)?(?:好き|嫌い)です|を食べません|を飲みません|で働いています|に勤めています|を勉強しています|を話します|出身です)|(?:私|僕|うち)の(?:妻|夫|娘|息子|母|父|兄|弟|姉|妹|犬|猫|趣味|仕事|誕生日|母語)(?:の名前)?は|(?:私たち|うち|弊社)(?:は|では).{1,30}を使って(?:います|いる)"
    r"|(?:저는|나는|제가|내가) (?!.*(?:싶|같|면|생각|모르)).{1,40}?(?:알레르기가 있|못 먹|안 먹|먹지 않|마시지 않|을 좋아|를 좋아|을 싫어|를 싫어|에서 일하|에 다니|에서 왔|출신|사람이에요|사람입니다|간호사|교사|선생님이|의사입|의사예|개발자|학생이)|(?:제|내|우리) (?:아내|남편|딸|아들|어머니|아버지|엄마|아빠|형|누나|언니|오빠|동생|강아지|고양이|취미|직업|생일|회사|팀)(?:는|은|이|가) |(?:우리|저희)는 .{1,30}(?:을|를) (?:사용|써|씁)"
)
_LEAD: Final = r"^\W{0,4}(?:(?:by the way|btw|fyi|also|and|but|so|well|hi|hello|hey(?: there)?|ok(?:ay)?|yes|no|nope|yeah|actually|as you know|just so you know|for context|for reference|note that|remember(?: that)?|keep in mind(?: that)?|übrigens|also|hallo|hi|und|aber|ja|nein|zur info|au fait|bonjour|salut|et|oui|non|por cierto|hola|y|sí|oi|olá|e|aliás|ciao|comunque|кстати|привет|и|да|нет|顺便说一下|对了|你好|另外|ちなみに|こんにちは|참고로|안녕하세요)[,，、。:!！ ]{1,3}){0,3}"
_UNSURE: Final = re.compile(
    r"(?i)\b(?:if|unless|says?|said|told|would|could|should|might|may|maybe|perhaps|probably|possibly|supposedly|wish|hope|imagine|pretend|suppose|assum\w+|hypothetical\w*|let'?s say|for example|e\.g|want(?:s|ed)?|used to|induction|need|trying|tried|wonder|guess|help me|this|these|those|here|it|above|below|following|today|tonight|tomorrow|right now|at the moment|error\w*|fails?|bug|wenn|falls|würde|wäre|hätte|könnte|sollte|möchte|vielleicht|wahrscheinlich|angenommen|heute|morgen|gerade|diese[rsnm]?|hier|si|peut-être|voudrais|aimerais|imagine|ceci|ici|aujourd'hui|demain|quisiera|gustaría|quizás?|tal vez|ojalá|esto|aquí|hoy|mañana|talvez|gostaria|queria|isso|aqui|hoje|amanhã|vorrei|forse|magari|questo|qui|oggi|domani|если|бы|может|наверное|хочу|хотел\w*|это\w*|здесь|сегодня|завтра)\b|如果|假如|假设|要是|可能|也许|大概|想要?|希望|打算|今天|明天|这[个里段些]|もし|たら|かも|だろう|今日|明日|これ|만약|아마|오늘|내일|이것"
)
"""Words of wishes, conditions, guesses and passing states, and words that point into the conversation they were said in."""
_ROLE_PLAY: Final = re.compile(
    r"(?i)role-?\s?play|in character|pretend|imagine|act as|you(?:'re| are) (?:now )?(?:an? |the )?(?:pirate|dungeon|game ?master|character|doctor|patient|villain|king|queen|knight|detective|girlfriend|boyfriend|interviewer|customer|narrator)|let'?s (?:say|play|pretend)|\{\{(?:char|user)\}\}|\bnpc\b|dungeon|interactive fiction|\*[^*\n]{3,}\*|rollenspiel|stell dir vor|spiel(?:e)? (?:die|eine?n?) |jeu de rôle|imagine que|juego de rol|imagina|immagina|ролев|представь|角色扮演|扮演|假装|想象|ロールプレイ|演じ|역할극"
)
_FOR_OTHERS: Final = re.compile(
    r"(?i)\b(?:re)?write (?:me )?(?:an? |the |my |this\b)|draft (?:an? |the |my )|translat|proofread|rephrase|correct (?:my|the|this)|rewrite|as a joke|how many\b|\A\W*dear\b|(?:best|kind) regards|sincerely|schreib|übersetz|wie viele|freundlichen grüßen|écris|tradui|combien de|cordialement|escrib|traduc|cuánt[oa]s|escrev|traduz|quant[oai]s|scriv|traduci|напиши|переведи|сколько|写一|翻译|多少|翻訳|書いて|번역|써\s?줘"
)
"""Words by which a message holds a text for somebody else, or a riddle."""
_SECRET: Final = re.compile(
    r"(?i)\b(?:pass(?:word|wd|phrase|code)s?|pwd|pin(?:[- ]?code)?|secrets?|tokens?|(?:api|access|private|secret|ssh)[ _-]?keys?|credentials?|ssn|social security|iban|cvv|credit card|kreditkarte|passwort|kennwort|mot de passe|contraseña|senha|parola|пароль)\b|密码|密碼|口令|密钥|暗証|パスワード|비밀번호|(?:\d[ .-]?){8,}|\b(?:sk|pk|ghp|gho|xox[abp]|AKIA|eyJ)[\w-]{6,}|[^\s@]{1,64}@[\w.-]{1,80}\.\w|://[^\s:@/]{1,64}:[^\s@]{1,64}@|(?<!\S)(?=\S*\d)(?=\S*[A-Za-z])(?!\S*[/.]\w+$)\S{13,}"
)
"""What may be a secret, or the number of a card, an account or a telephone."""


_FORMS: Final = tuple(
    (kind, re.compile(f"{_LEAD}(?:{forms})", re.IGNORECASE))
    for kind, forms in (*((kind, "|".join(forms.split())) for kind, forms in _SINGLE.items()), ("", _OTHERS))
)
_VAGUE: Final = re.compile(
    r"\b(?:use[sd]?|using|like[sd]?|love[sd]?|hate[sd]?|prefer(?:red)?|enjoy|want|have|has|got|work(?:s|ing)?|run(?:s|ning)?|learning|now|name|called|nutzen?|benutzen|verwenden|arbeite[tn]?|mag|liebe|heisse|heisst|m'appelle|s'appelle|utilis\w+|aime|llamo|usamos|trabajo|chamo|trabalho|chiamo|usiamo|lavoro|зовут|работа\w+|использу\w+|люблю|\w{1,4}'(?:m|ve|re|ll|d|s))\b|我们?(?:公司)?(?:是|在学|在|有|叫)?|喜欢|使用|工作"
)
"""Words of the forms, folded, that many messages have and that do not show what one is about."""
_CLOSE, _CLOSE_PAIRS = 0.06, 0.02
"""Least product of two shares for a statement to be brought: of its own terms, those in the message, and of the message's, those in it.

Scripts without spaces have twice the terms, pairs of characters, for the same words.
"""
_FIRST_WIDE: Final = "\u2e80"


def told_by(sentence: str) -> str | None:
    """Return what a sentence tells of which only the latest holds (`name`, `home` …), empty for another statement, None for none."""
    plain = sentence.replace("’", "'")
    if not 4 <= len(plain) <= LONGEST or _UNSURE.search(plain) or _SECRET.search(plain) or asked(plain):
        return None
    return next((kind for kind, form in _FORMS if form.search(plain)), None)


def unfit(text: str) -> bool:
    """Return whether a text that a user wants remembered is too long, may hold a secret, or is a rule."""
    return len(text) > LONGEST or _SECRET.search(text) is not None or is_rule(text)


def statements_in(system: Sequence[Message], message: Message) -> Iterator[tuple[str, str]]:
    """Yield the statements in a user's message, each after what it tells (see `told_by`); none in one that plays a role.

    A message with the name of its speaker may be another person's.
    """
    text = authored_text(message)
    plays = any(map(_ROLE_PLAY.search, (text, *(text_of(each)[:_OPENING] for each in system))))
    if len(text) > _TYPED or plays or _FOR_OTHERS.search(text) or message.get("name"):
        return
    for sentence, rules in typed_sentences(message, is_rule):
        if not rules and (kind := told_by(sentence)) is not None and terms(sentence):
            yield kind, sentence


def needed(
    statements: Sequence[Message],
    query: Query,
    *,
    room: float,
    cost: Callable[[str], float],
    here: Callable[[str], bool],
) -> list[Passage]:
    """Choose the statements that a message needs, best first, each followed by later ones on the same subject; mostly none.

    They and the message must have much in common, since nothing else shows that they belong together. `here`: whether a text is in the
    message's own conversation, to which it is not brought.
    """
    texts = [folded(text_of(each)) for each in statements]
    places = [dict.fromkeys(terms_of_folded(_VAGUE.sub(" ", text)), ((0, 1),)) for text in texts]
    passages = [replace(passages_of(each), places=own) for each, own in zip(statements, places, strict=True)]
    ranking = rank(passages, Query(query.terms, bar=-inf))
    asked_for = sum(weight >= 1 for weight in query.terms.values())
    least = [asked_for * (_CLOSE_PAIRS if max(text, default="") >= _FIRST_WIDE else _CLOSE) for text in texts]
    close = [has.bit_count() ** 2 > len(own) * low for has, own, low in zip(ranking.said, places, least, strict=True)]
    chosen = choose(statements, passages, ranking, lost=close.__getitem__, room=room, cost=cost, in_prompt=here)
    return [each for each in chosen if not here(each.text)]

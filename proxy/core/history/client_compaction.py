"""Compactions that clients make themselves: the request for a summary, and the summary when it is sent back.

No client marks such a request, so it is recognised by its content: a long history, or a transcript in one message, and
a word for a summary. With a transcript, that word is enough. With messages, it has to be near a word for a
conversation, in the newest message or at the beginning of the system prompt, since a user may want a summary of
anything else. If another request is mistaken for one, it is answered from everything that was sent, only later; if one
is missed, facts are lost for good.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from proxy.core.request import SYSTEM_ROLES, Message, leading_system, text_of

_BEGINNINGS = (
    "summar|tl;dr|sum up|sum this|synops|précis|gist|recap|abridg|condens|compact|compress|consolidat|distil|digest|shorten|the minutes|wrap up|outline|overview|abstract|briefing|hand-o|handof|handov|takeaway"
    "|boil|state_snapshot|continuing|continuation|zusammen|übergabe|verdicht|kompakt|kompri|kondens|stichp|kurzprot|résum|compte rendu|resum|rezum|resúm|récap|synthès"
    "|synthét|síntes|sintes|sintet|compendi|comprim|riassu|riepilog|samenvat|vat |sammanf|sammenf|sammendr|opsummer|oppsummer|tiivist|yhteenve|podsum|streść"
    "|streszcz|shrn|shrň|zhrn|zhrň|souhrn|súhrn|sažet|sažm|сажет|сажм|povz|össze|özet|rangkum|ringkas|tóm|σύνοψ|συνόψ|περίληψ|περιλήψ|резюм|кратк|сжим|сожм|сжат|выжимк"
    "|конспект|обобщ|итог|подытож|суммар|суммир|підсум|стисл|узагальн"
)
# Of requests written afterwards, in about 30 languages, 75 to 80 % are recognised. Tamil, Swahili, Latvian and Estonian
# are missing.
_ANYWHERE = "总结|總結|摘要|概括|概述|概要|压缩|壓縮|归纳|歸納|浓缩|濃縮|要点|要點|要約|まとめ|圧縮|요약|압축|정리|لخ|خلاص|סכם|סיכו|תמצ|תקציר|सारांश|संक्षेप|সারাংশ|สรุป"
"""Stems of words for a summary, one of which is in every such request: at the beginning of a word, and anywhere."""
_STEMS = [*_BEGINNINGS.split("|"), *_ANYWHERE.split("|")]
_SUMMARY = re.compile(rf"(?:\b|_)(?:(?P<done>summari[sz]ed)|{_BEGINNINGS})|{_ANYWHERE}", re.IGNORECASE)
_CONVERSATION = re.compile(
    r"\b(?:the|this|that|these|those|our|your|an?|all|internal|partial|lines? of|earlier|older|previous|prior)\s(?:\w{1,30}\s){0,3}"
    r"(?:conversation|chat|dialog(?:ue)?|transcript|discussion|exchange|session|history|messages|turns|thread|trajectory|role-?play|scene|context)s?\b"
    r"(?!\s(?:history|module|component|page|files?|class|function|feature|table|app|ui|api|endpoint|store|logic|handler|service|view|panel|screen"
    r"|widget|bot|model|code|tests?|logs?|window)\b)|\b(?:of|from|between|conversation|chat|session)\s(?:\w{1,30}\s){0,2}(?:conversation|chat|summari[sz]er)s?\b"
    r"|\bthe above\b|\b(?:story|everything|all|events|work|things|up)\b[^.]{0,30}?\b(?:so far|to (?:here|this point|now))|interactive (?:\w{1,30} )?agent"
    r"|\b(?:for|so)(?: that)? (?:an?|the|another) (?:\w{1,20} ){0,2}(?:llm|model|agent|assistant|session)\b|another instance|scratchpad"
    r"|\b(?:diese|unser|cette|notre|est[ea]|nuestr|essa|noss|quest|nostr|deze|onze?|vår|vores|nasz|naš|наш|эт)\w{0,3} (?:chat|session|discus|чат)"
    r"|sitzung|sesi[oó]n|gespräch|unterhaltung|verlauf|échange|[ck]onver[sz]|hist[oó]ri|charla|cronologia|di[aá]log|gesprek|samtal|keskustelu|r[ao]zmow"
    r"|razgovor|rozhovor|beszélget|konuşma|görüşme|sohbet|συνομιλ|συζ[ηή]τ|διάλογ|разговор|диалог|бесед|переписк|истори[июя]|розмов|бесід|pogovor|discuți|কথোপকথন|对话|對話|会[话話]|會話|聊天"
    r"|历史|歷史|対話|履歴|チャット|やり取り|대화|채팅|محادث|حوار|گفتگو|שיחה|बातचीत|สนทนา|hội thoại|trò chuyện|percakapan|perbualan|obrolan",
    re.IGNORECASE,
)
_BEFORE, _AFTER = 160, 100
"""Characters before and after a word for a summary that are searched for the conversation; after it, in the same paragraph."""
# A hostile text of 8,000 characters took the whole pattern a quarter of a second.
_LOOKS = 12
"""Words for a summary that are examined in one text."""
_LABEL_CHORE = re.compile(
    r"\b(?:title|headline|subject line|(?<!> )(?<![`l] )tags|follow-?ups?|emoji|titel|titre|título)\b|标题|標題|タイトル|제목",
    re.IGNORECASE,
)
"""Products of other background tasks, which mention a summary only as a step towards a title or tags."""
_NEAR = 80
"""Characters around the request for a summary that are searched for such a product."""
_FILE = re.compile(r"\w\.[a-z]{2,4}\b")
"""Name of a file. A short request that has one is about work on that file, not about the conversation."""
_ASKING = {"user", *SYSTEM_ROLES}
_WORD = re.compile(r"\w{3}")
_SENTENCE_END = re.compile(r"[.!?]\s|[。！？]")
_ASK = 4_000
"""Characters at either end of a message that are searched for the instruction."""
_OPENING = 700
"""Characters at the beginning of a system prompt that state its purpose; later ones may mention others' summaries."""
_FEW = 3
"""Most messages besides system messages of a request whose conversation may be a transcript inside one message. Three:
an instruction, the assistant's "yes", and the transcript."""
_LONG = 2_000
"""Fewest characters of a history or transcript that a client would replace by a summary. Shorter ones lose nothing."""
_LOOKED_AT = 8_000
"""Characters of a text that are searched for turns, to decide whether it is a transcript."""
_EDGE = 1_000
"""Characters at either end of a transcript without recognisable turns that are left out, since the instruction is
there."""
_TURN = re.compile(
    r"""\b(?:role|type|from|speaker|author)["']?\s?[:=]\s?["'](\w{1,20})["']"""
    r"|^(?![ \t]*</|\W{0,4}(?:role|type|from)\b)[^\w\n]{0,4}(?:\d{1,4}\W{1,2})?([^\W\d_][\w'.-]{0,20}(?: [\w'.-]{1,20}){0,2})(?: ?\([^()\n]{1,30}\)| \w{1,12}=[^>\n]{1,30})?[\"'*\])|]{0,4}(?:[:\uff1a>]|$)",
    re.MULTILINE,
)
"""Start of a turn in a transcript: a role in JSON or in a tag, or the speaker's name at the beginning of a line."""
_LINE_END, _TURN_END = re.compile(r"\n"), re.compile(r"\n(?=\n|</|[-=#*]{3})")
_TURNS = 4
"""Turns that the two busiest speakers need together for a text to be a transcript."""
_COMES_BACK = (
    "Another language model started to solve this problem and produced a summary",
    "This session is being continued from a previous conversation",
    "<state_snapshot>",
    "<conversation-summary>",
    "<context-summary>",
)


class Apart(NamedTuple):
    """A request to compact, divided into the conversation and the instruction."""

    messages: Sequence[Message]
    spans: Mapping[int, tuple[int, int]]
    """Span of the transcript in a message, by the message's index."""
    history: Sequence[int]
    """Indices of the messages that are part of the conversation."""

    @property
    def question(self) -> str:
        """The instruction, from wherever it was found."""
        rest = self._rest(" ")
        others = "\n\n".join(text_of(each) for each in rest if each.get("role") not in SYSTEM_ROLES)
        asking = (
            text
            for text in (text_of(each) for each in rest if each.get("role") in SYSTEM_ROLES)
            if _asked_in(text[:_OPENING]) or not _SUMMARY.search(others)
        )
        return "\n\n".join((*asking, others))

    def with_notes(self, notes: str) -> list[Message]:
        """Return the request with notes in place of the conversation."""
        made = self._rest(f"\n{notes}\n")
        if not self.spans:
            # The notes go into the message of a user's instruction, or before a system message with the instruction.
            merged = made.pop() if made and made[-1].get("role") == "user" else {"role": "user"}
            end = len(made) - (bool(made) and len(made) > leading_system(made))
            made.insert(end, {**merged, "content": f"{notes}\n\n{text_of(merged)}".strip()})
        return made

    def _rest(self, between: str) -> list[Message]:
        """Return all messages but the conversation, with a text in place of the first transcript."""
        rest: list[Message] = []
        for at, message in enumerate(self.messages):
            start, end = self.spans.get(at, (0, 0))
            text = text_of(message)
            put = between if at == min(self.spans, default=-1) else "\n"
            rest += (
                []
                if at in self.history
                else [{**message, "content": f"{text[:start]}{put}{text[end:]}"} if end else message]
            )
        return rest


def asks_to_compact(messages: Sequence[Message]) -> bool:
    """Return whether a summary of a whole history is requested, whether that is in messages or in a transcript.

    It does not matter whether the client or its user asks: both get a summary of the whole.
    """
    texts, lead = [*map(text_of, messages)], leading_system(messages)
    near = (*texts[:1], *texts[lead : lead + 1], *texts[-_FEW:])
    if sum(map(len, texts)) <= _LONG or not _has_stem("\n".join(map(_edges, near))):
        return False
    role, divided = messages[-1].get("role"), taken_apart(messages)
    system = texts[0][:_OPENING] if lead else ""
    # An agent's own prompt may contain examples that look like turns, so a system message has to name the conversation.
    alone = _is_few(messages) and any(map(_speakers, texts[lead:]))
    if divided.spans:
        turn = _TURN.match(newest := texts[-1].rstrip(), newest.rfind("\n") + 1)
        if turn is not None and turn.end() == len(newest) and _speaker(turn) in _speakers(newest):
            return False  # it ends with the next speaker's name: the answer continues the conversation
        rest = divided.with_notes("")
        ask = "\n\n".join(_edges(text_of(each)) for at, each in enumerate(rest) if at >= lead or at in divided.spans)
        system = _edges(texts[0]) if lead and not _WORD.search(ask) else system
        return _asked_in(ask, alone=alone) is not None or _asked_in(system, alone=alone) is not None
    newest = _edges(texts[-1])
    if role in _ASKING and not (len(newest) < _OPENING and _FILE.search(newest)) and _asked_in(newest, alone=alone):
        return True
    # The first message is the instruction, and everything after it is the history: then the history begins with it, or
    # nothing else is requested.
    for at in {0, lead}:
        task = _asked_in(texts[at][:_OPENING], alone=alone)
        begins = at < lead or (at == lead and _SUMMARY.search(newest))
        if task is not None and (
            role == "assistant" or (begins and not _SENTENCE_END.search(texts[at], 0, task.start()))
        ):
            return True
    return False


def taken_apart(messages: Sequence[Message]) -> Apart:
    """Divide a request to compact.

    The conversation is a transcript in the newest or the system's message, or the messages themselves.
    """
    lead, last = leading_system(messages), len(messages) - 1
    if _is_few(messages):
        long = {at: text for at, text in enumerate(map(text_of, messages)) if len(text) > _LONG}
        turns = {at for at, text in long.items() if _speakers(text)}
        holder = max(turns | {at for at in long if at >= lead}, key=lambda at: len(long[at]), default=lead)
        if holder in long and not lead <= holder < last:
            return Apart(messages, {at: _transcript(long[at]) for at in sorted({holder, *turns})}, ())
    newest, first = text_of(messages[-1]), text_of(messages[lead]) if lead < last else ""
    # Short words of the user stay where they are, whether they ask for the summary or end the history.
    asks = messages[-1].get("role") in _ASKING and (len(newest) <= _LONG or _SUMMARY.search(_edges(newest)) is not None)
    begins = len(first) <= _LONG and _asked_in(first[:_OPENING]) is not None
    return Apart(messages, {}, range(lead + begins, last + (not asks)))


def brought_from(text: str) -> int:
    """Find where a model's summary starts in a user message, or return the text's length.

    Clients continue with the summary as a user message, although none of it is in the user's own words.
    """
    return min((at for words in _COMES_BACK if (at := text.find(words)) >= 0), default=len(text))


def _asked_in(text: str, *, alone: bool = False) -> re.Match[str] | None:
    """Find where a text asks for a summary of a conversation.

    `alone`: the conversation is outside of the text, and need not be named.
    """
    for found in islice(_SUMMARY.finditer(text), _LOOKS):
        if _LABEL_CHORE.search(text, max(0, found.start() - _NEAR), found.end() + _NEAR):
            return None
        begin = found.start() if found["done"] else max(0, found.start() - _BEFORE)
        end = text.find("\n\n", found.end(), found.end() + _AFTER)
        if (alone and not found["done"]) or _CONVERSATION.search(text, begin, end if end > 0 else found.end() + _AFTER):
            return found
    return None


def _has_stem(text: str) -> bool:
    """Return whether there may be a word for a summary.

    Every request is checked, and this is much faster than the pattern.
    """
    lower = text.lower()
    return any(stem in lower for stem in _STEMS)


def _is_few(messages: Sequence[Message]) -> bool:
    return len(messages) <= 2 * _FEW and len(messages) - leading_system(messages) <= _FEW


def _edges(text: str) -> str:
    return text if len(text) <= 2 * _ASK else f"{text[:_ASK]}\n{text[-_ASK:]}"


def _speakers(text: str) -> frozenset[str]:
    """Return the speakers who take turns in a text, in lower case; empty if it is not a transcript."""
    turns = Counter(map(_speaker, _TURN.finditer(text[:_LOOKED_AT])))
    often = frozenset(name for name, number in turns.items() if number > 1)
    most = sum(number for _, number in turns.most_common(2))
    return often if most >= _TURNS and (len(often) > 1 or turns.keys() & {"event", "message", "turn"}) else frozenset()


def _transcript(text: str) -> tuple[int, int]:
    """Find where the transcript in a text begins and ends."""
    speakers, base = _speakers(text), max(0, len(text) - _ASK)
    if not speakers:
        return text.rfind("\n", 0, _EDGE) + 1 or _EDGE, max(_EDGE, len(text) - _EDGE)
    head = [turn.start() for turn in _TURN.finditer(text, 0, _ASK) if _speaker(turn) in speakers]
    tail = [turn.span() for turn in _TURN.finditer(text, base) if _speaker(turn) in speakers]
    start = head[0] if head else _ASK
    # If each turn is one line, so is the last; otherwise a blank line, a tag or a rule ends it.
    lines = all("\n" not in text[end:begin].strip() for (_, end), (begin, _) in pairwise(tail[-_TURNS:]))
    ends = (_LINE_END if lines else _TURN_END).search(text, tail[-1][1]) if tail else None
    return text.rfind("\n", 0, start) + 1 or start, ends.start() if ends else len(text) if tail else base


def _speaker(turn: re.Match[str]) -> str:
    return str(turn[turn.lastindex or 0]).casefold()

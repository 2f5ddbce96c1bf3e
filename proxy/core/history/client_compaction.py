"""Compactions that clients make themselves: the request for a summary, and the summary when it is sent back.

No client marks such a request, so it is recognised by its wording: it asks for a summary of a conversation. The
instruction is in the system prompt, or in the first or newest message; the conversation is in messages of its own, or
written out as a transcript in one of these. Tested with the requests of Codex, Claude Code, opencode, Qwen Code, Gemini
CLI, aider, Cline, Roo, goose, Copilot, Open WebUI, LobeChat, NextChat, SillyTavern, OpenHands, Letta, LangChain, LangGraph,
LlamaIndex, Semantic Kernel, AutoGen, eino, Agent Zero and the tool runner of Anthropic's SDK.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from proxy.core.request import SYSTEM_ROLES, Message, leading_system, text_of

_STEMS = re.findall(
    r"\S+",
    "summar compact condens compress consolidat recap handoff hand-off distil takeaway snapshot continuing extract zusammen résum resum "
    "riassu samenvat sammanf podsum streszcz özet резюм кратк сожм 总结 總結 摘要 概括 概述 压缩 壓縮 要約 まとめ 圧縮 요약 압축 لخ tóm ringkas",
)
"""Word stems, at least one of which is in every such request. A fast first test, since every request is checked."""
_CONVERSATION = re.compile(
    r"\b(?:the|this|that|our|your|an?|these|all|internal|partial|lines? of|earlier|older|previous|prior)\s(?:\w{1,30}\s){0,3}"
    r"(?:conversation|chat|dialog(?:ue)?|transcript|discussion|exchange|session|history|messages|turns|thread|trajectory|role-?play|scene)s?\b"
    r"(?!\s(?:module|component|page|files?|class|function|feature|table|app|ui|api|endpoint|store|logic|handler|service|view|panel|screen"
    r"|widget|bot|model|code|tests?)\b)|\b(?:of|from|between)\s(?:\w{1,30}\s){0,2}conversations?\b|(?:story|everything|events|work|things) so far"
    r"|interactive (?:\w{1,30} )?agent|gespräch|unterhaltung|verlauf|échange|conversa[cçz]|la conversa|historique|historial|charla|cronologia"
    r"|histórico|gesprek|samtal|rozmow|konuşma|sohbet|разговор|диалог|бесед|переписк|истори[июя]|对话|對話|会话|會話|聊天|历史|歷史|会話|対話"
    r"|履歴|チャット|やり取り|대화|채팅|محادث|حوار|hội thoại|trò chuyện|percakapan|obrolan",
    re.IGNORECASE,
)
_SUMMARY = re.compile(
    r"\b(?:(?P<done>summari[sz]ed|summari[sz]ation)|(?:summar|recap|condens|compact|compress|consolidat|distil)\w{0,12}|takeaways?|hand-?off"
    r"|extract\w{0,5}[^.\n]{0,60}\bcontext|zusammen\b"
    r"|(?:zusammenf|zusammengef|samenvat|sammanf|résum|resum|riassu|podsum|streszcz|özet|резюм|кратк|сожм|ringkas)\w{0,12})"
    r"|总结|總結|摘要|概括|概述|压缩|壓縮|要約|まとめ|圧縮|요약|압축|لخ|tóm tắt",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"\b(?:conversation|chat|dialogue|history|context)(?: history)? (?:summar|compact|compress|condens)\w+"
    r"|\b(?:continuation|anchored|hand-?off) summary|\bprompt for continuing (?:our|the|this) conversation|<state_snapshot>",
    re.IGNORECASE,
)
"""Established names for such a summary. Otherwise a word for a summary counts only near one for a conversation."""
_BEFORE, _AFTER = 160, 100
"""Characters before and after a word for a summary that are searched for the conversation; after it, in the same paragraph."""
_LOOKS = 12
"""Words for a summary that are looked at in one text."""
_LABEL_CHORE = re.compile(
    r"\b(?:title|headline|subject line|(?<!> )tags|follow-?ups?|emoji|titel|titre|título)\b|标题|標題|タイトル|제목",
    re.IGNORECASE,
)
"""Products of other background tasks, which mention a summary only as a step towards a title or tags."""
_NEAR = 80
"""Characters around the request for a summary that are searched for such a product."""
_HANDS_OVER = re.compile(
    r"</?(?:summary|analysis|state_snapshot|scratchpad|conversation|context|messages|chat_history)>|\btext only\b"
    r"|\bnot (?:call|use|invoke) any (?:other )?(?:tools?|functions?)"
    r"|\b(?:another|next|new|other) (?:instance|llm|(?:language |coding )?(?:model|agent|assistant|session|chat|conversation))\b"
    r"|\bhand-?off\b|\bcontinuing session\b|\b(?:resume|continue) (?:the |our |this )?(?:task|work|conversation)"
    r"|\bpartial conversation\b|\bwill (?:not|no longer) have access\b|\b(?:will|to) (?:replace|be (?:replaced|removed|discarded|used as))\b"
    r"|\bignore (?:all )?previous instructions|\bnothing but the summary|\bfuture context\b|\b(?:triggered|triggers) (?:this|the) summar"
    r"|übergabe|weiterführ|fortsetz|poursuiv|reprendre|passation|continuar|retomar|proseguire|продолж|передач|继续|接续|新对话|新会话|后续"
    r"|引き継|続け|이어|계속",
    re.IGNORECASE,
)
"""Signs that the summary is for a reader who has nothing else to go on. A user who wants to read one says no such thing."""
_SO_FAR = re.compile(
    r"so far|above|to date|until now|conversation history|(?:entire|whole) conversation|bisher|jusqu|hasta ahora|finora|até agora"
    r"|до сих пор|以上|上述|目前为止|これまで|지금까지",
    re.IGNORECASE,
)
_SECTION = re.compile(r"^[ \t]{0,8}(?:[-*•#]|\d{1,2}[.)、])", re.MULTILINE)
_ASSIGNED = re.compile(
    r"\byour (?:task|job|role|sole objective)\b[^.\n]{0,40}\bis to\b|\bnot add any introductory", re.IGNORECASE
)
_SECTIONS = 3
_ASK = 4_000
"""Characters at either end of a message that are searched for the instruction."""
_OPENING = 700
"""Characters at the beginning of a system prompt that state its purpose; later ones may mention others' summaries."""
_SHORT = 600
"""Length in characters up to which a message may be a mere "begin", with the instruction in the system prompt."""
_FEW = 3
"""Number of messages besides the system's up to which the conversation has to be a transcript inside one of them.

Three, for an instruction, the assistant's "yes", and the transcript.
"""
_TRANSCRIPT = 6_000
"""Length in characters above which a text in such a request is taken for the transcript."""
_LOOKED_AT = 8_000
"""Characters of a text that are searched for turns, to see whether it is a transcript."""
_EDGE = 1_000
"""Characters at either end that are left out of a transcript without recognisable turns: the instruction is there."""
_TURN = re.compile(
    r"""\b(?:role|type|from|speaker|author)["']?\s?[:=]\s?["'](\w{1,20})["']"""
    r"|^(?![ \t]*</|\W{0,4}(?:role|type|from)\b)[^\w\n]{0,4}(?:\d{1,4}\W{1,2})?([^\W\d_][\w'.-]{0,20}(?: [\w'.-]{1,20}){0,2})(?: ?\([^()\n]{1,30}\)| \w{1,12}=[^>\n]{1,30})?[\"'*\])|]{0,4}(?:[:\uff1a>]|$)",
    re.MULTILINE,
)
"""Start of a turn in a transcript: a role in JSON or in a tag, or the speaker's name at the beginning of a line."""
_TURNS = 4
"""Turns that the two busiest speakers must have together in a transcript."""
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
    """Indices of the messages that are themselves part of the conversation."""

    @property
    def question(self) -> str:
        """The instruction, wherever it is."""
        asking = (
            each
            for each in self._rest(" ")
            if each.get("role") not in SYSTEM_ROLES or _asked_in(text_of(each)[:_OPENING])
        )
        return "\n\n".join(map(text_of, asking))

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
        """Return everything but the conversation, with a text in place of the first transcript."""
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
    """Return whether a client asks for a summary of its own history, be it earlier messages or a transcript in one."""
    lead = leading_system(messages)
    if not messages or lead == len(messages):
        return False
    newest, system = text_of(messages[-1]), text_of(messages[0]) if lead else ""
    few = len(messages) - lead <= _FEW
    ask = "\n".join([_edges(text_of(each)) for each in messages[lead:]]) if few else _edges(newest)
    lower = f"{system[:_OPENING]}\n{ask}".lower()
    if not any(stem in lower for stem in _STEMS):
        return False
    if (found := _asked_in(ask)) is not None:
        near = ask[max(0, found.start() - _NEAR) : found.end() + _NEAR]
        return _LABEL_CHORE.search(near) is None and _by_program(messages, ask)
    if (task := _asked_in(system[:_OPENING])) is None:
        return False
    begins = len(newest) <= _SHORT and _HANDS_OVER.search(newest) is not None
    if few:
        longest = max(map(text_of, messages), key=len)
        return (
            begins or is_transcript(longest) or (len(newest) > _SHORT and _HANDS_OVER.search(system[:_ASK]) is not None)
        )
    # The whole system prompt is the instruction, and nothing but the history follows.
    return begins or (len(system) <= _OPENING and task.start() < _NEAR)


def taken_apart(messages: Sequence[Message]) -> Apart:
    """Divide a request to compact. With few messages the conversation is a transcript in one, otherwise the messages themselves."""
    lead, last = leading_system(messages), len(messages) - 1
    if len(messages) - lead <= _FEW:
        texts = enumerate(map(text_of, messages))
        long = ((at, text) for at, text in texts if len(text) > _TRANSCRIPT and (at >= lead or is_transcript(text)))
        return Apart(messages, {at: _transcript(text) for at, text in long}, ())
    ask = _edges(text_of(messages[last]))
    asks = _asked_in(ask) is not None or _HANDS_OVER.search(ask) is not None
    return Apart(messages, {}, range(lead, last + (not asks)))


def is_transcript(text: str) -> bool:
    """Return whether a text is a written-out conversation, judging by its speakers and their turns."""
    return len(text) > _SHORT and bool(_speakers(text[:_LOOKED_AT]))


def brought_from(text: str) -> int:
    """Find where a model's summary starts in a user message, or return the text's length.

    A client goes on with the summary as a user message, though none of it is the user's own words.
    """
    return min((at for words in _COMES_BACK if (at := text.find(words)) >= 0), default=len(text))


def _by_program(messages: Sequence[Message], ask: str) -> bool:
    """Return whether the client asks for the summary, not its user, who merely wants to read one."""
    lead, role = leading_system(messages), messages[-1].get("role")
    if role != "user":
        return role in SYSTEM_ROLES
    if lead and _asked_in(text_of(messages[0])[:_OPENING]):
        return True
    if len(messages) - lead <= _FEW and max(map(len, map(text_of, messages))) > _TRANSCRIPT:
        return True
    in_form = ask.rstrip().endswith((":", "\uff1a")) or len(_SECTION.findall(ask)) >= _SECTIONS
    return bool(_HANDS_OVER.search(ask) or _ASSIGNED.search(ask) or (in_form and _SO_FAR.search(ask)))


def _asked_in(text: str) -> re.Match[str] | None:
    """Find where a text asks for a summary of a conversation."""
    for found in islice(_SUMMARY.finditer(text), _LOOKS):
        after = text[found.start() : found.end() + _AFTER].partition("\n\n")[0]
        before = "" if found["done"] else text[max(0, found.start() - _BEFORE) : found.start()]
        if _CONVERSATION.search(after) or _CONVERSATION.search(before):
            return found
    return _NAMED.search(text)


def _edges(text: str) -> str:
    return text if len(text) <= 2 * _ASK else f"{text[:_ASK]}\n{text[-_ASK:]}"


def _speakers(text: str) -> frozenset[str]:
    """Return the speakers who take turns in a text, in lower case; empty if it is not a transcript."""
    turns = Counter(str(turn[turn.lastindex or 0]).casefold() for turn in _TURN.finditer(text))
    often = frozenset(name for name, number in turns.items() if number > 1)
    most = sum(number for _, number in turns.most_common(2))
    return often if most >= _TURNS and (len(often) > 1 or turns.keys() & {"event", "message", "turn"}) else frozenset()


def _transcript(text: str) -> tuple[int, int]:
    """Find where the transcript in a text begins and ends."""
    speakers = _speakers(text)
    turns = [turn for turn in _TURN.finditer(text) if str(turn[turn.lastindex or 0]).casefold() in speakers]
    start, end = (turns[0].start(), turns[-1].end()) if turns else (_EDGE, len(text) - _EDGE)
    if turns:
        end = text.find("\n\n", end)
        end = len(text) if end < 0 else max(end, len(text) - _ASK)
    start = min(start, _ASK)
    return text.rfind("\n", 0, start) + 1 or start, end

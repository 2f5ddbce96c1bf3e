"""Compactions that clients make themselves: how they ask a model for one, and how what it wrote comes back.

They are known by what they say, because none marks them otherwise, in words that were the same over many versions. Seen:
Codex 0.169, Claude Code 2.1, opencode 1.18, Qwen Code 0.15 and Gemini CLI, aider, Cline and its kin, and the tool runner
of Anthropic's SDK.
"""

import re
from collections.abc import Sequence

from proxy.core.request import SYSTEM_ROLES, Message, text_of

_WRITES = r"(?:create|write|provide|produce|generate|give|prepare|update)"
_CONVERSATION = r"(?:conversation|chat|session|dialogue|history|transcript)"
_ASKS = re.compile(
    r"context checkpoint compaction|continuation summary|anchored summary"
    rf"|\b{_WRITES}\b[^.\n]{{0,60}}\bsummary\b[^.\n]{{0,40}}\b(?:of|from)\b[^.\n]{{0,40}}\b{_CONVERSATION}\b"
    rf"|\bsummari[sz]es?\b[^.\n]{{0,60}}\b{_CONVERSATION}\b"
    r"|\bprompt for continuing (?:our|the|this) conversation"
    r"|<state_snapshot>",
    re.IGNORECASE,
)
"""What is asked for."""
_WITH_SYSTEM = 2
_HANDS_OVER = re.compile(
    r"</?(?:summary|analysis|state_snapshot|scratchpad|conversation)>|\btext only\b"
    r"|\bnot (?:call|use|invoke) any (?:other )?(?:tools?|functions?)"
    r"|\b(?:another|next|new|other) (?:instance|llm|(?:language |coding )?(?:model|agent|assistant|session))\b"
    r"|\bhand-?off\b|\bcontinuing session\b|\b(?:resume|continue) (?:the |our |this )?(?:task|work|conversation)"
    r"|\bpartial conversation\b|\bwill (?:not|no longer) have access\b",
    re.IGNORECASE,
)
"""And that somebody who has nothing else is to go on with it: who merely wants to read a summary does not say that."""
_REQUEST_SPAN = 8_000
"""Characters at the end of the newest message in which that stands: behind what a client puts in front of it."""
_SYSTEM_SAYS = 2_000
_SHORT = 600
"""Characters of a message that only says to begin with what the system prompt asks for."""
_COMES_BACK = (
    "Another language model started to solve this problem and produced a summary",
    "This session is being continued from a previous conversation",
    "<state_snapshot>",
    "<conversation-summary>",
    "<context-summary>",
)
_LONGEST_UNSPLIT = 12_000
"""Characters of a message from which it may be a transcript."""
_PIECE = 1_500
"""Characters of a piece of a transcript: none so long that less than all of it is read."""


def asks_to_compact(messages: Sequence[Message]) -> bool:
    """Return whether the newest message is a client's own request to compact the history before it, or inside it."""
    if not messages or messages[-1].get("role") != "user":
        return False
    newest = text_of(messages[-1])
    may = _may_ask(newest[-_REQUEST_SPAN:])
    if not may and len(messages) != _WITH_SYSTEM:
        return False
    if may and _asks(newest[-_REQUEST_SPAN:]):
        return True
    system = "\n".join(text_of(message)[:_SYSTEM_SAYS] for message in messages if message.get("role") in SYSTEM_ROLES)
    if not _may_ask(system) or not _asks(system):
        return False
    if len(newest) > _SHORT:
        return len(messages) <= _WITH_SYSTEM
    return _HANDS_OVER.search(newest) is not None


def brought_from(text: str) -> int:
    """Find where a summary by a model starts in a user's message, nothing of which is the user's own; else return the length."""
    return min((at for words in _COMES_BACK if (at := text.find(words)) >= 0), default=len(text))


def unfolded(messages: Sequence[Message]) -> list[Message]:
    """The same messages, the newest in pieces if it is a whole transcript, so that it can be read piece by piece."""
    *before, newest = messages
    text = newest.get("content")
    if not isinstance(text, str) or len(text) <= _LONGEST_UNSPLIT:
        return list(messages)
    asks = _last_asking(text)
    pieces: list[str] = []
    at = 0
    while at < asks:
        end = asks if asks - at <= _PIECE else text.rfind("\n", at + _PIECE // 2, at + _PIECE) + 1 or at + _PIECE
        pieces.append(text[at:end])
        at = end
    return [*before, *({**newest, "content": piece} for piece in (*pieces, text[asks:]) if piece)]


def _may_ask(text: str) -> bool:
    """Return whether a word occurs that every such request has: far cheaper than the patterns, and every request is checked."""
    lower = text.lower()
    return "summar" in lower or "compact" in lower or "snapshot" in lower or "prompt for continuing" in lower


def _asks(text: str) -> bool:
    return _ASKS.search(text) is not None and _HANDS_OVER.search(text) is not None


def _last_asking(text: str) -> int:
    """Find the start of a request at the end of a transcript; one in front of the transcript stays in the text."""
    found = _ASKS.search(text, max(0, len(text) - _REQUEST_SPAN))
    at = len(text) if found is None else text.rfind("\n", 0, found.start()) + 1
    return at or len(text)

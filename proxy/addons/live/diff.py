"""Diff between the client's messages and those forwarded, message by message, derived from the messages alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias

from proxy.addons.live.parts import block_in
from proxy.compaction.ladder.results import NOTE
from proxy.compaction.summary import is_bridge
from proxy.core.history.chain import message_digest
from proxy.core.history.marks import RECALLED_END, is_summary
from proxy.core.request import Message, text_of

What: TypeAlias = Literal["kept", "shortened", "masked", "summarised", "recalled", "mended", "added", "removed"]
CUT = "characters left out"
"""In every mark of a text whose middle or lines are left out."""
LONGEST = 20_000
"""Characters of a text that is shown."""
_BEGINNING = 12
"""Characters by which a shortened text is known again."""


@dataclass(slots=True)
class DiffLine:
    """One message of the forwarded prompt, or some that are not in it any more."""

    what: What
    sent: list[int] = field(default_factory=list)
    forwarded: int | None = None


def lines_of(sent: Sequence[Message], forwarded: Sequence[Message]) -> list[DiffLine]:
    """Return the fate of each message, in the order of the forwarded prompt. May take long; usable from another thread."""
    bare = [_without_block(message) for message in forwarded]
    before, after = [message_digest(each) for each in sent], [message_digest(each) for each in bare]
    found: list[DiffLine] = []
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for tag, i, k, j, m in matcher.get_opcodes():
        if tag == "equal":
            for one, other in zip(range(i, k), range(j, m), strict=True):
                what: What = "kept" if bare[other] is forwarded[other] else "recalled"
                found.append(DiffLine(what, [one], other))
        else:
            found += _changed(sent, forwarded, range(i, k), range(j, m))
    return found


def _changed(sent: Sequence[Message], forwarded: Sequence[Message], gone: range, come: range) -> list[DiffLine]:
    """Pair what came with what went, as far as it is the same message; the rest is summed up, or left out."""
    rest = list(gone)
    found: list[DiffLine] = []
    for at in come:
        message = forwarded[at]
        if is_summary(message):
            found.append(DiffLine("summarised", [], at))
            continue
        one = None if is_bridge(forwarded, at) else _origin(sent, rest, message, alone=len(gone) == len(come))
        if one is None:
            found.append(DiffLine("added", [], at))
            continue
        rest.remove(one)
        found.append(DiffLine(_kind(sent[one], message), [one], at))
    summary = next((line for line in found if line.what == "summarised"), None)
    if summary is not None:
        summary.sent = rest
        return found
    return [*(DiffLine("removed", [one]) for one in rest), *found]


def _origin(sent: Sequence[Message], rest: Sequence[int], message: Message, *, alone: bool) -> int | None:
    """Find the client's message from which a forwarded one comes; `alone`: as many are gone as are new, so they pair in order."""
    text = text_of(_without_block(message)).strip()
    for one in rest:
        other = sent[one]
        if message.get("tool_call_id") and message.get("tool_call_id") == other.get("tool_call_id"):
            return one
        same = other.get("role") == message.get("role")
        if same and text and text[:_BEGINNING] == text_of(other).strip()[:_BEGINNING]:
            return one
    return rest[0] if alone and rest else None


def _kind(before: Message, after: Message) -> What:
    old, new = text_of(before), text_of(after)
    if block_in(after):
        return "recalled"
    if NOTE in new and new.count(NOTE) > old.count(NOTE):
        return "masked"
    return "shortened" if new.count(CUT) > old.count(CUT) else "mended"


def _without_block(message: Message) -> Message:
    """The user's own words, without what was recalled in front of them."""
    if not block_in(message):
        return message
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": content[1:]}
    return {**message, "content": content.partition(RECALLED_END)[2].removeprefix("\n\n")}


def shown(message: Message, longest: int = LONGEST) -> str:
    """A message as text: what it says, and the tools that it calls."""
    text = "\n".join((*filter(None, (text_of(message),)), *_calls(message)))
    return text if len(text) <= longest else f"{text[:longest]}…"


def _calls(message: Message) -> Iterator[str]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function: Any = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield f"→ {function.get('name')}({function.get('arguments')})"

"""Comparison of the client's messages with those forwarded, and breakdown of a prompt, both derived from messages alone."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias

from proxy.backends.profile import ModelKey
from proxy.compaction.results import NOTE
from proxy.compaction.summary import is_bridge
from proxy.core.history.checkpoint import message_digest
from proxy.core.history.marks import CLOSE, OPEN, RECALLED, RECALLED_END, REMEMBERED, is_summary
from proxy.core.history.turns import calls_of
from proxy.core.jsontext import HEAVY, loads
from proxy.core.request import Message, leading_system, text_of
from proxy.net.tasks import offload_if
from proxy.stream.thinking import behind_thoughts
from proxy.tokens.meter import Meter

What: TypeAlias = Literal[
    "kept", "shortened", "masked", "summarised", "recalled", "restored", "mended", "added", "removed"
]
Line: TypeAlias = tuple[What, list[int], int | None]
"""What became of messages: the change, indexes of the client's messages, and index of the one forwarded in their place."""

_CUT = "characters left out"
"""Words in every mark that replaces the middle, or lines, of a text."""
_LONGEST = 20_000
"""Most characters shown of a text."""
_BEGINNING = 12
"""Characters at the start of a text by which it is recognised after shortening."""


async def parsed_body(body: bytes) -> Mapping[str, Any]:
    """Parse the body of a request; empty if it has no messages."""
    value = await offload_if(len(body) > HEAVY, loads, body)
    return value if isinstance(value, dict) and isinstance(value.get("messages"), list) else {}


async def prompt_parts(meter: Meter, key: ModelKey, body: bytes, total: int) -> dict[str, int] | None:
    """Break down the `total` prompt tokens of a forwarded body into parts that add up to it; returns None without messages."""
    value = await parsed_body(body)
    if not value:
        return None
    messages = [*apart(value["messages"])]
    await meter.measure(key, {**value, "messages": messages})  # off the loop, so that the costs are known
    costs = meter.costs(key, messages)
    lead, tools = leading_system(messages), bool(value.get("tools"))
    summary = recalled = 0.0
    for at, message in enumerate(messages):
        if is_summary(message) or is_bridge(messages, at):
            summary += costs[at]
        elif block := _recalled_block(message):
            recalled += min(costs[at], meter.count_text(key, block))
    scale = min(1.0, total / max(1.0, sum(costs)))
    parts = {
        "system": round(sum(costs[:lead]) * scale),
        "tools": 0,
        "summary": round(summary * scale),
        "recalled": round(recalled * scale),
    }
    parts["tail"] = round(sum(costs) * scale) - sum(parts.values())
    # What the messages do not account for are tools, or without tools the template.
    parts["tools" if tools else "system" if lead else "tail"] += total - sum(parts.values())
    return parts


def apart(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield forwarded messages, with a summary in front of a result as a message of its own."""
    for message in messages:
        content = message.get("content")
        front = text_of({"content": content[:1] if isinstance(content, list) else content})
        block, close, rest = front.rpartition(CLOSE)
        if block.startswith(OPEN) and (rest or isinstance(content, list)):
            yield {"role": "user", "content": f"{block}{close}"}
            yield _behind(message, f"{block}{close}")
        else:
            yield message


def diff_rows(
    sent: Sequence[Message],
    forwarded: Sequence[Message],
    costs: Sequence[float],
    full: bool,  # noqa: FBT001 - called by position, in a thread
) -> list[dict[str, Any]]:
    """Describe what became of each message, in the order of the forwarded prompt (see `apart`); `costs` are tokens of its messages.

    Call it in a thread: it may take long, because SequenceMatcher is quadratic in the number of messages.
    """
    rows = []
    for what, indexes, at in _covered([*_diff(sent, forwarded)]):
        row: dict[str, Any] = {
            "what": what,
            "role": str((sent[indexes[0]] if at is None else forwarded[at]).get("role")),
            "sent": indexes,
            "forwarded": at,
            "before": shown(sent[indexes[0]]) if indexes and what != "summarised" else None,
            "after": None if at is None else shown(forwarded[at]),
            "tokens": 0 if at is None else round(costs[at]),
        }
        if full and what == "summarised":
            row["covered"] = [{"index": i, "role": sent[i].get("role"), "text": shown(sent[i])} for i in indexes]
        rows.append(row)
    return rows


def _covered(lines: Sequence[Line]) -> Iterator[Line]:
    """Count what was removed in front of the last summary as covered by it, since that follows the messages that were kept."""
    last = max((number for number, (what, _, _) in enumerate(lines) if what == "summarised"), default=-1)
    gone = [index for what, indexes, _ in lines[:last] if what == "removed" for index in indexes]
    for number, (what, indexes, at) in enumerate(lines):
        if number > last or what != "removed":
            yield what, [*gone, *indexes] if number == last else indexes, at


def _diff(sent: Sequence[Message], forwarded: Sequence[Message]) -> Iterator[Line]:
    bare = [_without_block(message) for message in forwarded]
    before, after = [message_digest(each) for each in sent], [message_digest(each) for each in bare]
    for tag, i, k, j, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            for one, other in zip(range(i, k), range(j, m), strict=True):
                what: What = "restored" if _is_completed(sent[one], forwarded[other]) else "kept"
                yield what if bare[other] is forwarded[other] else "recalled", [one], other
        else:
            yield from _replaced(sent, forwarded, range(i, k), range(j, m))


def _replaced(sent: Sequence[Message], forwarded: Sequence[Message], old: range, new: range) -> Iterator[Line]:
    """Pair forwarded messages with those they came from, as far as these are found; a summary replaces the rest."""
    rest, lines = list(old), list[Line]()
    covered: list[int] | None = None
    for at in new:
        message = forwarded[at]
        if is_summary(message):
            lines.append(("summarised", [], at))
            covered = covered if covered is not None else lines[-1][1]
            continue
        origin = None if is_bridge(forwarded, at) else _origin(sent, rest, message, alone=len(old) == len(new))
        if origin is None:
            lines.append(("added", [], at))
        else:
            rest.remove(origin)
            lines.append((_change(sent[origin], message), [origin], at))
    if covered is None:
        yield from (("removed", [index], None) for index in rest)
    else:
        covered += rest
    yield from lines


def _origin(sent: Sequence[Message], rest: Sequence[int], message: Message, *, alone: bool) -> int | None:
    """Find the client's message that a forwarded one comes from; `alone`: both sides have as many, so pair them in order."""
    text, call = text_of(_without_block(message)).strip(), message.get("tool_call_id")
    for index in rest:
        other = sent[index]
        if call and call == other.get("tool_call_id"):
            return index
        same = other.get("role") == message.get("role")
        if same and text and text[:_BEGINNING] == text_of(other).strip()[:_BEGINNING]:
            return index
    return rest[0] if alone and rest else None


def _change(before: Message, after: Message) -> What:
    old, new = text_of(before), text_of(after)
    if _recalled_block(after):
        return "recalled"
    if _is_completed(before, after):
        return "restored"
    if new.count(NOTE) > old.count(NOTE):
        return "masked"
    return "shortened" if new.count(_CUT) > old.count(_CUT) or 2 * len(new) < len(old) else "mended"


def _is_completed(before: Message, after: Message) -> bool:
    """Return whether an answer got back what the client left out: its fields or calls, or thinking before its text."""
    old, new = text_of(before), text_of(after)
    if after.get("role") != "assistant" or behind_thoughts(new) != behind_thoughts(old):
        return False
    gained = any(value and not before.get(name) for name, value in after.items())
    return gained or new != old or [*map(len, calls_of(after))] != [*map(len, calls_of(before))]


def _recalled_block(message: Message) -> str:
    """Return the recalled block in front of a user's words or a result, with its marks; empty if there is none."""
    text = text_of(message) if message.get("role") in ("user", "tool") else ""
    end = text.rfind(RECALLED_END) if text.startswith((RECALLED, REMEMBERED)) else -1
    return text[: end + len(RECALLED_END)] if end >= 0 else ""


def _without_block(message: Message) -> Message:
    """Return the message without the recalled block in front of it."""
    block = _recalled_block(message)
    return _behind(message, block) if block else message


def _behind(message: Message, block: str) -> Message:
    """Return the message without this block, which `in_front` put there."""
    content = message["content"]
    rest = content[1:] if isinstance(content, list) else content[len(block) :].removeprefix("\n\n")
    return {**message, "content": rest}


def shown(message: Message, most: int = _LONGEST) -> str:
    """Return at most so many characters of a message's text and of the calls in it, for display."""
    parts = [text_of(message)]
    functions = (call.get("function") for call in calls_of(message))
    parts += [f"→ {each.get('name')}({each.get('arguments')})" for each in functions if isinstance(each, dict)]
    text = "\n".join(filter(None, parts))
    return text if len(text) <= most else f"{text[:most]}…"

"""Is a streamed answer whole? Every frame is read, as a careful client does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from benchmarks.canned import WORDS, after, more
from benchmarks.client import Answer


@dataclass
class Seen:
    """What a stream said."""

    words: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    finishes: list[str] = field(default_factory=list)
    dones: int = 0


def said(count: int) -> list[str]:
    """The words of a stream of so many chunks."""
    return list(islice(cycle(WORDS), count))


def fault(answer: Answer, expected: Sequence[str]) -> str:
    """What is wrong with a streamed answer: a word lost, doubled or out of order, a bad frame or end; empty: nothing."""
    try:
        seen = _read(answer)
    except ValueError as error:
        return str(error)
    if (text := "".join(seen.words)) != "".join(expected):
        return f"{len(seen.words)} of {len(expected)} words, or others: it ends in {text[-60:]!r}"
    return _fault_of_end(seen)


def fault_resumed(answer: Answer, later: int, *, paused: bool) -> str:
    """The same for an answer that was paused somewhere, or was not, and ends in a later attempt of so many chunks.

    Where it was paused is the proxy's choice; the later attempt says which word it was told to go on after.
    """
    try:
        seen = _read(answer)
    except ValueError as error:
        return str(error)
    first = len(seen.words) - later - 1
    if first < 0 or paused != bool(first):
        return f"{len(seen.words)} words, {later} of them should be a later attempt's"
    before = said(first)
    last = before[-1].strip() if before else ""
    if seen.words != [*before, after(last), *map(more, range(later))]:
        return f"{len(seen.words)} words, {first} of them before the pause, and some are wrong"
    return _fault_of_end(seen)


def _fault_of_end(seen: Seen) -> str:
    if seen.dones != 1 or seen.finishes != ["stop"] or len(seen.ids) != 1:
        return f"{seen.dones} [DONE], finish reasons {seen.finishes}, {len(seen.ids)} ids"
    return ""


def _read(answer: Answer) -> Seen:
    if answer.status != 200:
        msg = f"status {answer.status}: {b''.join(answer.body)[:200]!r}"
        raise ValueError(msg)
    *frames, rest = b"".join(answer.body).split(b"\n\n")
    if rest:
        msg = f"it ends inside a frame: {rest[-60:]!r}"
        raise ValueError(msg)
    seen = Seen()
    for frame in frames:
        if not frame.startswith(b":"):
            _take(frame, seen)
    return seen


def _take(frame: bytes, seen: Seen) -> None:
    if seen.dones or not frame.startswith(b"data: "):
        msg = f"a frame that does not belong here: {frame[:60]!r}"
        raise ValueError(msg)
    if frame == b"data: [DONE]":
        seen.dones += 1
        return
    chunk: dict[str, Any] = json.loads(frame[6:])
    if "choices" not in chunk:
        msg = f"no chunk: {frame[:200]!r}"
        raise ValueError(msg)
    seen.ids.add(chunk.get("id", ""))
    for choice in chunk["choices"]:
        if word := (choice.get("delta") or {}).get("content"):
            seen.words.append(word)
        if choice.get("finish_reason"):
            seen.finishes.append(choice["finish_reason"])

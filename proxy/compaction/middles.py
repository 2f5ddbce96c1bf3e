"""Cutting the middle out of a message: its beginning and end stay, and a mark says how much is missing.

Text that programs put around a user's words is cut first, the user's own words last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.compaction.ladder import Reduction
from proxy.compaction.results import Cost
from proxy.core.history.embedded import blocks_in, calls_in, results_in, texts_of
from proxy.core.history.marks import is_summary
from proxy.core.history.turns import is_system, is_user, newest_user
from proxy.core.request import Message

_MARK = "\n[… {} characters left out here to fit the context window …]\n"
_MARKED = re.compile(re.escape(_MARK).replace(r"\{\}", r"(\d{1,12})"))
_MARK_ROOM = 72
"""Characters of a mark, at most."""
_LEAST = 400
"""Characters that are left of a text at least."""
_TRIES = 3
LEAST_SHARE = 1 / 10
"""Share of the user's words in the newest message below which what is left of them is no message any more."""

_STALE = 1 / 4
"""What is left of a system message behind which another stands, as a share of what is left of others."""

_Kind = Literal["block", "data", "words"]
_ORDER: tuple[tuple[frozenset[_Kind], int], ...] = (
    (frozenset({"block", "data"}), _LEAST),
    (frozenset({"block"}), 0),
    (frozenset({"words"}), _LEAST),
)
"""What is cut, one after the other, and to how many characters each."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a message's text that is cut on its own: in a program's block, the user's words, or data of others."""

    part: int | None
    start: int
    end: int
    kind: _Kind


def cut_middle(
    message: Message, cost: float, excess: float, count: Cost, *, words: bool = True
) -> tuple[Message, float]:
    """The message with so many tokens less, or as few as may be; as it is if that would gain nothing.

    Args:
        message: whose texts are cut; calls and the marks of results stay.
        cost: its tokens.
        excess: tokens that it is to lose.
        count: counts messages.
        words: whether the user's own words may be cut, once all else is.
    """
    best, best_cost = message, cost
    pieces = list(_pieces(message))
    characters = sum(piece.end - piece.start for piece in pieces)
    if cost <= 0 or max((piece.end - piece.start for piece in pieces), default=0) <= _MARK_ROOM:
        return best, best_cost
    # Tokens are not spread evenly over the characters, so the first guess may miss.
    lose = characters * (excess + 1) / cost
    for _ in range(_TRIES):
        shorter, deepest = _without(message, pieces, lose, words=words)
        shorter_cost = sum(count([shorter]))
        if shorter_cost < best_cost:
            best, best_cost = shorter, shorter_cost
        if best_cost <= cost - excess or deepest:
            break
        lose *= 1.01 + 1.2 * (best_cost - cost + excess) / max(1.0, cost - best_cost)
    return best, best_cost


def cut_middles(reduction: Reduction) -> Reduction:
    """Cut the middle out of the largest texts until the budget is kept; the head and the newest user message last.

    Tool calls stay whole: half of their JSON is none. So do the marks of results as text.
    """
    user = newest_user(reduction.messages)
    pinned = [index < reduction.floor or index == user for index in range(len(reduction.messages))]
    order = sorted(range(len(pinned)), key=lambda index: (pinned[index], -reduction.costs[index]))
    return _cut_each(reduction, [(index, 0.0) for index in order], words=True)


def cut_oversize(reduction: Reduction, least: float, *, words: bool) -> Reduction:
    """Cut what stands in users' and system messages before the newest turn until the budget is kept, the largest first.

    None of them to less than `least` tokens; system messages that a later one replaces to a quarter of that. Beginning
    and end stay, a mark says what is missing. The users' own `words` only where that is asked for.
    """
    order: list[tuple[int, float]] = []
    stale = False
    for index in reversed(range(newest_user(reduction.messages) or 0)):
        message = reduction.messages[index]
        if is_system(message):
            order.append((index, least * (_STALE if stale else 1.0)))
            stale = True
        elif is_user(message) and not is_summary(message):
            order.append((index, least))
    return _cut_each(reduction, sorted(order, key=lambda at: at[1] - reduction.costs[at[0]]), words=words)


def _cut_each(reduction: Reduction, order: Sequence[tuple[int, float]], *, words: bool) -> Reduction:
    """Cut messages, each to so many tokens at least, one after the other until the budget is kept."""
    messages, excess = list(reduction.messages), reduction.total - reduction.budget
    for index, least in order:
        cost = reduction.costs[index]
        if excess > 0 and cost > least:
            lose = min(excess, cost - least)
            messages[index], less = cut_middle(messages[index], cost, lose, reduction.cost, words=words)
            excess -= cost - less
    return reduction.with_messages(messages)


def cut_text(text: str, most: int) -> str:
    """Cut a user's text to about so many characters: programs' blocks first, and if that is not enough, its middle."""
    message: Message = {"role": "user", "content": text}
    pieces = list(_pieces(message))
    return str(_without(message, pieces, len(text) - most, words=True)[0]["content"])


def newest_cut(sent: Sequence[Message], history: Sequence[Message]) -> tuple[Message, Message] | None:
    """The newest user message as it was sent and as it is in the history, if more is left out of its middle there."""
    newest, placed = newest_user(sent), newest_user(history)
    if newest is None or placed is None:
        return None
    full, short = sent[newest], history[placed]
    return (full, short) if short is not full and characters_cut(short) > characters_cut(full) else None


def user_words(message: Message) -> Message:
    """A user message with nothing but the user's words, to be counted."""
    texts = dict(texts_of(message))
    words = (texts[each.part][each.start : each.end] for each in _pieces(message) if each.kind == "words")
    return {"role": "user", "content": "\n".join(words)}


def characters_cut(message: Message) -> int:
    """Characters that marks in a message say are left out of it."""
    return sum(int(mark.group(1)) for _, text in texts_of(message) for mark in _MARKED.finditer(text))


def _middle_cut(text: str, keep: int) -> str:
    head, tail = text[: keep // 2], text[len(text) - (keep - keep // 2) :]
    # What an earlier cut took out is gone as well.
    earlier = list(_MARKED.finditer(text, len(head), max(len(head), len(text) - len(tail))))
    gone = sum(int(mark.group(1)) - len(mark.group()) for mark in earlier)
    mark = _MARK.format(len(text) - keep + gone)
    return text if len(text) <= keep + len(mark) else f"{head}{mark}{tail}"


def _without(message: Message, pieces: Sequence[_Piece], lose: float, *, words: bool) -> tuple[Message, bool]:
    """The message without so many characters, of its longest pieces first; and whether no more can be cut."""
    lengths = {piece: piece.end - piece.start for piece in pieces}
    for kinds, least in _ORDER:
        cuttable = [piece for piece in pieces if piece.kind in kinds and lengths[piece] > least + _MARK_ROOM]
        if not cuttable or lose <= 0 or (not words and "words" in kinds):
            continue
        sizes = [lengths[piece] for piece in cuttable]
        level = max(least, int(water_level(sizes, max(0.0, sum(sizes) - lose))))
        lose -= sum(max(0, size - level) for size in sizes)
        lengths |= {piece: min(lengths[piece], level) for piece in cuttable}
    return _with_lengths(message, lengths), lose > 0


def _with_lengths(message: Message, lengths: dict[_Piece, int]) -> Message:
    """The message with each piece cut to its length."""
    changed: dict[int | None, str] = {}
    of_part: dict[int | None, list[_Piece]] = {}
    for piece in lengths:
        of_part.setdefault(piece.part, []).append(piece)
    for part, text in texts_of(message):
        done: list[str] = []
        after = 0
        for piece in of_part.get(part, ()):
            words, length = text[piece.start : piece.end], lengths[piece]
            done += (text[after : piece.start], _middle_cut(words, length) if length < len(words) else words)
            after = piece.end
        changed[part] = "".join((*done, text[after:]))
    if None in changed:
        return {**message, "content": changed[None]}
    content: Any = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [{**part, "text": changed[at]} if at in changed else part for at, part in enumerate(content)]
    return {**message, "content": parts}


def _pieces(message: Message) -> Iterator[_Piece]:
    """Pieces at which a message may be cut: around calls, inside of results that are text and of blocks, and between all these."""
    role = message.get("role")
    users = role == "user" and not is_system(message)
    for part, text in texts_of(message):
        edges: list[tuple[int, int, int, int, _Kind]] = []
        if role == "assistant":
            edges = [(start, start, end, end, "data") for start, end in (call.span for call in calls_in(text))]
        elif users:
            edges = [(r.span[0], *r.inside, r.span[1], "data") for r in results_in(text)]
            edges += [(b.span[0], *b.inside, b.span[1], "block") for b in blocks_in(text)]
        outside: _Kind = "words" if users else "data"
        after = 0
        for start, begins, ends, over, kind in sorted(edges, key=lambda edge: edge[0]):
            if start < after:
                continue  # inside of the one before, or a result once more
            yield from _piece(part, after, start, outside)
            if role != "assistant":
                yield from _piece(part, begins, ends, kind)
            after = over
        yield from _piece(part, after, len(text), outside)


def _piece(part: int | None, start: int, end: int, kind: _Kind) -> Iterator[_Piece]:
    if start < end:
        yield _Piece(part, start, end, kind)


def water_level(sizes: Sequence[float], room: float) -> float:
    """The size to which the larger of these have to come down, so that together they take no more than `room`."""
    spare = room
    for at, size in enumerate(ordered := sorted(sizes)):
        level = spare / (len(ordered) - at)
        if size > level:
            return max(0.0, level)
        spare -= size
    return max(ordered, default=0.0)

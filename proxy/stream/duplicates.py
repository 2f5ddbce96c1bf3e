"""Calls that an answer makes twice: same name, same arguments. The first is made, the others are left out.

A model that asks for the same twice in one breath gains nothing by it, and clients run both, or show both for approval.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import is_

from proxy.core.jsontext import loads
from proxy.core.piece import CallPart, Piece

_COMPARED = 64
"""Calls of one name that another one is compared with while it streams: a model that writes more repeats itself for good."""


def bare_of(arguments: str) -> str:
    """Arguments without white space: texts of which these differ don't say the same, but for the order of keys."""
    return "".join(arguments.split())


def _equal(one: str, other: str) -> bool:
    """Compare arguments that differ in white space at most: inside a text it has a meaning."""
    try:
        return one == other or bool(loads(one) == loads(other))
    except ValueError:
        return False


@dataclass(slots=True)
class _Call:
    """One call, as far as it came."""

    part: CallPart
    """With what came first of it."""
    pieces: list[str]
    """Of its arguments."""
    alike: list[str] = field(default_factory=list)
    """Bare arguments of earlier calls of that name which it may still turn out to repeat."""
    bare: int = 0
    """Characters of its own bare arguments."""
    held: bool = False

    def whole(self) -> CallPart:
        return replace(self.part, arguments="".join(self.pieces))


class RepeatedInChoices:
    """Leaves them out of one attempt's stream, in each of its choices by itself."""

    def __init__(self) -> None:
        self._of: dict[int, RepeatedCalls] = {}
        """Those in which a call was begun, by their index."""
        self._told: dict[int, int] = {}
        """How much of what was left out of them was told."""

    @property
    def idle(self) -> bool:
        """Return whether no call has begun, so that what says none may pass."""
        return all(of.idle for of in self._of.values())

    def feed(self, piece: Piece) -> list[Piece]:
        """Take in the next piece; what is to be said now. A frame of several choices of which any is changed is said choice by choice."""
        if piece.aside or piece.index < 0:
            return [piece]
        rest = self.close() if piece.done or piece.error else []
        if piece.other_choices:
            return [*rest, piece] if piece.error else self._several(piece)
        if piece.index not in self._of:
            if not piece.calls:
                return [*rest, piece]
            self._of[piece.index] = RepeatedCalls()
        return [*rest, *self._of[piece.index].feed(piece)]

    def _several(self, piece: Piece) -> list[Piece]:
        choices = piece.by_choice()
        said = [out for each in choices for out in self.feed(each)]
        same = len(said) == len(choices) and all(map(is_, said, choices))
        return [piece] if same else said

    def close(self) -> list[Piece]:
        """Return what is held where the stream ends without a finish reason."""
        return [each for of in self._of.values() for each in of.close()]

    def dropped(self) -> list[str]:
        """Names and arguments of what was left out since this was asked last."""
        new = [text for index, of in self._of.items() for text in of.dropped[self._told.get(index, 0) :]]
        self._told = {index: len(of.dropped) for index, of in self._of.items()}
        return new


class RepeatedCalls:
    """Leaves them out of one choice. A call is held while it repeats an earlier one, letter by letter.

    Where one is left out, those behind it move up in the list that clients make of them. Linear in what comes.
    """

    def __init__(self) -> None:
        self._made: dict[str, list[tuple[str, str]]] = {}
        """Arguments of the calls that were made, bare and as they came, by name."""
        self._now: _Call | None = None
        self._like: Piece | None = None
        """The newest piece with calls."""
        self._places: dict[int | None, int | None] = {}
        """Where calls stand in the client's list, by where they stand in the backend's."""
        self.dropped: list[str] = []
        """Names and arguments of what was left out."""

    @property
    def idle(self) -> bool:
        """Return whether no call has begun, so that what says none may pass."""
        return self._now is None

    def feed(self, piece: Piece) -> list[Piece]:
        """Take in the next piece; what is to be said now."""
        if not (piece.calls or self._now):
            return [piece]
        ends = bool(piece.finish) or piece.done or bool(piece.error)
        if not piece.calls and not ends:
            return [piece]
        parts = [out for part in piece.calls for out in self._feed_part(part)]
        last = self._settled() if ends else []
        if not piece.calls:
            return [*self._saying(last), piece]
        self._like = piece
        if [*parts, *last] == list(piece.calls):
            return [piece]
        rest = replace(piece, frame=b"", bare=True, calls=(*parts, *last))
        return [rest] if _says(rest) else []

    def close(self) -> list[Piece]:
        """Return what is held where the stream ends without a finish reason."""
        return self._saying(self._settled())

    def _saying(self, parts: list[CallPart]) -> list[Piece]:
        return [replace(self._like.blank(), calls=tuple(parts))] if parts and self._like else []

    def _feed_part(self, part: CallPart) -> list[CallPart]:
        now = self._now
        if part.legacy:
            return [part]
        same_call = now is not None and part.index == now.part.index and part.id in ("", now.part.id)
        if now is None or not same_call:
            if now is not None and part.index in self._places and not part.id and not part.name:
                # More of an earlier call, in between: who writes several at a time repeats none knowingly.
                return [*self._settled(), self._placed(part)]
            out = self._settled()
            self._begin(part)
            return [*out, *self._held_or(part)]
        now.pieces.append(part.arguments)
        now.part = replace(now.part, id=now.part.id or part.id, name=now.part.name or part.name)
        return self._held_or(part)

    def _begin(self, part: CallPart) -> None:
        alike = [bare for bare, _ in self._called_before(part)]
        self._now = _Call(part, [part.arguments], alike, held=bool(alike))

    def _held_or(self, part: CallPart) -> list[CallPart]:
        """The newest part, if nothing is held; all that is held once it repeats nothing."""
        now = self._now
        assert now is not None
        if not now.held:
            return [self._placed(part)]
        bare = bare_of(part.arguments)
        now.alike = [each for each in now.alike if each.startswith(bare, now.bare)]
        now.bare += len(bare)
        if now.alike:
            return []
        now.held = False
        return [self._placed(now.whole())]

    def _settled(self) -> list[CallPart]:
        """The call that came last is whole: it is left out, or what is held of it is said."""
        now, self._now = self._now, None
        if now is None:
            return []
        call = now.whole()
        bare = bare_of(call.arguments)
        if now.held and any(bare == each and _equal(call.arguments, made) for each, made in self._called_before(call)):
            self.dropped.append(call.name + call.arguments)
            return []
        self._made.setdefault(call.name, []).append((bare, call.arguments))
        return [self._placed(call)] if now.held else []

    def _called_before(self, part: CallPart) -> list[tuple[str, str]]:
        """Arguments of earlier calls of its name; one without a name, of a kind that is not known here, repeats none."""
        return self._made.get(part.name, [])[-_COMPARED:] if part.name else []

    def _placed(self, part: CallPart) -> CallPart:
        """The part with its place in the client's list."""
        place = self._places.get(part.index, part.index)
        if part.index is not None and part.index not in self._places:
            place = part.index - len(self.dropped)
        self._places[part.index] = place
        return part if place == part.index else replace(part, index=place)


def _says(piece: Piece) -> bool:
    spoken = piece.text or piece.thought or piece.calls or piece.role
    return bool(spoken or piece.finish or piece.usage or piece.prompt_tokens or piece.completion_tokens)

"""Calls that an answer makes twice: same name, same arguments. The first is made, the others are left out.

A model that asks for the same twice in one breath gains nothing by it, and clients run both, or show both for approval.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.core.jsontext import loads
from proxy.core.piece import CallPart, Piece

_COMPARED = 64
"""Calls of one name that another one is compared with: a model that writes more repeats itself for good."""
_LONGEST = 32 * 1024
"""Characters of arguments up to which a call is held: it is compared anew with each piece."""


class RepeatedCalls:
    """Leaves them out of one attempt's stream. A call is held while it repeats an earlier one, letter by letter.

    Where one is left out, those behind it move up in the list that clients make of them.
    """

    def __init__(self) -> None:
        self._made: dict[str, list[str]] = {}
        """Arguments of the calls that were made, by name."""
        self._call: CallPart | None = None
        """The newest one, as far as it came."""
        self._held = False
        self._like = Piece()
        """The newest piece with calls."""
        self._places: dict[int | None, int | None] = {}
        """Where calls stand in the client's list, by where they stand in the backend's."""
        self.dropped: list[str] = []
        """Names and arguments of what was left out."""

    def feed(self, piece: Piece) -> list[Piece]:
        """Take in the next piece; what is to be passed on now."""
        ends = bool(piece.finish) or piece.done or bool(piece.error)
        if not piece.calls:
            return [*self.close(), piece] if ends else [piece]
        self._like = piece
        parts = [out for part in piece.calls for out in self._part(part)]
        parts += self._settled() if ends else ()
        return [piece] if parts == list(piece.calls) else [replace(piece, frame=b"", bare=True, calls=tuple(parts))]

    def close(self) -> list[Piece]:
        """Return what is held where the stream ends."""
        parts = self._settled()
        return [replace(self._like.blank(), calls=tuple(parts))] if parts else []

    def _part(self, part: CallPart) -> list[CallPart]:
        call = self._call
        if call is not None and part.index == call.index and part.id in ("", call.id):
            self._call, before = call.joined(part), []
        else:
            before = self._settled()
            self._call, self._held = part, bool(self._earlier(part))
        if not self._held:
            return [*before, self._placed(part)]
        self._held = self._may_repeat(self._call)
        return before if self._held else [*before, self._placed(self._call)]

    def _settled(self) -> list[CallPart]:
        """The newest call is complete: it is left out, or what is held of it is passed on."""
        call, self._call = self._call, None
        if call is None:
            return []
        if self._held and any(_is_equal(call.arguments, earlier) for earlier in self._earlier(call)):
            self.dropped.append(call.name + call.arguments)
            return []
        self._made.setdefault(call.name, []).append(call.arguments)
        return [self._placed(call)] if self._held else []

    def _earlier(self, call: CallPart) -> list[str]:
        """Arguments of earlier calls of its name; one without a name, of a kind that is not known here, repeats none."""
        return self._made.get(call.name, [])[-_COMPARED:] if call.name else []

    def _may_repeat(self, call: CallPart) -> bool:
        begun = _compact(call.arguments)
        return len(begun) < _LONGEST and any(_compact(earlier).startswith(begun) for earlier in self._earlier(call))

    def _placed(self, part: CallPart) -> CallPart:
        """The part with its place in the client's list."""
        if part.index is not None and part.index not in self._places:
            self._places[part.index] = part.index - len(self.dropped)
        place = self._places.get(part.index, part.index)
        return part if place == part.index else replace(part, index=place)


def _compact(arguments: str) -> str:
    """Arguments without white space: those that differ in it alone may be equal."""
    return "".join(arguments.split())


def _is_equal(one: str, other: str) -> bool:
    """Compare arguments as JSON: inside a text white space has a meaning."""
    try:
        return one == other or bool(loads(one) == loads(other))
    except ValueError:
        return False

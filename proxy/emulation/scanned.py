"""What a scanner finds in an answer: text, calls, and what was meant to be calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

from proxy.emulation.tolerant import NOT_JSON


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer."""

    text: str


class Spot(NamedTuple):
    """Where a form begins: characters of the text before it, and how many of those are an answer's, not a thought's."""

    at: int
    said: int


NOWHERE = Spot(-1, -1)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that can be made."""

    name: str
    arguments: str
    """JSON text of an object."""
    form: str
    repairs: tuple[str, ...] = ()
    place: Spot = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Malformed:
    """What was meant to be one or several calls, and can't be made."""

    text: str
    form: str
    reason: str
    """For the model; it may quote what the model wrote. `cut` if the answer ended in the middle of it."""
    kind: str = field(default=NOT_JSON, compare=False)
    """The kind of that, for counters."""
    tool: str = field(default="", compare=False)
    """As the model wrote its name; empty: it did not."""
    place: Spot = field(default=NOWHERE, compare=False)


Scanned: TypeAlias = Text | Call | Malformed


def texts_joined(pieces: Iterable[Scanned]) -> list[Scanned]:
    """The pieces with texts that follow each other as one."""
    done: list[Scanned] = []
    for is_text, group in groupby(pieces, key=lambda piece: isinstance(piece, Text)):
        if is_text:
            done.append(Text("".join(piece.text for piece in group if isinstance(piece, Text))))
        else:
            done += group
    return done

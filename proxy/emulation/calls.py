"""Pieces that a scanner finds in an answer, and records of what is wrong with calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

from proxy.emulation.repair import NOT_JSON

UNFINISHED = ("length", "content_filter", "error")
"""Finish reasons of answers that the model did not end (OpenAI API, "The chat completion object"; the last is OpenRouter's)."""
EXAMPLE_SHOWN = "example"
MOST_FAULTS = 64
"""Calls of one answer that are looked at."""
TOOL_NAME = re.compile(r"[\w.:/-]{1,64}")
_UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer."""

    text: str


class Spot(NamedTuple):
    """Start of a form: characters of the text before it, and how many of those belong to the answer, not to thoughts."""

    at: int
    answered: int


NOWHERE = Spot(-1, -1)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that can be made; `arguments` is JSON text of an object."""

    name: str
    arguments: str
    form: str
    repaired: bool = False
    place: Spot = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Malformed:
    """Text that was meant to be one or several calls, and can't be made."""

    text: str
    form: str
    reason: str
    """For the model; it may quote what the model wrote. `cut` if the answer ended in the middle of it."""
    kind: str = field(default=NOT_JSON, compare=False)
    """For counters."""
    tool: str = field(default="", compare=False)
    """Name as the model wrote it; empty: it did not."""
    place: Spot = field(default=NOWHERE, compare=False)


Scanned: TypeAlias = Text | Call | Malformed

NO_CALL = Malformed("", "none", "no tool was called, and one has to be", "no_call")
"""Stands at the end of an answer without the call that `tool_choice` demands."""


def texts_joined(pieces: Iterable[Scanned]) -> list[Scanned]:
    """The pieces with texts that follow each other as one."""
    done: list[Scanned] = []
    for is_text, group in groupby(pieces, key=lambda piece: isinstance(piece, Text)):
        if is_text:
            done.append(Text("".join(piece.text for piece in group if isinstance(piece, Text))))
        else:
            done += group
    return done


@dataclass(slots=True)
class FormCount:
    """Outcomes of the calls that were written in one form."""

    called: int = 0
    repaired: int = 0
    """Of those that were called."""
    malformed: int = 0


@dataclass(frozen=True, slots=True)
class CallFault:
    """A fault of a call, for counters and logs: never what the model wrote, but for a tool's name that looks like one."""

    reason: str
    """`cut`, `not_json`, `unknown_tool`, `wrong_arguments`, `no_call` where one had to be, or `example`: shown, not made."""
    tool: str
    form: str
    """In which it was written, or `native`."""


def fault(reason: str, tool: str, form: str) -> CallFault:
    """A fault of a call whose name is what the model wrote."""
    return CallFault(reason, tool if TOOL_NAME.fullmatch(tool) else _UNKNOWN if tool else "", form)


def fault_of(found: Call | Malformed) -> CallFault:
    """A fault of what was found in a text; of a well-formed call, that it is shown."""
    if isinstance(found, Call):
        return fault(EXAMPLE_SHOWN, found.name, found.form)
    return fault(found.kind, found.tool, found.form)

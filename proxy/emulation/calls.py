"""Calls that are found in the text of an answer, and records of what is wrong with calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.emulation.values import NOT_JSON

EXAMPLE_SHOWN = "example"
TOOL_NAME = re.compile(r"[\w.:/-]{1,64}")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that can be made; `arguments` is JSON text of an object."""

    name: str
    arguments: str
    form: str
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Malformed:
    """Text that was meant to be one or several calls, and can't be made."""

    form: str
    reason: str
    """For the model; it may quote what the model wrote. `cut` if the answer ended in the middle of it."""
    kind: str = field(default=NOT_JSON, compare=False)
    """For counters."""
    tool: str = field(default="", compare=False)
    """Name as the model wrote it; empty: it did not."""


class CallSpan(NamedTuple):
    """Part of an answer that is no text: from the first character up to the one behind it."""

    start: int
    end: int
    found: tuple[Call, ...] | Malformed | None = ()
    """No calls: white space and marks around calls; None: the same behind one that can't be made, which stays text."""
    answered: int = 0
    """Characters of the answer before it, without thoughts."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Calls in it that can be made."""
        return self.found if isinstance(self.found, tuple) else ()


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
    return CallFault(reason, tool if TOOL_NAME.fullmatch(tool) else "?" if tool else "", form)

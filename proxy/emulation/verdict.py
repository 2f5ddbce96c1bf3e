"""What became of the calls in an answer, and what is to be said about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from proxy.emulation.arguments import CUT, Unreadable
from proxy.emulation.forms.base import RawCall
from proxy.emulation.offer import Offer
from proxy.emulation.protocol import EXAMPLE
from proxy.emulation.scanned import Call, Malformed
from proxy.emulation.scanner import CallScanner
from proxy.emulation.tolerant import NOT_JSON, UNKNOWN_TOOL
from proxy.neutral.piece import CallPart

UNFINISHED = ("length", "content_filter", "error")
"""Finish reasons of answers that the model did not end (OpenAI API, "The chat completion object"; the last is OpenRouter's)."""
_CUT = "it was cut off before its end"
_TOLD = 3
_LONGEST = 400


@dataclass(slots=True)
class FormCount:
    """What became of the calls that were written in one form."""

    called: int = 0
    repaired: int = 0
    """Of those that were called."""
    malformed: int = 0


NO_CALL = Malformed("", "none", "no tool was called, and one has to be", "no_call")
"""Stands at the end of an answer without the call that `tool_choice` demands."""


def complaint(malformed: Sequence[Malformed]) -> str:
    """What to tell the model as a user message, so that it writes its calls once more."""
    reasons = (_CUT if call.reason == CUT else call.reason[:_LONGEST] for call in malformed)
    listed = "; ".join(list(dict.fromkeys(reasons))[:_TOLD])
    return (
        f"The tool call could not be made: {listed}. Write it again, complete and corrected, and nothing else:\n"
        f"{EXAMPLE}"
    )


EXAMPLE_SHOWN = "example"
MOST_FAULTS = 64
"""Calls of one answer that are looked at."""
NATIVE = "native"
"""Stands for the form of a call that the backend told as one."""
_TOOL = re.compile(r"[\w.:/-]{1,64}")
_UNTOLD = "?"


@dataclass(frozen=True, slots=True)
class CallFault:
    """What is wrong with a call, for counters and logs: never what the model wrote, but for a tool's name that looks like one."""

    reason: str
    """`cut`, `not_json`, `unknown_tool`, `wrong_arguments`, `no_call` where one had to be, or `example`: shown, not made."""
    tool: str
    form: str
    """In which it was written, or `native`."""


def fault(reason: str, tool: str, form: str) -> CallFault:
    """A fault of a call whose name is what the model wrote."""
    return CallFault(reason, tool if _TOOL.fullmatch(tool) else _UNTOLD if tool else "", form)


def fault_of(found: Call | Malformed) -> CallFault:
    """Of a call that was found in a text; of one that is well-formed, that it is shown."""
    if isinstance(found, Call):
        return fault(EXAMPLE_SHOWN, found.name, found.form)
    return fault(found.kind, found.tool, found.form)


def strangers_of(scanner: CallScanner) -> list[CallFault]:
    """Of calls of what is no tool, which stay text, since this was asked last."""
    return [fault(UNKNOWN_TOOL, name, form) for name, form in scanner.strangers()]


def faults_of(calls: Iterable[CallPart], offer: Offer, *, cut: bool) -> list[CallFault]:
    """Of calls that the backend told as such. `cut`: the answer ended for want of room."""
    found: list[CallFault] = []
    for call in islice(calls, MOST_FAULTS):
        if not call.name:
            continue
        try:
            offer.read(RawCall(call.name, call.arguments), cut=cut)
        except Unreadable as wrong:
            found.append(fault(CUT if cut and wrong.kind == NOT_JSON else wrong.kind, call.name, NATIVE))
    return found

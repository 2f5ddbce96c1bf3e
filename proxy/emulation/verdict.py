"""What became of the calls in an answer, and what is to be said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.emulation.arguments import CUT
from proxy.emulation.protocol import EXAMPLE
from proxy.emulation.scanner import Malformed

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


NO_CALL = Malformed("", "none", "no tool was called, and one has to be")
"""Stands at the end of an answer without the call that `tool_choice` demands."""


def complaint(malformed: Sequence[Malformed]) -> str:
    """What to tell the model as a user message, so that it writes its calls once more."""
    reasons = (_CUT if call.reason == CUT else call.reason[:_LONGEST] for call in malformed)
    listed = "; ".join(list(dict.fromkeys(reasons))[:_TOLD])
    return (
        f"The tool call could not be made: {listed}. Write it again, complete and corrected, and nothing else:\n"
        f"{EXAMPLE}"
    )

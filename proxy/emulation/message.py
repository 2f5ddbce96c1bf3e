"""Answers that come whole, and what to say to a model whose calls could not be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.emulation.arguments import CUT
from proxy.emulation.offer import Offer
from proxy.emulation.protocol import EXAMPLE
from proxy.emulation.scanner import Call, CallScanner, Malformed
from proxy.emulation.stream import NO_CALL, UNFINISHED, FormCount, count, ended_with, has_ended, missing

_TOLD = 3
_LONGEST = 400


def emulated_message(
    message: Mapping[str, Any], finish: Any, offer: Offer, make_id: Callable[[], str]
) -> tuple[dict[str, Any], Any, list[Malformed], dict[str, FormCount]]:
    """The message and its finish reason as a backend with tools would send them, calls that can't be made, counts by form.

    What can't be made stays in the content, where the model wrote it. Content that is no string stays as it is.
    """
    content = message.get("content")
    if not isinstance(content, str):
        return dict(message), finish, [], {}
    scanner = CallScanner(offer)
    pieces = [*scanner.feed(content), *scanner.close(cut=finish in UNFINISHED)]
    if has_ended(finish) and missing(offer, pieces):
        pieces.append(NO_CALL)
    stats: dict[str, FormCount] = {}
    for piece in pieces:
        count(stats, piece)
    malformed = [piece for piece in pieces if isinstance(piece, Malformed)]
    calls = [piece for piece in pieces if isinstance(piece, Call)]
    if not calls:
        return dict(message), finish, malformed, stats
    text = "".join(piece.text for piece in pieces if not isinstance(piece, Call))
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    made: dict[str, Any] = {**message, "content": text or None}
    if offer.legacy:
        made["function_call"] = functions[0]
    else:
        made["tool_calls"] = [{"id": make_id(), "type": "function", "function": f} for f in functions]
    return made, ended_with(finish, offer), malformed, stats


def complaint(malformed: Sequence[Malformed]) -> str:
    """What to tell the model as a user message, so that it writes its calls once more."""
    reasons = dict.fromkeys(_reason(call) for call in malformed)
    listed = "; ".join(list(reasons)[:_TOLD])
    return (
        f"The tool call could not be made: {listed}. Write it again, complete and corrected, and nothing else:\n"
        f"{EXAMPLE}"
    )


def _reason(call: Malformed) -> str:
    return "it was cut off before its end" if call.reason == CUT else call.reason[:_LONGEST]

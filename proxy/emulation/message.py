"""Answers that come whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from proxy.emulation.offer import Offer
from proxy.emulation.protocol import call_text
from proxy.emulation.scanner import Call, CallScanner, Malformed
from proxy.emulation.verdict import NO_CALL, UNFINISHED, FormCount, count, ended_with, has_ended, missing
from proxy.neutral.piece import CallPart, Piece


@dataclass(slots=True)
class EmulatedMessage:
    """A choice of a whole answer, as a backend with tools would send it."""

    piece: Piece
    """The same object if nothing was found in it. What can't be made stays in the text, where the model wrote it."""
    malformed: list[Malformed] = field(default_factory=list)
    """Calls that can't be made."""
    stats: dict[str, FormCount] = field(default_factory=dict)

    @property
    def before(self) -> str:
        """The text up to a call that can't be made; all of it where there is none."""
        text, wrong = self.piece.text, self.malformed[0].text if self.malformed else ""
        return text[: text.find(wrong)].rstrip() if wrong else text

    @property
    def instead(self) -> str:
        """The text from there on."""
        return self.piece.text[len(self.before) :]

    @property
    def written(self) -> str:
        """What the model is shown of its calls, right and wrong."""
        made = (call_text(call.name, call.arguments) for call in self.piece.calls)
        return "\n".join(filter(None, (*made, self.instead)))


def emulated_message(piece: Piece, offer: Offer, make_id: Callable[[], str]) -> EmulatedMessage:
    """Read the calls in a choice's text."""
    if piece.calls and not piece.text:
        return EmulatedMessage(piece)
    finish = piece.finish
    scanner = CallScanner(offer)
    found = [*scanner.feed(piece.text), *scanner.close(cut=finish in UNFINISHED)]
    if has_ended(finish) and missing(offer, found):
        found.append(NO_CALL)
    made = EmulatedMessage(piece, [each for each in found if isinstance(each, Malformed)])
    for each in found:
        count(made.stats, each)
    calls = [each for each in found if isinstance(each, Call)]
    if calls:
        text = "".join(each.text for each in found if not isinstance(each, Call))
        parts = [
            CallPart(call.name, call.arguments, legacy=True)
            if offer.legacy
            else CallPart(call.name, call.arguments, id=make_id(), index=index)
            for index, call in enumerate(calls)
        ]
        told = tuple(parts[:1] if offer.legacy else parts)
        made.piece = replace(piece, text=text, calls=told, finish=ended_with(finish, offer), bare=True)
    return made

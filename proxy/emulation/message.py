"""Answers that come whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from proxy.emulation.offer import Offer
from proxy.emulation.protocol import call_text
from proxy.emulation.scanned import Malformed
from proxy.emulation.stream import EmulatedStream
from proxy.emulation.verdict import CallFault, FormCount
from proxy.neutral.piece import Piece


@dataclass(slots=True)
class EmulatedMessage:
    """A choice of a whole answer, as a backend with tools would send it."""

    piece: Piece
    """The same object if nothing was found in it. What can't be made stays in the text, where the model wrote it."""
    before: str
    """The text up to a call that can't be made; all of it where there is none."""
    malformed: list[Malformed] = field(default_factory=list)
    """Calls that can't be made."""
    stats: dict[str, FormCount] = field(default_factory=dict)
    faults: list[CallFault] = field(default_factory=list)
    strangers: list[CallFault] = field(default_factory=list)
    """Those of them that stay in the text, and are not found again where the answer is gone on with."""
    leaked: int = 0
    """None: calls are meant to be text here."""

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
    """Read the calls in a choice's text, as in a stream of one piece."""
    if piece.calls and not piece.text:
        return EmulatedMessage(piece, "")
    stream = EmulatedStream(offer, make_id, len)
    sent = stream.feed(Piece(text=piece.text, finish=piece.finish, choice=True))
    sent += stream.feed(Piece(done=True))
    said = [*sent, *stream.give_up()]
    if calls := tuple(call for each in said for call in each.calls):
        text = "".join(each.text for each in said)
        finish = next((each.finish for each in said if each.finish), None)
        piece = replace(piece, text=text, calls=calls, finish=finish, bare=True)
    wrong = any(each.text for each in stream.malformed)
    before = "".join(each.text for each in sent).rstrip() if wrong else piece.text
    return EmulatedMessage(piece, before, stream.malformed, stream.stats, stream.faults, stream.strangers)

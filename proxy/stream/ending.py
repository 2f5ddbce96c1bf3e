"""Ends of an answer for its client: as the backend ended it, or in Spillway's words where it said nothing of its end."""

from __future__ import annotations

from proxy.core.dialect import Writer
from proxy.stream.answer import Answer
from proxy.stream.outlet import Outlet
from proxy.stream.watch import Watch

_EARLY = "The backend ended the answer early."
_NOTHING = "The backend ended its answer without having said anything."


class Ending:
    """Judges the end of an attempt that nothing comes after.

    A finish reason is the end whatever follows it. Without one an end mark is believed, because a server that breaks down
    does not write it; a body that just ends is not, unless the window is full.
    """

    def __init__(self, watch: Watch, answer: Answer, writer: Writer, outlet: Outlet) -> None:
        self._watch = watch
        self._answer = answer
        self._writer = writer
        self._outlet = outlet
        self.supplied = False
        """Whether the finish reason is Spillway's own, because the backend gave none."""

    @property
    def lacking(self) -> bool:
        """Return whether nothing has told yet why the running attempt ends."""
        attempt = self._answer.attempts[-1]
        return attempt.finish is None and not attempt.errored

    @property
    def why(self) -> str:
        """Return what to tell of an answer that the backend ended without a reason."""
        return _EARLY if self._answer.begun else _NOTHING

    def marked(self, out: list[bytes]) -> None:
        """An end mark came behind the finish reason: what waits goes out, if it is not the window's doing."""
        self._outlet.template.forget()
        cut = self._answer.attempt.finish == "length" and self._watch.may_be_full(self._answer)
        if not (cut or self._outlet.rewriting or self._outlet.withholding):
            self._outlet.finish(out)

    def restarted(self, out: list[bytes], *, marked: bool) -> bool:
        """Return whether an attempt that has ended did not go on with the answer: it told it again, or said nothing at all."""
        attempt, outlet = self._answer.attempt, self._outlet
        if not outlet.rewriting or attempt.errored:
            return False
        ended = attempt.finish == "stop" or (self.lacking and marked)
        return not outlet.flush(out) or (outlet.expected and ended and not attempt.spoke)

    def understood(self, *, marked: bool) -> bool:
        """Supply the finish reason that is lacking, if it can be told; `marked`: an end mark came."""
        answer, attempt = self._answer, self._answer.attempt
        if self._watch.outgrown(answer):
            attempt.finish = "length"
        elif marked and attempt.spoke and (not attempt.calling or answer.calls.callable):
            attempt.finish = answer.calls.finish if attempt.calling else "stop"
        self.supplied = attempt.finish is not None
        return self.supplied

    def complete(self, out: list[bytes], *, marked: bool) -> bytes:
        """Return what is left to send of an attempt that has ended, in good order or with an error that was passed on."""
        attempt, outlet = self._answer.attempt, self._outlet
        unseen = attempt.searching or self._watch.remaining_tokens(self._answer) != 0
        if attempt.withheld and attempt.finish == "length" and unseen:
            outlet.take_back()  # half a call, and no more room for a whole one
            return outlet.final("length")
        outlet.release(out)
        if self._watch.cut_after_calls(self._answer):
            return outlet.final(self._answer.calls.finish)
        if outlet.rewriting or self.supplied:
            return outlet.final(attempt.finish or "stop")
        outlet.finish(out)
        return b"" if marked else outlet.counted() + self._writer.end()

    def here(self, out: list[bytes]) -> bytes:
        """Return what is left to send of an answer that is wanted no further: of a call that was begun nobody takes half for all."""
        self._outlet.settle(out)
        return self._outlet.final("length" if self._answer.attempt.calling else "stop")

"""The one record of a request's whole life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.telemetry import events as e

CLIENT_LEFT = 499
"""Status of a request whose client left before it was answered (nginx's word for it)."""
FORWARDED = "forwarded"
PASSED = "passed"
"""What was done to a request that is not managed."""
COMPACTING = "compacting"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of one request. Only its journal writes it; it is complete when the request has ended.

    Counts are over the whole request. `first_byte` and `seconds` are since it was received.
    """

    id: str
    dialect: str = ""
    backend: str = ""
    model: str = ""
    credential: str = ""
    """A digest."""
    status: int = 0
    action: str = PASSED
    kind: str = ""
    """Of the newest reduction that its history went through; empty: none."""
    tools: str = ""
    """`emulated`, or nothing."""
    window: int | None = None
    tokens_before: int | None = None
    """Prompt tokens as they were when the request had been read, by the best estimate."""
    tokens_after: int | None = None
    """The same as they were sent last."""
    attempts: int = 0
    compactions: int = 0
    compaction_seconds: float = 0.0
    summaries: int = 0
    refusals: int = 0
    pauses: int = 0
    resumes: int = 0
    unfinished: bool = False
    """It ended for want of room, with more to say."""
    first_byte: float | None = None
    seconds: float = 0.0
    usage: Mapping[str, Any] | None = None
    """Tokens of the whole answer, as the client was or would have been told."""
    error: str | None = None
    """Code of the error that the client got; None: none."""

    @property
    def fill(self) -> float | None:
        """Prompt tokens as a fraction of the window."""
        if self.window is None or self.tokens_after is None:
            return None
        return self.tokens_after / self.window

    @property
    def handled(self) -> bool:
        """Whether more was done than to forward it."""
        return bool(self.compactions or self.pauses or self.attempts > 1)

    @property
    def plain(self) -> bool:
        """Whether it was forwarded, or passed on, and answered, and nothing else happened."""
        eventful = self.handled or self.refusals or self.unfinished
        return not eventful and self.error is None and self.status < 400

    def note(self, event: e.Event, elapsed: float) -> None:
        """Take in an event, `elapsed` seconds after the request was received."""
        kind = type(event)
        if (noted := _NOTED.get(kind)) is not None:
            noted(self, event)
        elif (count := _COUNTS.get(kind)) is not None:
            setattr(self, count, getattr(self, count) + 1)
        elif kind is e.FirstByte and self.first_byte is None:
            self.first_byte = elapsed

    def _received(self, event: e.Received) -> None:
        self.dialect, self.credential = event.dialect, event.credential

    def _routed(self, event: e.Routed) -> None:
        self.backend, self.model = event.backend, event.model

    def _measured(self, event: e.Measured) -> None:
        self.window, self.tokens_after, self.tools = event.window, event.tokens, event.tools
        if self.tokens_before is None:
            self.tokens_before, self.action = event.tokens, FORWARDED

    def _compacting(self, _: e.Compacting) -> None:
        self.action = COMPACTING

    def _compacted(self, event: e.Compacted) -> None:
        if event.gained:
            self.kind = event.kind
            self.compactions += 1
        self.action = self.kind or FORWARDED
        self.compaction_seconds += event.seconds

    def _out_of_room(self, _: e.OutOfRoom) -> None:
        self.unfinished = True


_NOTED: dict[type, Callable[[Outcome, Any], None]] = {
    e.Received: Outcome._received,  # noqa: SLF001 - the table of this very class
    e.Routed: Outcome._routed,  # noqa: SLF001 - as above
    e.Measured: Outcome._measured,  # noqa: SLF001 - as above
    e.Compacting: Outcome._compacting,  # noqa: SLF001 - as above
    e.Compacted: Outcome._compacted,  # noqa: SLF001 - as above
    e.OutOfRoom: Outcome._out_of_room,  # noqa: SLF001 - as above
}
"""What is kept of an event."""
_COUNTS: dict[type, str] = {
    e.Summarised: "summaries",
    e.Sent: "attempts",
    e.Refused: "refusals",
    e.Paused: "pauses",
    e.Resumed: "resumes",
}
"""Events of which only the number is kept, and the field that keeps it."""

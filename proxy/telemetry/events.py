"""Values that outcomes record of a request. Tokens and seconds are the units throughout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One thing that happened to a request. Tokens and seconds are the units of its fields."""

    at: float
    """Seconds on the clock of the telemetry."""
    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """Result of one compaction. Tokens are those of the history, or of the text that an answer is resumed from."""

    kind: str
    results_cleaned: int
    """Tool results that were capped, masked or left out."""
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    ratio: float
    """Tokens after it as a fraction of those before."""
    seconds: float


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A tool call that was not made: `reason` as in `proxy.emulation.verdict.CallFault`, `provider` the kind of backend.

    `tool` is a name that the model wrote; `form` in which the call was written, `native` where the backend reported it.
    """

    reason: str
    tool: str
    form: str
    provider: str

"""What a measurement gives, and what it carries along so that a report can be learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from proxy.backends.profile import ModelKey
from proxy.counting.features import Vector
from proxy.counting.verdict import Expectation

EstimateSource: TypeAlias = Literal["backend", "anchored", "exact", "calibrated", "coarse"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a report teaches of a prompt that was predicted: `x` are the features, `vectorizer` names what made them."""

    vectorizer: str
    x: Vector
    expected: Expectation
    learnable: bool


@dataclass(frozen=True, slots=True)
class Ticket:
    """What `Meter.observe` needs to learn from a report; opaque to callers.

    `scope`, `system_digest` and the last of `digests` (of every prefix of the messages after the system's) are where the
    count will be an anchor, `system` the features of the system messages. There is no `lesson` where all of it was counted.
    """

    key: ModelKey
    scope: bytes
    system_digest: bytes
    digests: Sequence[bytes]
    system: Vector
    lesson: Lesson | None

    @property
    def digest(self) -> bytes:
        """Digest of all messages; b"" when there is none but the system's."""
        return self.digests[-1] if self.digests else b""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Prompt tokens of a request.

    `tokens` is the best estimate, `upper` a bound that holds in at least 98.5 % of cases: what could
    overflow is decided by it. `source` says what the figures stand on: `backend` (a count of this very
    prompt), `anchored` (a count of its beginning and a prediction of the rest), `exact` (the model's own
    vocabulary), `calibrated` (the general vocabulary with learned weights) or `coarse` (byte classes, while
    no vocabulary is loaded). `fixed` is the part of `tokens` that the leading system messages, tools and all that is no
    message take, as predicted.
    """

    tokens: int
    upper: int
    source: EstimateSource
    fixed: int
    ticket: Ticket = field(repr=False, compare=False)

    @property
    def expected(self) -> Expectation:
        """What is expected of a report."""
        lesson = self.ticket.lesson
        return Expectation(self.tokens, 0.0, 0.0, 0.0, trusted=True) if lesson is None else lesson.expected

    @property
    def counted(self) -> bool:
        """Whether the backend counted this very prompt on request, rather than reported it beside an answer."""
        return self.source == "backend" and self.upper == self.tokens

    def confirmed_by(self, reported: int) -> bool:
        """Whether a report says of this very prompt what the backend has said of it before."""
        return reported == self.tokens and self.source == "backend"

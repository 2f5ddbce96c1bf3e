"""Judge a reported token count: believable, corrupt, or the sign of a prompt that the backend cut."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

GATE = 0.35
SLACK = 32.0
"""Tokens by which any report may be off without being corrupt: templates are not linear."""
MOST = 0.8
"""Share of the whole estimate from which a report is the count of this prompt, however little it grew."""
HIGHEST = 3.0
"""Times its prediction that a prompt may take: an unknown script can."""
HIDDEN = 512
"""Tokens that a server may add to each prompt (its template, a system prompt of its own) and nobody predicts."""
APART = 0.05
"""Share of its estimate by which another prompt has to differ to bear a report out."""
HALF_WINDOW_SLACK = 4
CUT_RATIO = 0.6
CUT_LEAST = 512
"""Tokens that must be missing before a report is called a cut."""
CONSISTENT = 0.2
"""Relative difference of two low reports of one conversation up to which they bear each other out."""
LEAST_CONSISTENT = 0.25
"""Share of the estimate below which no low report is borne out."""


class Observation(Enum):
    """What a reported token count was taken for."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    """Not believed: it taught nothing and became no anchor."""
    CUT = "cut"
    """The backend seems to have dropped a part of the prompt; it taught nothing."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What was expected of a report, in tokens.

    `anchor` is what the prefix took by an earlier report (0: none), `predicted` what follows it,
    `deviation` the standard deviation of `predicted`, `unsure` the part of it that a backend may leave out
    for good reason (tools it ignores, images it can't see, reasoning its template drops), `trusted` whether
    enough is known of the model to call a low report a cut.
    """

    anchor: int
    predicted: float
    deviation: float
    unsure: float
    trusted: bool

    @property
    def lowest(self) -> float:
        """What the prompt takes by the lowest reading of the estimate."""
        return self.anchor + self.predicted - self.unsure - 2.0 * self.deviation


def verdict_on(
    expected: Expectation, reported: int, window: int | None, *, may_cut: bool = True
) -> Observation:
    """Tell what a report of `reported` prompt tokens is.

    An estimate is no evidence against a backend: one that refuses what is too long for it does not cut, and a prompt
    that fits by any reading was not cut.

    Args:
        expected: what was expected of it.
        reported: what the backend says.
        window: in tokens, as the backend itself tells it; None where it tells none.
        may_cut: whether it is a backend that cuts prompts without a word.
    """
    if reported <= 0 or (window is not None and reported > window):
        return Observation.REJECTED
    cut = may_cut and (window is None or expected.lowest > window)
    if believable(expected, reported):
        return Observation.CUT if cut and _is_half(reported, window) else Observation.ACCEPTED
    return Observation.CUT if cut and _is_cut(expected, reported, window) else Observation.REJECTED


def believable(expected: Expectation, reported: int) -> bool:
    """Whether a report can be the count of the whole prompt.

    A high one is believed within what an unknown script or a hidden system prompt can cost, a low one within the gate
    around the predicted increment, or when most of the prompt is in it; none that falls where the prompt grew.
    """
    delta, predicted = reported - expected.anchor, expected.predicted
    if delta >= predicted - SLACK:
        return delta <= HIGHEST * max(0.0, predicted + 2.0 * expected.deviation) + HIDDEN
    if delta < 0 < predicted:
        return False
    if expected.anchor and reported >= MOST * (expected.anchor + predicted):
        return True
    return delta > 0 and max(0.0, predicted - expected.unsure) / delta < 1.0 + gate(expected)


@dataclass(frozen=True, slots=True)
class Dispute:
    """A report that was not believed, and the estimate it was held against; tokens."""

    digest: bytes
    reported: int
    estimated: int

    def borne_out(self, reported: int, estimated: int) -> bool:
        """Whether the report of a prompt of another length is off by the same ratio, or is too high by as much.

        Corrupt reports stay the same, or tell only what was not cached; those of a model that takes a script otherwise, or
        of a server with a system prompt of its own, grow with the prompt.
        """
        grown, expected = reported - self.reported, estimated - self.estimated
        if abs(expected) < max(SLACK, APART * self.estimated):
            return False
        ratio, then = grown / expected, self.reported / max(1, self.estimated)
        if then > 1.0 and reported > estimated:
            return 1.0 / HIGHEST <= ratio <= HIGHEST or abs(ratio - then) <= CONSISTENT * then
        return then >= LEAST_CONSISTENT and abs(ratio - then) <= CONSISTENT * then


def gate(expected: Expectation) -> float:
    """Relative error of the increment up to which it is within what is known."""
    if expected.predicted <= 0:
        return GATE
    return max(GATE, 4.0 * expected.deviation / expected.predicted)


def _is_half(reported: int, window: int | None) -> bool:
    """Ollama's truncation leaves half of the window and 2 tokens, whatever the prompt was."""
    return window is not None and abs(reported - (window // 2 + 2)) <= HALF_WINDOW_SLACK


def _is_cut(expected: Expectation, reported: int, window: int | None) -> bool:
    if _is_half(reported, window):
        return True
    least = expected.lowest
    if not (expected.trusted or expected.anchor) or least - reported < CUT_LEAST:
        return False
    if expected.anchor and _is_increment(expected, reported):
        return False  # only the part that was not cached was reported
    return reported < CUT_RATIO * least


def _is_increment(expected: Expectation, reported: int) -> bool:
    room = max(2.0 * SLACK, GATE * expected.predicted, 4.0 * expected.deviation + expected.unsure)
    return abs(reported - expected.predicted) <= room

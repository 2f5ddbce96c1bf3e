"""Judge a reported token count: believable, corrupt, or the sign of a prompt that the backend cut."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

GATE = 0.35
"""Relative error of the increment up to which a low report is believed."""
SLACK = 32.0
"""Tokens by which any report may be off without being corrupt: templates are not linear."""
MOST = 0.8
"""Share of the estimate from which a report is the count of this prompt, however little it grew."""
HIGHEST = 3.0
"""Times its prediction that a prompt may take: an unknown script can."""
HIDDEN = 512
"""Tokens that a server may add to each prompt (its template, a system prompt of its own) and nobody predicts."""
CUT_RATIO, CUT_LEAST = 0.6, 512
"""Share of the lowest reading below which a report shows a cut, and tokens that must be missing."""
DIFFERENT = 0.05
"""Share of its estimate by which another prompt has to differ to bear a report out."""
CONSISTENT = 0.2
"""Relative difference of the ratios of two disputed reports up to which they bear each other out."""
LEAST_CONSISTENT = 0.25
"""Share of the estimate below which no low report is borne out."""


class Observation(Enum):
    """Verdict on a reported token count."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    """Not believed: it taught nothing and became no anchor."""
    CUT = "cut"
    """The backend seems to have dropped a part of the prompt; it taught nothing."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Tokens expected of a report: `anchor` by an earlier report of the prefix (0: none), and `predicted` for what follows.

    `predicted` may be off by `margin`; `trusted` where enough is known of the model to call a low report a cut.
    """

    anchor: int
    predicted: float
    margin: float
    trusted: bool

    @property
    def lowest(self) -> float:
        """Tokens of the prompt by the lowest reading of the estimate."""
        return self.anchor + self.predicted - self.margin


def verdict_on(expected: Expectation, reported: int, window: int | None, *, may_cut: bool = True) -> Observation:
    """Judge a report of `reported` prompt tokens.

    An estimate is no evidence against a backend: one that refuses what is too long for it does not cut, and a prompt
    that fits by its lowest reading was not cut.

    Args:
        expected: what was expected of it.
        reported: what the backend says.
        window: in tokens, as the backend itself tells it; None where it tells none.
        may_cut: whether it is a backend that cuts prompts in silence.
    """
    if reported <= 0 or (window is not None and reported > window):
        return Observation.REJECTED
    believed = _believable(expected, reported)
    if may_cut and (window is None or expected.lowest > window):
        # Ollama leaves half of the window and 2 tokens, whatever the prompt was.
        half = window is not None and abs(reported - (window // 2 + 2)) <= 4
        if half or (not believed and _is_cut(expected, reported)):
            return Observation.CUT
    return Observation.ACCEPTED if believed else Observation.REJECTED


def _believable(expected: Expectation, reported: int) -> bool:
    """Say whether a report can be the count of the whole prompt.

    A high one is believed within what an unknown script or a hidden system prompt can cost, a low one within the gate
    or the margin of the predicted increment, or when most of the prompt is in it; none that falls where the prompt grew.
    """
    grown, predicted, margin = reported - expected.anchor, expected.predicted, expected.margin
    if grown >= predicted - SLACK:
        return grown <= HIGHEST * max(0.0, predicted + margin) + HIDDEN
    if grown < 0 < predicted:
        return False
    if expected.anchor and reported >= MOST * (expected.anchor + predicted):
        return True
    return grown > 0 and predicted <= max((1.0 + GATE) * grown, grown + margin)


def _is_cut(expected: Expectation, reported: int) -> bool:
    missing = expected.lowest - reported
    if not (expected.trusted or expected.anchor) or missing < CUT_LEAST:
        return False
    room = max(2.0 * SLACK, GATE * expected.predicted, expected.margin)
    if expected.anchor and abs(reported - expected.predicted) <= room:
        return False  # only the part that was not cached was reported
    return reported < CUT_RATIO * expected.lowest


@dataclass(frozen=True, slots=True)
class Dispute:
    """A report that was not believed, and the estimate it was held against; tokens."""

    digest: bytes
    reported: int
    estimated: int

    def borne_out(self, reported: int, estimated: int) -> bool:
        """Say whether the report of a prompt of another length is off by the same ratio, or is too high by as much.

        Corrupt reports stay the same, or tell only what was not cached; those of a model that takes a script otherwise, or
        of a server with a system prompt of its own, grow with the prompt.
        """
        grown, expected = reported - self.reported, estimated - self.estimated
        if abs(expected) < max(SLACK, DIFFERENT * self.estimated):
            return False
        ratio, before = grown / expected, self.reported / max(1, self.estimated)
        if before > 1.0 and reported > estimated and 1.0 / HIGHEST <= ratio <= HIGHEST:
            return True
        return before >= LEAST_CONSISTENT and abs(ratio - before) <= CONSISTENT * before

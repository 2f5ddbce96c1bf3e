"""Limits for pruning: the standard ones, and `local` ones for small windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Policy = Literal["auto", "standard", "local"]

SMALL_WINDOW = 16_384
"""Tokens up to which `auto` takes the local limits for pruning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLimits:
    """How large one tool result may be."""

    lines: int
    line_characters: int
    output_characters: int
    """Characters of what a command printed."""
    entries: int
    """Of a directory."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneLimits:
    """What pruning may leave. Token figures are also capped by shares of the window."""

    protect_newest: int
    """Tokens of the newest tool output that are never masked."""
    minimum_gain: int
    """Tokens a pruning batch or a summary has to save to be worth losing the prefix cache."""
    message: float = math.inf
    """Tokens above which a message that is not of the newest turn is cut in its middle."""
    worth: float = 0.0
    """Tokens from which a part of the history is worth asking a model for a summary; less is put in short by code."""
    results: ResultLimits | None = None
    """What a tool result is capped to; None: results are not capped."""
    answer_cap: int | None = None
    """Completion tokens asked for when the client sets no bound."""


STANDARD = PruneLimits(
    protect_newest=40_000,
    minimum_gain=20_000,
    results=ResultLimits(
        lines=2_000, line_characters=2_000, output_characters=5_000, entries=50, tokens=40_000
    ),
)
LOCAL = PruneLimits(
    protect_newest=2_000,
    minimum_gain=500,
    results=ResultLimits(lines=200, line_characters=500, output_characters=1_500, entries=20, tokens=2_000),
    answer_cap=1_000,
)

_PROTECT_SHARE = 1 / 5
_GAIN_SHARE = 1 / 10
_RESULT_SHARE = 1 / 5
_MESSAGE_SHARE = 1 / 6
_WORTH_SHARE = 1 / 5


def limits_for(policy: Policy, window: int) -> PruneLimits:
    """The limits in force for a window of so many tokens."""
    if policy == "local":
        chosen = LOCAL
    elif policy == "auto" and window <= SMALL_WINDOW:
        chosen = replace(LOCAL, answer_cap=None)
    else:
        chosen = STANDARD
    results = chosen.results
    if results is not None:
        results = replace(results, tokens=min(results.tokens, int(window * _RESULT_SHARE)))
    return replace(
        chosen,
        results=results,
        protect_newest=min(chosen.protect_newest, int(window * _PROTECT_SHARE)),
        message=window * _MESSAGE_SHARE,
        worth=window * _WORTH_SHARE,
        minimum_gain=min(chosen.minimum_gain, int(window * _GAIN_SHARE)),
    )

"""Limits for pruning: the standard ones, and `local` ones for small windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType

from proxy.core.settings import Limit, Policy, Settings

NOTHING_SET: Mapping[Limit, int] = MappingProxyType({})

BYTES_PER_TOKEN = 4
"""About, of JSON schemas and of what tools print: the same for every turn, unlike an estimate that learns."""
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
    from_the_first: bool = False
    """Cap each result as it comes in, and not only when a compaction is due."""
    guide: int | None = None
    """Tokens of the guide files that a client pastes into its prompt, together; None: as many as they have."""
    tools: int | None = None
    """Tokens of tool definitions up to which tools say more than how they are called; None: all do."""
    answer_cap: int | None = None
    """Completion tokens asked for when the client sets no bound; None or 0: no cap."""
    recall: int = 0
    """Tokens that recalled passages may take."""


STANDARD = PruneLimits(
    protect_newest=40_000,
    minimum_gain=20_000,
    results=ResultLimits(lines=2_000, line_characters=2_000, output_characters=5_000, entries=50, tokens=40_000),
)
LOCAL = PruneLimits(
    protect_newest=2_000,
    minimum_gain=500,
    results=ResultLimits(lines=200, line_characters=500, output_characters=1_500, entries=20, tokens=2_000),
    from_the_first=True,
    guide=600,
    tools=800,
    answer_cap=1_000,
)
_LOCAL_PRUNING = replace(LOCAL, from_the_first=False, guide=None, tools=None, answer_cap=None)
"""What `auto` takes of the local ones for a small window."""

_PROTECT_SHARE = 1 / 5
_GAIN_SHARE = 1 / 10
_RESULT_SHARE = 1 / 5
_LAYER_SHARE = 1 / 20
_MESSAGE_SHARE = 1 / 6
_WORTH_SHARE = 1 / 5
_CAP_SHARE = 1 / 4
_RECALL_SHARE = 0.3
_UNKNOWN = 2**31
"""Stands for an unknown window: nothing is small for its sake."""


def prune_limits(settings: Settings, window: int) -> PruneLimits:
    """Return what pruning may leave in a window of so many tokens."""
    return _limits(settings.policy, window, tuple(settings.limits.items()))


def answer_cap_for(settings: Settings, window: int | None) -> int | None:
    """Return the completion tokens of an answer whose client sets no bound; None: no cap. `window` in tokens."""
    return prune_limits(settings, window or _UNKNOWN).answer_cap or None


def limit_origins(settings: Settings, model: str, window: int) -> dict[str, str]:
    """Name where each limit for a model comes from: a setting, a policy, or the window, of which it is a share.

    `settings` are those for all models.
    """
    policy = settings.for_model(model).policy
    origins = _policy_origins(policy, window) | dict.fromkeys(settings.limits, "SPILLWAY_LIMITS")
    for glob, model_settings in settings.models.items():
        if fnmatchcase(model, glob):
            origins |= dict.fromkeys(model_settings.limits, f"SPILLWAY_MODELS {glob}")
    return origins


@lru_cache(maxsize=256)
def _limits(policy: Policy, window: int, chosen: tuple[tuple[Limit, int], ...]) -> PruneLimits:
    return limits_for(policy, window, dict(chosen))


def limits_for(policy: Policy, window: int, chosen: Mapping[Limit, int] = NOTHING_SET) -> PruneLimits:
    """Return the limits for a window of so many tokens; `chosen` ones hold as they are."""
    limits = _of_policy(policy, window)
    figures = {**_figures(limits, window), **chosen}
    return replace(
        limits,
        protect_newest=figures["protect_newest"],
        minimum_gain=figures["minimum_gain"],
        guide=chosen.get("guide", _share(limits.guide, window, _LAYER_SHARE)),
        tools=chosen.get("tools", _share(limits.tools, window, _LAYER_SHARE)),
        answer_cap=chosen.get("answer_cap", _share(limits.answer_cap, window, _CAP_SHARE)),
        recall=chosen.get("recall", int(window * _RECALL_SHARE)),
        message=window * _MESSAGE_SHARE,
        worth=window * _WORTH_SHARE,
        results=ResultLimits(
            lines=figures["lines"],
            line_characters=figures["line_characters"],
            output_characters=figures["output_characters"],
            entries=figures["entries"],
            tokens=figures["result_tokens"],
        ),
    )


def _policy_origins(policy: Policy, window: int) -> dict[str, str]:
    """Name the origin of each figure of a policy: `standard` or `local`, or the `window` that allows no more."""
    limits = _of_policy(policy, window)
    named = "standard" if limits is STANDARD else "local"
    uncapped, capped = _figures(limits, None), _figures(limits, window)
    origins = {str(name): named if uncapped[name] == capped[name] else "window" for name in uncapped}
    parts = {
        "guide": (limits.guide, _LAYER_SHARE),
        "tools": (limits.tools, _LAYER_SHARE),
        "answer_cap": (limits.answer_cap, _CAP_SHARE),
    }
    origins |= {
        name: named if tokens == _share(tokens, window, share) else "window" for name, (tokens, share) in parts.items()
    }
    return origins | {"recall": "window"}


def _of_policy(policy: Policy, window: int) -> PruneLimits:
    if policy == "local":
        return LOCAL
    return _LOCAL_PRUNING if policy == "auto" and window <= SMALL_WINDOW else STANDARD


def _share(tokens: int | None, window: int, share: float) -> int | None:
    """Return tokens, at most a share of the window; None stays: no limit."""
    return None if tokens is None else min(tokens, int(window * share))


def _figures(limits: PruneLimits, window: int | None) -> dict[Limit, int]:
    """Return the figures of a policy by name, those in tokens capped by shares of a window; None: not capped."""
    results = limits.results
    assert results is not None  # each policy has them

    def within(tokens: int, share: float) -> int:
        return tokens if window is None else min(tokens, int(window * share))

    return {
        "protect_newest": within(limits.protect_newest, _PROTECT_SHARE),
        "minimum_gain": within(limits.minimum_gain, _GAIN_SHARE),
        "lines": results.lines,
        "line_characters": results.line_characters,
        "output_characters": results.output_characters,
        "entries": results.entries,
        "result_tokens": within(results.tokens, _RESULT_SHARE),
    }

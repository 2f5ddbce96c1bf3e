"""Limits for pruning: the standard ones, and `local` ones for small windows."""

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from proxy.core.settings import Limit, Policy, Settings

BYTES_PER_TOKEN = 4
"""About, of JSON schemas and of what tools print: the same for every turn, unlike an estimate that learns."""
SMALL_WINDOW = 16_384
"""Tokens up to which `auto` takes the local limits for pruning."""
_UNLIMITED = 2**31
"""Stands for no limit, and for an unknown window: nothing is small for its sake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneLimits:
    """What pruning may leave. Figures in tokens unless they say otherwise."""

    protect_newest: int
    """Of the newest tool output, which is never masked."""
    minimum_gain: int
    """That a pruning batch or a summary has to save to be worth losing the prefix cache."""
    lines: int = _UNLIMITED
    """Lines of a tool result."""
    line_characters: int = _UNLIMITED
    output_characters: int = _UNLIMITED
    """Characters of what a command printed."""
    entries: int = _UNLIMITED
    """Entries of a directory."""
    result_tokens: int = _UNLIMITED
    guide: int | None = None
    """Of the guide files that a client pastes into its prompt, together; None: as many as they have."""
    tools: int | None = None
    """Of tool definitions up to which tools say more than how they are called; None: all do."""
    answer_cap: int | None = None
    """Completion tokens of an answer whose client sets no bound; None or 0: no cap."""
    instructions: int = 0
    """Of the instructions that one tool brought, which stay word for word; of longer ones their rules do."""
    keep: tuple[str, ...] = ()
    """Tools, or globs, whose results are never shortened."""
    recall: int = 0
    """That recalled passages may take."""
    message: float = math.inf
    """Above which a message that is not of the newest turn is cut in its middle."""
    worth: float = 0.0
    """From which a part of the history is worth asking a model for a summary; less is put in short by code."""
    from_the_first: bool = False
    """Whether each result is capped as it comes in, and not only when a compaction is due."""


class _Figure(NamedTuple):
    """A limit in each policy (None: no limit), and the share of the window that it is at most."""

    standard: int | None
    local: int
    share: float = math.inf


_FIGURES: dict[Limit, _Figure] = {
    "protect_newest": _Figure(40_000, 2_000, 1 / 5),
    "minimum_gain": _Figure(20_000, 500, 1 / 10),
    "lines": _Figure(2_000, 200),
    "line_characters": _Figure(2_000, 500),
    "output_characters": _Figure(5_000, 1_500),
    "entries": _Figure(50, 20),
    "result_tokens": _Figure(40_000, 2_000, 1 / 5),
    "guide": _Figure(None, 600, 1 / 20),
    "tools": _Figure(None, 800, 1 / 20),
    "answer_cap": _Figure(None, 1_000, 1 / 4),
    "recall": _Figure(_UNLIMITED, _UNLIMITED, 0.3),
}
_MESSAGE_SHARE = 1 / 6
_WORTH_SHARE = 1 / 5
_INSTRUCTIONS_SHARE = 1 / 8


def prune_limits(settings: Settings, window: int) -> PruneLimits:
    """Return what pruning may leave in a window of so many tokens; the user's own limits hold as they are."""
    return _limits(settings.policy, window, tuple(settings.limits.items()))


def answer_cap_for(settings: Settings, window: int | None) -> int | None:
    """Return the completion tokens of an answer whose client sets no bound; None: no cap. `window` in tokens."""
    return prune_limits(settings, window or _UNLIMITED).answer_cap or None


def limit_origins(settings: Settings, model: str, window: int) -> dict[str, str]:
    """Name the origin of each limit of a model: a setting, a policy, or the window, of which it is a share.

    `settings` are those for all models.
    """
    policy = settings.for_model(model).policy
    origins: dict[str, str] = {name: _figure(name, policy, window)[1] for name in _FIGURES}
    origins |= dict.fromkeys(settings.limits, "SPILLWAY_LIMITS")
    for glob, model_settings in settings.models.items():
        if fnmatchcase(model, glob):
            origins |= dict.fromkeys(model_settings.limits, f"SPILLWAY_MODELS {glob}")
    return origins


@lru_cache(maxsize=256)
def _limits(policy: Policy, window: int, chosen: tuple[tuple[Limit, int], ...]) -> PruneLimits:
    figures: dict[str, Any] = {name: _figure(name, policy, window)[0] for name in _FIGURES}
    figures |= {"message": window * _MESSAGE_SHARE, "worth": window * _WORTH_SHARE}
    figures["instructions"] = int(window * _INSTRUCTIONS_SHARE)
    figures |= {str(name): limit for name, limit in chosen}
    return PruneLimits(**figures, from_the_first=policy == "local")


def _figure(name: Limit, policy: Policy, window: int) -> tuple[int | None, str]:
    """Return a limit as the policy has it, and its origin.

    In a small window `auto` takes the local figure where there is a standard one too.
    """
    figure = _FIGURES[name]
    small = policy == "auto" and window <= SMALL_WINDOW and figure.standard is not None
    origin = "local" if policy == "local" or small else "standard"
    limit = figure.local if origin == "local" else figure.standard
    if limit is not None and limit > window * figure.share:
        return int(window * figure.share), "window"
    return limit, origin

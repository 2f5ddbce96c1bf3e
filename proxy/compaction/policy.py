"""Meaning of settings: the limits for pruning, also `local` ones, and how long a turn waits for a summary."""

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from proxy.core.settings import Limit, Policy, Settings

BYTES_PER_TOKEN = 4
"""Rough size of a token in JSON schemas and tool output. A constant, so that the same text is treated alike on every turn,
which an estimate that learns would not do."""
SMALL_WINDOW = 16_384
"""Largest window, in tokens, in which `auto` takes the local limits for pruning."""
WAIT = 5.0
"""Default seconds that a turn waits for a summary which goes on being written beside the answer."""
_UNLIMITED = 2**31
"""Value for "no limit", and for the tokens of an unknown window, which counts as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneLimits:
    """Limits within which pruning has to bring a history. Figures in tokens unless they say otherwise."""

    protect_newest: int
    """Tokens of the newest tool output, which is never masked."""
    minimum_gain: int
    """Tokens that a pruning batch or a summary has to save to be worth losing the prefix cache."""
    lines: int = _UNLIMITED
    """Lines of a tool result."""
    line_characters: int = _UNLIMITED
    output_characters: int = _UNLIMITED
    """Characters of a command's output."""
    entries: int = _UNLIMITED
    """Entries of a directory listing."""
    result_tokens: int = _UNLIMITED
    guide: int | None = None
    """Tokens of all guide files together that a client pastes into its prompt, or None for no limit."""
    tools: int | None = None
    """Tokens of tool definitions up to which tools keep their descriptions, or None if all do."""
    answer_cap: int | None = None
    """Completion tokens of an answer whose client sets no bound; None or 0 for no cap."""
    instructions: int = 0
    """Tokens of the instructions from one tool result that stay verbatim; of longer ones mainly the rules stay."""
    keep: tuple[str, ...] = ()
    """Tool names, or globs, whose results are never shortened."""
    recall: int = 0
    """Tokens that recalled passages may take."""
    message: float = math.inf
    """Tokens above which a message before the newest turn is cut in its middle."""
    worth: float = 0.0
    """Fewest tokens of a part of the history that is worth a model's summary; code makes an extract of smaller ones."""
    from_the_first: bool = False
    """Whether each result is capped as it comes in, and not only when a compaction is due."""


class _Figure(NamedTuple):
    """A limit in each policy, or None for no limit, and the largest share of the window that it may be."""

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
    """Return the limits of pruning in a window of `window` tokens; the user's own limits apply unchanged."""
    return _limits(settings.policy, window, tuple(settings.limits.items()))


def answer_cap_for(settings: Settings, window: int | None) -> int | None:
    """Return the completion tokens of an answer whose client sets no bound, or None for no cap. `window` in tokens."""
    return prune_limits(settings, window or _UNLIMITED).answer_cap or None


def limit_origins(settings: Settings, model: str, window: int) -> dict[str, str]:
    """Name the origin of each limit of a model: a setting, a policy, or (if it is a share of that) the window.

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
    """Return the policy's limit and its origin.

    In a small window `auto` takes the local figure, unless the standard policy has no such limit at all.
    """
    figure = _FIGURES[name]
    small = policy == "auto" and window <= SMALL_WINDOW and figure.standard is not None
    origin = "local" if policy == "local" or small else "standard"
    limit = figure.local if origin == "local" else figure.standard
    if limit is not None and limit > window * figure.share:
        return int(window * figure.share), "window"
    return limit, origin


def works_ahead(settings: Settings, *, free: bool) -> bool:
    """Return whether to use a backend while nobody waits; by default only if its tokens are `free`."""
    return settings.ahead == "on" or (settings.ahead == "auto" and free)


def summary_wait(settings: Settings, *, insisted: bool, ahead: bool, free: bool) -> float:
    """Return the seconds that a request may wait for a model's summary.

    Args:
        settings: settings for the model.
        insisted: whether the history is shortened for the sake of the summary, however long that takes.
        ahead: whether no client waits, since the next turn is prepared.
        free: whether the tokens of its backend cost nothing.
    """
    if insisted or settings.strategy == "summarize":
        return settings.read_timeout
    if ahead:
        return 0.0  # an extract is enough until the backend is quiet enough for the summary
    if settings.summary_wait is not None:
        return min(settings.summary_wait, settings.read_timeout)
    if works_ahead(settings, free=free):
        return 0.0  # it is written after the answer
    return settings.read_timeout if settings.ahead == "off" else min(WAIT, settings.read_timeout)

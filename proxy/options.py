"""What the user chose, as the pure part and the stages see it; made from the settings by `proxy.settings.choosing`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from proxy.shortening.budget import ContextBudget
from proxy.shortening.policy import NOTHING_SET, Limit, Policy, PruneLimits, limits_for, origins_for
from proxy.shortening.strategies import STRATEGIES, Strategy

_OPTION_FIELDS = (
    *("trigger", "target", "pause", "policy", "summary_model"),
    *("strategy", "trigger_tokens", "target_tokens"),
    *("recall", "recall_share", "recall_model", "virtual_window", "ahead"),
    *("answer_cap", "tools_allowed", "tools_first", "system_prompt", "agent_prompt", "guide", "managed"),
)
_HELPERS = ("summary_model", "recall_model")
_CAP_SHARE = 1 / 4
"""Fraction of the window that the answer cap of the policy may take."""
_CLOSEST = 0.95
"""Share of the trigger that a target may be at most: a compaction has to gain something."""

TOOLS_FIRST = (
    *("*bash*", "*shell*", "exec*", "*run*command*", "read*", "edit*", "*replace*", "apply_patch", "write*"),
    *("*grep*", "*search*", "glob*", "list*", "ls"),
)
"""What coding agents live by, in the order in which they use it."""
_UNKNOWN = 2**31
"""Stands for a window that nobody tells: nothing is small for its sake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Fractions of the window, times in seconds, sizes in bytes; see `proxy.settings` for each."""

    trigger: float = 0.8
    target: float = 0.5
    pause: float = 0.9
    trigger_tokens: int | None = None
    """Tokens of a prompt that is compacted, where that is less than the trigger; None: the trigger alone counts."""
    target_tokens: int | None = None
    """Tokens to come down to, where that is less than the target; None: the target alone counts."""
    strategy: str = "auto"
    """By its name in `proxy.shortening.strategies`."""
    vain_resumes: int = 3
    answer_windows: float = 16.0
    summary_model: str | None = None
    virtual_window: int = 200_000
    stabilise: bool = True
    """Strip billing lines and cache marks from prompts."""
    recall: Literal["auto", "tool", "off"] = "auto"
    recall_share: float = 0.3
    recall_model: str | None = None
    ahead: Literal["auto", "on", "off"] = "auto"
    """Whether to compact between turns; auto: where a backend is near."""
    status: str = "auto"
    policy: Policy = "auto"
    limits: Mapping[Limit, int] = field(default_factory=lambda: NOTHING_SET)
    """Of the policy, those that were set alone."""
    answer_cap: int | None = None
    """Completion tokens asked for when the client sets no bound; 0: none; None: what the policy says."""
    tools_allowed: tuple[str, ...] = ()
    """Globs on names of tools; empty: all."""
    tools_first: tuple[str, ...] = TOOLS_FIRST
    """Globs on names of tools in small letters: those that tell what they do where not all have room, the first one first."""
    system_prompt: str | None = None
    """Stands for the client's under policy `local`."""
    agent_prompt: bool = True
    """Whether a short prompt stands for a coding agent's long one, under policy `local`."""
    guide: str | None = None
    """Stands for the guide files that clients paste into their prompts, under policy `local`."""
    managed: bool | None = None
    """Whether requests are managed at all, where the user said so of a model; None: as the backend has it."""
    emulate_tools: bool = True
    """Whether models without tools of their own get them as text."""
    read_leaked_calls: bool = True
    """Whether calls that models with tools of their own write as text are read back."""
    ask_usage: bool = True
    max_body: int = 64 * 2**20
    max_messages: int = 10_000
    max_parts: int = 20_000
    """Of contents, tool calls and tools together."""
    max_answer: int = 64 * 2**20
    summary_timeout: float = 300.0
    grace: float = 2.0
    heartbeat: float = 10.0
    overrides: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Glob on the model id, and the fields set for the models it matches."""

    def for_model(self, model: str) -> Options:
        """The options in force for one model; a later glob wins over an earlier one."""
        if not self.overrides:
            return self
        matching = self._matching(model)
        changed = {
            name: value
            for fields in matching
            for name, value in fields.items()
            if name in _OPTION_FIELDS and value is not None
        }
        for fields in matching:
            if (limits := fields.get("limits")) is not None:
                changed["limits"] = {**changed.get("limits", self.limits), **limits}
        return _in_order(replace(self, **changed)) if changed else self

    @property
    def recalls(self) -> bool:
        """Whether what a checkpoint covers is brought back where it is needed."""
        return self.recall != "off"

    @property
    def helpers(self) -> frozenset[tuple[str, str]]:
        """All models that the user chose to help others, each with the option that names it."""
        every = [{name: getattr(self, name) for name in _HELPERS}, *(fields for _, fields in self.overrides)]
        return frozenset((name, fields[name]) for fields in every for name in _HELPERS if fields.get(name))

    @property
    def manages_all(self) -> bool:
        """Whether no model was taken out of Spillway's hands."""
        return not self.overrides or all(fields.get("managed") is not False for _, fields in self.overrides)

    def profile_for(self, model: str) -> ModelProfile:
        """What the user says of a model itself, at the highest trust."""
        profile = ModelProfile()
        for fields in self._matching(model):
            facts: dict[str, Any] = {
                name: Fact(fields[name], "setting", Trust.USER)
                for name in ("window", "tools", "vision", "tokenizer")
                if fields.get(name) is not None
            }
            if fields.get("continuation") is not None:
                facts["continuation"] = Fact(Continuation(fields["continuation"]), "setting", Trust.USER)
            profile = replace(profile, **facts)
        return profile

    def answer_cap_for(self, window: int | None) -> int | None:
        """Completion tokens of an answer whose client sets no bound, in a window of so many tokens."""
        if self.answer_cap is not None:
            return self.answer_cap or None
        cap = _policy_cap(self.policy, window or _UNKNOWN)
        return cap if cap is None or window is None else min(cap, max(1, int(window * _CAP_SHARE)))

    def limits_for(self, window: int) -> PruneLimits:
        """What pruning may leave in a window of so many tokens."""
        return _limits(self.policy, window, tuple(self.limits.items()))

    def origins(self, model: str, window: int) -> dict[str, str]:
        """Where each limit comes from that holds for a model: a setting, a policy, or the window, of which it is a share.

        Of the options as they are for all models.
        """
        chosen = self.for_model(model)
        told = origins_for(chosen.policy, window)
        told |= dict.fromkeys(self.limits, "SPILLWAY_LIMITS")
        capped = "SPILLWAY_ANSWER_CAP" if self.answer_cap is not None else _cap_origin(chosen, window)
        guide = "SPILLWAY_GUIDE_FILE"
        for glob, fields in self.overrides:
            if fnmatchcase(model, glob):
                here = f"SPILLWAY_MODELS {glob}"
                told |= dict.fromkeys(fields.get("limits") or (), here)
                capped = here if fields.get("answer_cap") is not None else capped
                guide = here if fields.get("guide") is not None else guide
        if chosen.own_guide is not None:  # stands as it is, whatever the limit
            told["guide"] = guide
        return {**told, "answer_cap": capped}

    def allows_tool(self, name: str) -> bool:
        """Whether a tool of this name may be offered to the model."""
        return not self.tools_allowed or any(fnmatchcase(name, glob) for glob in self.tools_allowed)

    @property
    def own_system_prompt(self) -> str | None:
        """What stands for the client's system prompt, if anything does: only where `local` was chosen."""
        return self.system_prompt if self.policy == "local" else None

    @property
    def shortens_agents(self) -> bool:
        """Whether a short prompt stands for a coding agent's long one: only where `local` was chosen."""
        return self.agent_prompt and self.policy == "local"

    @property
    def own_guide(self) -> str | None:
        """What stands for a project's guide files, if anything does: only where `local` was chosen."""
        return self.guide if self.policy == "local" else None

    def budget(self, window: int, fixed: int = 0) -> ContextBudget:
        """The budget for a window of so many tokens, of which what can't be shortened takes `fixed`."""
        return _budget(self._fractions(window), window, self.pause, fixed)

    def _fractions(self, window: int) -> tuple[float, float, int | None]:
        """Trigger and target as fractions of the zone in which prompts stay, and its tokens; None: the whole window.

        Of the fraction and the tokens that the user gave the lower one counts. A target that was not given in tokens keeps
        its distance from a trigger that was.
        """
        zone = None
        if self.trigger_tokens is not None and self.trigger_tokens < window * self.trigger:
            zone = max(1, int(self.trigger_tokens / self.trigger))
        if self.target_tokens is None:
            return self.trigger, self.target, zone
        tokens = min(self.target_tokens, window * self.target)
        return self.trigger, min(tokens / (zone or window), self.trigger * _CLOSEST), zone

    @property
    def shortening(self) -> Strategy:
        """How a history is shortened."""
        return STRATEGIES[self.strategy]

    def _matching(self, model: str) -> list[Mapping[str, Any]]:
        return [fields for glob, fields in self.overrides if fnmatchcase(model, glob)]


def _in_order(options: Options) -> Options:
    """The target below the trigger, and that at most the pause: each glob is in order, but several may match a model."""
    trigger = min(options.trigger, options.pause)
    target = options.target if options.target < trigger else trigger * _CLOSEST
    in_order = (trigger, target) == (options.trigger, options.target)
    return options if in_order else replace(options, trigger=trigger, target=target)


def _cap_origin(options: Options, window: int) -> str:
    cap = _policy_cap(options.policy, window)
    if cap is None:
        return "standard"
    return "local" if options.answer_cap_for(window) == cap else "window"


@lru_cache(maxsize=256)
def _limits(policy: Policy, window: int, chosen: tuple[tuple[Limit, int], ...]) -> PruneLimits:
    return limits_for(policy, window, dict(chosen))


@lru_cache(maxsize=256)
def _policy_cap(policy: Policy, window: int) -> int | None:
    return limits_for(policy, window).answer_cap


@lru_cache(maxsize=256)
def _budget(
    fractions: tuple[float, float, int | None], window: int, pause: float, fixed: int
) -> ContextBudget:
    trigger, target, within = fractions
    return ContextBudget(
        window=window, trigger=trigger, target=target, pause=pause, fixed=fixed, within=within
    )

"""Tools for models that have none: requests in which they become text, and answers in which they are read back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from proxy.backends.profile import ModelKey, ModelProfile
from proxy.core.history.turns import RESULT_ROLES
from proxy.core.request import Message, Request
from proxy.core.settings import Settings
from proxy.emulation import NO_TOOLS, FormCount, Offer, as_text, offer_of
from proxy.job import Job

_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")


def offer_to_emulate(request: Request, profile: ModelProfile, settings: Settings, *, now: bool) -> Offer | None:
    """Build the offer of tools for a model that has none of its own; None where nothing is to be emulated.

    `now`: the backend has just refused them. A history of calls is rewritten although none is offered any more.
    """
    lacks = now or (profile.tools is not None and not profile.tools.value)
    if not lacks or settings.tool_mode == "native":
        return None
    offer = offer_of(request.body)
    if offer is None and any(
        message.get("tool_calls") or message["role"] in RESULT_ROLES for message in request.messages
    ):
        return NO_TOOLS
    return offer


def emulated(request: Request, offer: Offer, messages: Sequence[Message], *, system: bool) -> Request:
    """The request with its tools, and the calls and results in these messages, as text.

    `system`: the model's template may know the role, so that a system message may be added.
    """
    gone = {name: None for name in _FIELDS if name in request.body}
    return request.changed(messages=as_text(messages, offer, system=system), **gone)


class CallLedger:
    """Counts of emulated calls by their fate, per backend, model and form, since the start."""

    def __init__(self) -> None:
        self._counts: dict[ModelKey, dict[str, dict[str, int]]] = defaultdict(dict)

    def add(self, job: Job, stats: dict[str, FormCount]) -> None:
        """Count an attempt."""
        for form, counted in stats.items():
            for outcome, number in asdict(counted).items():
                self.count(job, form, outcome, number)

    def count(self, job: Job, form: str, outcome: str, number: int = 1) -> None:
        """Count calls: `called`, `repaired`, `malformed`, `retried` or `lost`."""
        if not number:
            return
        counts = self._counts[job.key].setdefault(form, {})
        counts[outcome] = counts.get(outcome, 0) + number
        job.outcome.add("called", form=form, became=outcome, number=number)

    def outcome(self, job: Job, forms: Iterable[str], *, retried: bool) -> None:
        """Count calls in these forms that could not be made, as retried or lost."""
        for form in forms:
            self.count(job, form, "retried" if retried else "lost")

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """Counts of a model by form, for people."""
        return {form: dict(counts) for form, counts in self._counts.get(key, {}).items()}


def make_id() -> str:
    """The id of a call."""
    return f"call_{uuid4().hex[:24]}"

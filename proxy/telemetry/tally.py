"""Requests that ended alike, added up until somebody reads the metrics: counting one takes a microsecond, adding to a sum hardly any."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import partial

from prometheus_client import Histogram

from proxy.neutral.piece import whole_number
from proxy.telemetry.outcome import Outcome


class Tally:
    """Sums over requests that went to one model, for one sender, and were answered in the same way. Tokens and seconds."""

    __slots__ = (
        *("where", "answered", "asker", "unlike", "number", "prompt", "completion", "cached", "recalled"),
        *("sent", "repeated", "reused", "reuses", "fills", "first_bytes"),
    )

    def __init__(self, first: Outcome, where: tuple[str, str], asker: str) -> None:
        """None yet, but all will be like the first; `where` they went, and who asked, as labels."""
        self.where, self.asker = where, asker
        self.answered = (first.action, str(first.status))
        self.unlike = first.unlike
        self.number = 0
        self.prompt = self.completion = self.cached = self.recalled = 0
        self.sent: int | None = None
        """Of prompts, by estimate; None: none was sent."""
        self.repeated = 0
        self.reused: int | None = None
        """None: no backend told."""
        self.reuses: list[float] = []
        """Of the prompt."""
        self.fills: list[float] = []
        """Of the window."""
        self.first_bytes: list[float] = []

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        self.number += 1
        prompt, reused, sent = 0, outcome.reused, outcome.tokens_after
        if (usage := outcome.usage) is not None:
            prompt = whole_number(usage.get("prompt_tokens"))
            self.prompt += prompt
            self.completion += whole_number(usage.get("completion_tokens"))
            details = usage.get("prompt_tokens_details")
            cached = whole_number(details.get("cached_tokens")) if isinstance(details, dict) else 0
            self.cached += cached or reused or 0
            if outcome.recalled_tokens:
                self.recalled += outcome.recalled_tokens
        if outcome.repeated is not None:
            self.sent = (self.sent or 0) + (sent or 0)
            self.repeated += outcome.repeated
            if reused is not None:
                self.reused = (self.reused or 0) + reused
                if prompt := prompt or sent or 0:
                    self.reuses.append(min(1.0, reused / prompt))
        if (fill := outcome.fill) is not None:
            self.fills.append(fill)
        if outcome.first_byte is not None:
            self.first_bytes.append(outcome.first_byte)


class ManyHistogram(Histogram):
    """A histogram that takes many values at little more than the cost of one, which is a microsecond and a half."""

    def observe_all(self, values: Sequence[float]) -> None:
        """Observe each of these."""
        self._sum.inc(sum(values))
        for bucket, number in Counter(map(partial(bisect_left, self._upper_bounds), values)).items():
            self._buckets[bucket].inc(number)

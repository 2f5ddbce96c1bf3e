"""Estimates against true counts over growing conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from proxy.backends.profile import ModelKey
from proxy.tokens.counter import Vocabulary
from proxy.tokens.meter import Meter

Messages: TypeAlias = list[dict[str, Any]]
Truth: TypeAlias = Callable[[Messages], Awaitable[int]]
"""The prompt tokens that a backend reports."""


@dataclass
class Figures:
    """Relative errors of whole-prompt estimates, and how the upper bounds did."""

    fresh: list[float] = field(default_factory=list)
    """|estimate - truth| / truth, of the whole prompt predicted."""
    anchored: list[float] = field(default_factory=list)
    """The same of requests after a conversation's first, as the meter estimates them."""
    held: list[bool] = field(default_factory=list)
    reserve: list[float] = field(default_factory=list)
    """(upper - truth) / truth."""

    def add(self, other: Figures) -> None:
        """Take in what was measured elsewhere."""
        self.fresh += other.fresh
        self.anchored += other.anchored
        self.held += other.held
        self.reserve += other.reserve


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def mean(values: Sequence[float]) -> float:
    """Their mean; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def requests(messages: Messages) -> Iterator[Messages]:
    """The requests that a client sends as the conversation grows."""
    for length in range(1, len(messages) + 1):
        if messages[length - 1]["role"] in {"user", "tool"}:
            yield messages[:length]


def rendered(vocabulary: Vocabulary, *, base: int = 13, message: int = 5, call: int = 24) -> Truth:
    """What a backend with this vocabulary and such a chat template reports."""

    async def count(messages: Messages) -> int:
        total = base
        for said in messages:
            total += message + vocabulary.count(said["content"])
            for asked in said.get("tool_calls", ()):
                function = asked["function"]
                total += call - 2 * message
                total += vocabulary.count(function["name"]) + vocabulary.count(function["arguments"])
        return total

    return count


async def follow(meter: Meter, key: ModelKey, messages: Messages, truth: Truth) -> Figures:
    """Measure each request of a conversation, then tell the meter the truth."""
    found = Figures()
    base = (await meter.measure(key, {"messages": []})).expected.predicted
    for number, sent in enumerate(requests(messages)):
        estimate = await meter.measure(key, {"messages": sent})
        fresh = base + sum(meter.costs(key, sent))
        true = await truth(sent)
        found.fresh.append(abs(fresh - true) / true)
        if number:
            found.anchored.append(abs(estimate.tokens - true) / true)
        found.held.append(true <= estimate.upper)
        found.reserve.append((estimate.upper - true) / true)
        meter.observe(estimate, true)
    return found

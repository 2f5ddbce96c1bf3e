"""Reduction that every rung of the ladder works on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.compaction.policy import PruneLimits
from proxy.core.request import Message

Cost = Callable[[Sequence[Message]], list[float]]
"""Predicted tokens of each message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A history to shorten: the messages after the leading system messages, and the room they may take.

    `floor` is the index of the first message that may change (what is before it is pinned or frozen),
    `tail` the index at which the protected newest messages begin, `budget` the tokens that all `messages`
    together may have, `costs` their predicted tokens. At `enough` tokens, `budget` or more, no model is asked; `unread`
    are the tokens up to which what the model has not read yet is never shortened for less; at `roomy` tokens an answer
    still has room. To `recallable` tokens the newest user message is brought, where it has to be cut, so that there is
    room for recalling pieces of it.
    """

    messages: Sequence[Message]
    costs: Sequence[float]
    floor: int
    tail: int
    budget: float
    limits: PruneLimits
    cost: Cost
    enough: float = 0.0
    unread: float = math.inf
    roomy: float = math.inf
    recallable: float = math.inf
    leans: Mapping[int, int] = field(default_factory=dict)
    """Messages that point at a later one, by their index, and the index behind that: it is covered with them."""

    @property
    def total(self) -> float:
        """Tokens of all messages."""
        return sum(self.costs)

    @property
    def fits(self) -> bool:
        """Return whether the budget is kept."""
        return self.total <= self.budget

    @property
    def suffices(self) -> bool:
        """Return whether no model has to be asked."""
        return self.total <= max(self.budget, self.enough)

    def with_messages(self, messages: Sequence[Message]) -> Reduction:
        """The same reduction after messages were replaced one for one."""
        return replace(self, messages=messages, costs=self.cost(messages))


Rung = Callable[[Reduction], Reduction]
"""Shortens a history without a model between `floor` and `tail`, one message for one; the same reduction if nothing is to gain."""

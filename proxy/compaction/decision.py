"""Decision about a prompt: forward it, compact its history first, or refuse it.

This is the one place that decides, before a prompt is sent, ahead of the next one, and after a refusal. A further
reason to compact is a line in `decide`; if it needs a fact that no other reason does, that is a field of `Facts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from proxy.compaction.budget import ContextBudget, Growth
from proxy.core.request import CompactionRequest, Message

NEAR = 1 / 2
"""Share of the trigger below which the next turn cannot be due, unless it is far larger than any before."""
_MORE = 1.2
"""Factor on the largest of the latest turns, up to which the next one is expected to grow; its cost is an estimate too."""
_WORTH = 1 / 2
"""Share of the way from target to trigger after which compacting ahead of the trigger is worth it."""


class Facts(NamedTuple):
    """Facts about a prompt that the decision rests on; figures in tokens."""

    tokens: int
    """Best estimate of the prompt."""
    upper: int
    """Upper bound of the estimate."""
    counted: bool = False
    """Whether the backend counted this very prompt, so that both figures are its own."""
    history: Sequence[Message] = ()
    """Messages after the leading system messages, as they would be sent."""
    passing: int = 0
    """Part of `tokens` that is in the prompt for this turn only."""
    cramped: bool = False
    """Whether this turn needs passages of the covered history that have no room, and a compaction would make some."""
    requested: CompactionRequest | None = None
    """The client's request for a compaction."""
    was_cut: bool = False
    """Whether the backend silently cut an earlier prompt of this conversation."""
    cuts: bool = False
    """Whether the backend may silently cut a prompt that is too long, rather than refuse it."""

    @property
    def lowest(self) -> int:
        """Lower bound of the estimate, as far below it as `upper` is above."""
        return 2 * self.tokens - self.upper

    def plus(self, tokens: int) -> "Facts":
        """Return the facts of the same prompt with `tokens` more."""
        return self._replace(tokens=self.tokens + tokens, upper=self.upper + tokens)


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the prompt as it is."""


@dataclass(frozen=True, slots=True)
class Compact:
    """Compact the history first."""

    goal: int | None = None
    """Prompt tokens to compact to, with a summary in any case, or None if both are left to the conversation's growth."""
    too_large: bool = True
    """Whether the prompt is too large. If so, something else may be taken out of it instead."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send nothing: the backend would not read all of the prompt."""


Decision: TypeAlias = Forward | Compact | Refuse


def decide(budget: ContextBudget | None, facts: Facts, *, compacted: bool = False) -> Decision:
    """Decide what to do with a prompt.

    Without a budget nothing is known to decide by. Once it was `compacted`, as far as that goes, it is refused only if the
    backend's own count is too high, or if the backend would silently cut it, going by the lower bound; a backend that reports
    overflows decides itself.
    """
    if budget is None:
        return Forward()
    if compacted:
        return Refuse() if (facts.counted or facts.cuts) and facts.lowest >= budget.window else Forward()
    due = budget.enough if facts.cramped else budget.due
    too_large = facts.tokens - facts.passing >= due or facts.upper > budget.limit
    too_large = too_large or (facts.passing > 0 and facts.tokens > budget.ceiling)
    goal = None if facts.requested is None else _requested_goal(budget, facts.tokens, facts.requested)
    return Compact(goal, too_large) if too_large or goal is not None or facts.was_cut else Forward()


def _requested_goal(budget: ContextBudget, tokens: int, wanted: CompactionRequest) -> int | None:
    """Return the prompt tokens to compact to at the client's request, or None if it does not want that yet."""
    trigger = tokens if wanted.now else wanted.trigger
    return None if trigger is None or tokens < trigger else min(budget.goal, int(trigger * budget.target))


def decide_next(budget: ContextBudget, facts: Facts, grown: Growth, *, recalled: int = 0) -> Decision:
    """Decide what would have to be done with the prompt of the next turn.

    Args:
        budget: budget of the model.
        facts: facts about the history with its newest answer.
        grown: expected growth with the next turn.
        recalled: tokens of passages recalled for the latest turn; the next one may need them too.
    """
    following = facts.plus(int(grown.requested * _MORE))
    decision, tokens = decide(budget, following), following.tokens
    # Otherwise the next turn would be compacted in the middle of its answer, or to make room for recalled passages.
    soon = tokens + grown.answered >= budget.pause_point or tokens - facts.passing + recalled / 2 > budget.due
    worth = facts.tokens >= budget.goal + (budget.due - budget.goal) * _WORTH
    return Compact() if isinstance(decision, Forward) and soon and worth else decision

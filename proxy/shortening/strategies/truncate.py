"""Without a model: the oldest turns go."""

from __future__ import annotations

from proxy.shortening.asking import Summariser, bounded
from proxy.shortening.ladder import Reduction
from proxy.shortening.pruning import drop_turns, give_up, prune
from proxy.shortening.strategies.base import Shortening, down_the_ladder


class Truncate:
    """Whole turns are left out, the oldest first; head and newest turn stay, and give way only where they alone are too long."""

    name = "truncate"
    asks = False

    def shorten(self, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
        """Leave out turns; where somebody wants to be told of them, code does that instead."""
        if summarised:
            return (yield from bounded(down_the_ladder(reduction, by, summarised=True), most=0))
        shorter = drop_turns(reduction, reduction.budget)
        dropped = shorter.total < reduction.total
        rungs: tuple[str, ...] = ("trim",) if dropped else ()
        for further in (prune, give_up):
            if not shorter.suffices:
                shorter, used = further(shorter)
                rungs = (*rungs, *used)
        return shorter, rungs, "trimmed" if dropped else "pruned"

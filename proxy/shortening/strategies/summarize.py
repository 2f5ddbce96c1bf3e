"""A summary each time."""

from __future__ import annotations

from collections.abc import Generator

from proxy.shortening.asking import Summariser, SummaryAsk, bounded
from proxy.shortening.condensing import least_tail, summarise
from proxy.shortening.ladder import Reduction
from proxy.shortening.pruning import give_up, prune
from proxy.shortening.strategies.base import Kind, Shortening, down_the_ladder


class Summarize:
    """What lies between head and tail is summarised, though masking its results might do; the tail stays as it is."""

    name = "summarize"
    asks = True

    def shorten(self, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
        """Summarise; where nothing can be, go down the ladder without that."""
        del summarised
        return bounded(_summarised(reduction, by))


def _summarised(
    reduction: Reduction, by: Summariser
) -> Generator[SummaryAsk, str, tuple[Reduction, tuple[str, ...], Kind]]:
    whole = least_tail(reduction) + by.tokens <= reduction.budget
    tail = reduction if whole else prune(reduction)[0]
    shorter, rungs = yield from summarise(reduction, tail, by, always=True)
    if shorter is None:
        return (yield from bounded(down_the_ladder(reduction, by, summarised=False), most=0))
    if not shorter.suffices:
        shorter, given = give_up(shorter)
        rungs = (*rungs, *given)
    return shorter, rungs, "compacted"

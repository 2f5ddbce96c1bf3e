"""Strategies by which a history is brought down to its budget. A new one is a class and an entry in `STRATEGIES`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal, Protocol, TypeAlias

from proxy.shortening.asking import Summariser, SummaryAsk, bounded
from proxy.shortening.condensing import least_tail, summarise
from proxy.shortening.ladder import Reduction
from proxy.shortening.pruning import drop_turns, give_up, prune

Kind = Literal["pruned", "compacted", "trimmed"]
Shortening: TypeAlias = Generator[SummaryAsk, str, tuple[Reduction, tuple[str, ...], Kind]]
"""Yields requests for summaries and is sent the texts; comes to the history, the rungs that took something out, and its kind."""


class Strategy(Protocol):
    """One way to bring a history down to its budget."""

    name: str
    asks: bool
    """Whether a model may be asked for a summary."""

    def shorten(self, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
        """Shorten a history that is too long; `summarised`: somebody wants to be told of what is taken out."""
        ...


def down_the_ladder(reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
    """Rungs without a model, then a summary of what lies between head and tail, or an extract; then what else can be given up."""
    shorter, rungs = prune(reduction)
    kind: Kind = "pruned"
    if summarised or not shorter.suffices:
        compacted, how = yield from summarise(reduction, shorter, by, always=summarised)
        if compacted is not None and (summarised or compacted.total < shorter.total):
            shorter, rungs, kind = compacted, how, "compacted"
    if not shorter.suffices:
        shorter, given = give_up(shorter)
        rungs = (*rungs, *given)
    return shorter, rungs, kind


class Auto:
    """Tool results are capped and masked; what lies between head and tail is summarised if that is not enough."""

    name = "auto"
    asks = True

    def shorten(self, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
        """Down the ladder."""
        return bounded(down_the_ladder(reduction, by, summarised=summarised))


class Summarize:
    """What lies between head and tail is summarised, though masking its results might do; the tail stays as it is."""

    name = "summarize"
    asks = True

    def shorten(self, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
        """Summarise; where nothing can be, go down the ladder without that."""
        del summarised
        return bounded(_summarised(reduction, by))


def _summarised(reduction: Reduction, by: Summariser) -> Shortening:
    whole = least_tail(reduction) + by.tokens <= reduction.budget
    tail = reduction if whole else prune(reduction)[0]
    shorter, rungs = yield from summarise(reduction, tail, by, always=True)
    if shorter is None:
        return (yield from bounded(down_the_ladder(reduction, by, summarised=False), most=0))
    if not shorter.suffices:
        shorter, given = give_up(shorter)
        rungs = (*rungs, *given)
    return shorter, rungs, "compacted"


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


class MaskOnly:
    """Tool results are capped and masked; where that is not enough, an extract made by code stands for the oldest turns."""

    name = "mask"
    asks = False

    def shorten(self, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
        """Down the ladder, where every summary that would be asked for is taken for one that failed."""
        return bounded(down_the_ladder(reduction, by, summarised=summarised), most=0)


AUTO = Auto()
STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (AUTO, Summarize(), Truncate(), MaskOnly())
}
"""Strategies by the name that users give them."""

"""What every strategy does, and the way down that most of them take."""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal, Protocol, TypeAlias

from proxy.shortening.asking import Summariser, SummaryAsk
from proxy.shortening.condensing import summarise
from proxy.shortening.ladder import Reduction
from proxy.shortening.pruning import give_up, prune

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

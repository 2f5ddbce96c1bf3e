"""Without a model: tool results give way, and then code tells of what lies between head and tail."""

from __future__ import annotations

from proxy.shortening.asking import Summariser, bounded
from proxy.shortening.ladder import Reduction
from proxy.shortening.strategies.base import Shortening, down_the_ladder


class MaskOnly:
    """Tool results are capped and masked; where that is not enough, an extract made by code stands for the oldest turns."""

    name = "mask"
    asks = False

    def shorten(self, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
        """Down the ladder, where every summary that would be asked for is taken for one that failed."""
        return bounded(down_the_ladder(reduction, by, summarised=summarised), most=0)

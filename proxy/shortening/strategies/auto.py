"""What costs no model's time first, and a summary where that does not suffice."""

from __future__ import annotations

from proxy.shortening.asking import Summariser, bounded
from proxy.shortening.ladder import Reduction
from proxy.shortening.strategies.base import Shortening, down_the_ladder


class Auto:
    """Tool results are capped and masked; what lies between head and tail is summarised if that is not enough."""

    name = "auto"
    asks = True

    def shorten(self, reduction: Reduction, by: Summariser, *, summarised: bool) -> Shortening:
        """Down the ladder."""
        return bounded(down_the_ladder(reduction, by, summarised=summarised))

"""The ladder: ways to shorten a history, cheapest first. A new way is one file and one line here."""

from __future__ import annotations

from proxy.shortening.ladder.base import Cost, Reduction, Rung
from proxy.shortening.ladder.cap import Cap
from proxy.shortening.ladder.duplicates import Duplicates
from proxy.shortening.ladder.mask import Mask

RUNGS: tuple[Rung, ...] = (Cap(), Mask(), Duplicates())
"""Model-free rungs that keep every message in its place, tried in this order before a summary."""

__all__ = ["RUNGS", "Cost", "Reduction", "Rung"]

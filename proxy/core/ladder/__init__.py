"""The ladder: ways to shorten a history, cheapest first. A new way is one file and one line here."""

from __future__ import annotations

from proxy.core.ladder.base import Cost, Job, Rung
from proxy.core.ladder.cap import Cap
from proxy.core.ladder.duplicates import Duplicates
from proxy.core.ladder.mask import Mask

RUNGS: tuple[Rung, ...] = (Cap(), Mask(), Duplicates())
"""Model-free rungs that keep every message in its place, tried in this order before a summary."""

__all__ = ["RUNGS", "Cost", "Job", "Rung"]

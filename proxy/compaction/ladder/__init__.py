"""The ladder: ways to shorten a history, cheapest first. A new way is one file and one line here."""

from __future__ import annotations

from proxy.compaction.ladder.base import Cost, Reduction, Rung
from proxy.compaction.ladder.cap import cap_results
from proxy.compaction.ladder.duplicates import drop_duplicates
from proxy.compaction.ladder.mask import mask_results

RUNGS: dict[str, Rung] = {"cap": cap_results, "mask": mask_results, "duplicates": drop_duplicates}
"""Model-free rungs that keep every message in its place, tried in this order before a summary."""

__all__ = ["RUNGS", "Cost", "Reduction", "Rung"]

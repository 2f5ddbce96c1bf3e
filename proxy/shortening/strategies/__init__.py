"""Strategies: how a history that has to become shorter does. A new one is one file and one line here."""

from __future__ import annotations

from proxy.shortening.strategies.auto import Auto
from proxy.shortening.strategies.base import Kind, Strategy
from proxy.shortening.strategies.mask import MaskOnly
from proxy.shortening.strategies.summarize import Summarize
from proxy.shortening.strategies.truncate import Truncate

AUTO = Auto()

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (AUTO, Summarize(), Truncate(), MaskOnly())
}
"""By the names that users give them."""

__all__ = ["AUTO", "STRATEGIES", "Kind", "Strategy"]

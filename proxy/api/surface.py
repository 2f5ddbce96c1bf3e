"""What the API stands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy.addons.metrics import Metrics
from proxy.api.door import Door
from proxy.api.live.gate import Gate
from proxy.history.checkpoint import Store
from proxy.live.checkpoints import TalkCheckpoints
from proxy.live.looker import Looker
from proxy.net.readiness import ReadinessProbe
from proxy.relay import Relay
from proxy.settings import Settings
from proxy.stages.emulating import CallLedger

SURFACE = "spillway.surface"
"""Where the scope of a request keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What the routes stand on."""

    relay: Relay
    settings: Settings
    metrics: Metrics
    meter: Any
    ledger: CallLedger
    door: Door
    metrics_open: bool
    """Whether metrics need no key."""
    readiness: ReadinessProbe
    gate: Gate
    looker: Looker
    checkpoints: TalkCheckpoints
    store: Store

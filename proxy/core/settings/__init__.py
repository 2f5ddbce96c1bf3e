"""Settings as a frozen value: what can be set, its bounds and its default."""

from __future__ import annotations

from proxy.core.settings.entries import STATUS_FORMS, BackendSetting, Limit, Policy
from proxy.core.settings.settings import LOOPBACK, ModelOverrides, ModelSettings, Settings

__all__ = [
    "LOOPBACK",
    "STATUS_FORMS",
    "BackendSetting",
    "Limit",
    "ModelOverrides",
    "ModelSettings",
    "Policy",
    "Settings",
]

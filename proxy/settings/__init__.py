"""Settings: what can be set, how it is read, and where backends are."""

from __future__ import annotations

from proxy.settings.entries import STATUS_FORMS, BackendSetting, ModelSetting
from proxy.settings.loading import environment, load_settings, state_folder, wants_traces
from proxy.settings.places import is_here, is_nearby, proxy_for
from proxy.settings.settings import Settings

__all__ = [
    "STATUS_FORMS",
    "BackendSetting",
    "ModelSetting",
    "Settings",
    "environment",
    "is_here",
    "is_nearby",
    "load_settings",
    "proxy_for",
    "state_folder",
    "wants_traces",
]

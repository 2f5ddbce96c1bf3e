"""Reading the settings from the environment and a file, and the places of backends and of our own files."""

from __future__ import annotations

from proxy.config.loading import environment, load_settings, state_folder, wants_traces
from proxy.config.places import is_here, is_nearby, proxy_for

__all__ = ["environment", "is_here", "is_nearby", "load_settings", "proxy_for", "state_folder", "wants_traces"]

"""Chat completions: what most clients speak, and what every backend is spoken to in."""

from __future__ import annotations

UPSTREAM_PATH = b"/v1/chat/completions"
"""Where every backend takes requests in this dialect."""

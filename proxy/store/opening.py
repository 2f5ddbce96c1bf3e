"""What every store is told when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from proxy.errors import SettingError

BULK_TIMEOUT = 30.0
"""Seconds that counting, purging or exporting everything may take; no chat request waits for these."""

CLOSE_TIMEOUT = 5.0
"""Seconds that closing may take to finish what is queued."""


MOST_STATES = 4096
"""Learned values kept; their keys hold names of models, which come from clients. One more, and all are learned anew."""

SHELTERED = 2**24
"""Bytes of checkpoints kept in memory while the store does not take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits of a store, and its clocks.

    `clock` gives seconds since the epoch, and may jump; `steady` seconds that never go back or jump. `ttl` is how
    many seconds a checkpoint is kept after its last use; `max_bytes` caps the encoded checkpoints; `timeout` is the
    most seconds an operation may cost a request.
    """

    clock: Callable[[], float]
    steady: Callable[[], float]
    ttl: float
    max_bytes: int
    timeout: float

    def shelter(self) -> StoreLimits:
        """Those of what is kept in memory until the store takes it."""
        return replace(self, max_bytes=min(self.max_bytes, SHELTERED))


def shown(url: str) -> str:
    """The address without what is secret in it: user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.split(":", 1)[0] + "://…"
    if not parts.scheme.startswith("redis"):
        return url
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path}"


def refusal(url: str, reason: str) -> SettingError:
    """The error for a store address that can't be used."""
    return SettingError(f"SPILLWAY_STORE={shown(url)!r}: {reason}")

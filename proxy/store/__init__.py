"""Where checkpoints and learned numbers survive a restart.

To add a store: one file with its opener, one line in `STORES`; the contract tests then cover it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from proxy.history.checkpoint import CheckpointStore
from proxy.store.memory import open_memory
from proxy.store.opening import StoreLimits, refusal

steady_clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds that never go back or jump; Linux also counts those that the machine sleeps."""


def _open_sqlite(url: str, limits: StoreLimits) -> CheckpointStore:
    from proxy.store.sqlite import open_sqlite  # noqa: PLC0415 - 1 MB that only this one needs

    return open_sqlite(url, limits)


def _open_redis(url: str, limits: StoreLimits) -> CheckpointStore:
    try:
        from proxy.store.redis import open_redis  # noqa: PLC0415 - redis is an extra, needed only when chosen
    except ModuleNotFoundError:
        raise refusal(url, "the redis client is not installed; pip install 'spillway-proxy[redis]'") from None
    return open_redis(url, limits)


STORES: Mapping[str, Callable[[str, StoreLimits], CheckpointStore]] = MappingProxyType(
    {
        "sqlite": _open_sqlite,
        "memory": open_memory,
        "redis": _open_redis,
        "rediss": _open_redis,
    }
)


def open_store(
    url: str,
    *,
    clock: Callable[[], float],
    ttl: float,
    max_bytes: int,
    timeout: float,
    steady: Callable[[], float] = steady_clock,
) -> CheckpointStore:
    """Open the store at `url`. Blocks while a file is opened: call it before the event loop serves.

    Args:
        url: `sqlite:///PATH` (four slashes: absolute), `memory://`, `redis://…` or `rediss://…`.
        clock: seconds since the epoch.
        ttl: seconds a checkpoint is kept after its last use.
        max_bytes: of encoded checkpoints kept, the longest unused go first; Redis limits itself (`maxmemory`).
        timeout: seconds an operation of a dead or slow store may cost a request.
        steady: seconds that never go back or jump.

    Raises:
        SettingError: the scheme is unknown, the file can't be written, the address is malformed, or the
            client library is missing.
    """
    opener = STORES.get(url.split("://", 1)[0]) if "://" in url else None
    if opener is None:
        allowed = "sqlite:///PATH, memory://, redis://HOST, rediss://HOST"
        raise refusal(url, f"no such kind of store; allowed are {allowed}")
    limits = StoreLimits(clock=clock, steady=steady, ttl=ttl, max_bytes=max_bytes, timeout=timeout)
    return opener(url, limits)

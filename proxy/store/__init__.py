"""Storage for checkpoints, responses and learned numbers, which survives a restart.

To add a store: one file with a `Driver` and its opener, one line in `STORES`; the contract tests then cover it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from proxy.core.history.checkpoint import Store
from proxy.store.driver import Driver, StoreLimits, refusal
from proxy.store.guarded import GuardedStore
from proxy.store.memory import open_memory


def _open_sqlite(url: str, limits: StoreLimits) -> Driver:
    from proxy.store.sqlite import open_sqlite  # noqa: PLC0415 - 1 MB that only this one needs

    return open_sqlite(url, limits)


def _open_redis(url: str, limits: StoreLimits) -> Driver:
    try:
        from proxy.store.redis import open_redis  # noqa: PLC0415 - redis is an extra, needed only when chosen
    except ModuleNotFoundError:
        raise refusal(url, "the redis client is not installed; pip install 'spillway-proxy[redis]'") from None
    return open_redis(url, limits)


STORES: Mapping[str, Callable[[str, StoreLimits], Driver]] = MappingProxyType(
    {"sqlite": _open_sqlite, "memory": open_memory, "redis": _open_redis, "rediss": _open_redis}
)


def open_store(url: str, *, clock: Callable[[], float], ttl: float, max_bytes: int, timeout: float) -> Store:
    """Open the store at `url`. Blocks while a file is opened: call it before the event loop serves.

    Args:
        url: `sqlite:///PATH` (four slashes: absolute), `memory://`, `redis://…` or `rediss://…`.
        clock: seconds since the epoch.
        ttl: seconds a checkpoint is stored after its last use.
        max_bytes: of encoded checkpoints, the longest unused go first; Redis limits itself (`maxmemory`).
        timeout: seconds an operation of a dead or slow store may cost a request.

    Raises:
        SettingError: the scheme is unknown, the file can't be written, the address is malformed, or the
            client library is missing.
    """
    opener = STORES.get(url.split("://", 1)[0]) if "://" in url else None
    if opener is None:
        allowed = "sqlite:///PATH, memory://, redis://HOST, rediss://HOST"
        raise refusal(url, f"no such kind of store; allowed are {allowed}")
    limits = StoreLimits(clock=clock, ttl=ttl, max_bytes=max_bytes, timeout=timeout)
    return GuardedStore(opener(url, limits), limits)

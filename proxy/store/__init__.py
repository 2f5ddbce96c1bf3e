"""Storage for checkpoints, responses and learned numbers, which survives a restart.

To add a database: one file with a `Driver`, and a line in `_drivers`; the contract tests then cover it.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.store.driver import Driver, StoreLimits, refusal
from proxy.store.guard import Documents, Store
from proxy.store.memory import MemoryDriver

__all__ = ["Documents", "Store", "open_store"]


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
    limits = StoreLimits(clock=clock, ttl=ttl, max_bytes=max_bytes, timeout=timeout)
    try:
        return Store(_driver(url, limits), limits)
    except ValueError as error:
        raise refusal(url, error) from None


def _driver(url: str, limits: StoreLimits) -> Driver:
    """Import only the driver that is needed: SQLite takes 1 MB, and redis is an extra."""
    scheme = url.split("://", 1)[0]
    if url == "memory://":
        return MemoryDriver(limits)
    if scheme == "sqlite":
        from proxy.store.sqlite import open_sqlite  # noqa: PLC0415 - see above

        return open_sqlite(url, limits)
    if scheme not in ("redis", "rediss"):
        raise ValueError("no such kind of store; allowed are sqlite:///PATH, memory://, redis://HOST, rediss://HOST")
    try:
        from proxy.store.redis import RedisDriver  # noqa: PLC0415 - see above
    except ModuleNotFoundError:
        raise ValueError("the redis client is not installed; pip install 'spillway-proxy[redis]'") from None
    try:
        return RedisDriver(url, limits)
    except (ValueError, TypeError):  # redis-py's text may quote the password
        raise ValueError("malformed; write redis://[[user]:password@]host[:port][/database]") from None

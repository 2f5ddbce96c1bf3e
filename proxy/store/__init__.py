"""Storage for checkpoints, responses and learned numbers, which survives a restart.

To add a database: one file with a `Driver`, and a line in `open_store`; the contract tests then cover it.
"""

from __future__ import annotations

from proxy.store.driver import Driver, StoreLimits, refusal
from proxy.store.guard import Store

__all__ = ["Store", "StoreLimits", "open_store"]


def open_store(url: str, limits: StoreLimits) -> Store:
    """Open the store at `url`: `sqlite`, `sqlite:///PATH` (four slashes: absolute), `memory://`, `redis://…` or `rediss://…`.

    Blocks while a file is opened: call it before the event loop serves.

    Raises:
        SettingError: the scheme is unknown, the file can't be written, the address is malformed, or the
            client library is missing.
    """
    scheme = url.split("://", 1)[0]
    driver: Driver
    try:
        if url == "memory://" or scheme == "sqlite":
            from proxy.store.sqlite import open_sqlite  # noqa: PLC0415 - takes 1 MB

            driver = open_sqlite(url, limits)
        elif scheme in ("redis", "rediss"):
            from proxy.store.redis import RedisDriver  # noqa: PLC0415 - an extra

            driver = RedisDriver(url, limits)
        else:
            raise refusal(
                url, "no such kind of store; allowed are sqlite, sqlite:///PATH, memory://, redis://HOST, rediss://HOST"
            )
    except ModuleNotFoundError:
        raise refusal(url, "the redis client is not installed; pip install 'spillway-proxy[redis]'") from None
    except ValueError as error:
        raise refusal(url, error) from None
    return Store(driver, limits)

"""What `spillway store stats|purge|export` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Literal, assert_never

from proxy.history.checkpoint import StoreAdmin, StoreStats
from proxy.store import open_store
from proxy.store.codec import encode
from proxy.store.opening import refusal
from proxy.store.sqlite import sqlite_path

Action = Literal["stats", "purge", "export"]

TIMEOUT = 5.0
"""Seconds that reaching the store may take: somebody waits at a terminal, not a chat request."""


async def run_admin(
    store_url: str, action: Action, *, clock: Callable[[], float], older_than: float | None = None
) -> Iterator[str]:
    """Look into a store, or empty it, while a proxy may be using it.

    Args:
        store_url: as for `open_store`.
        action: `stats`: count, bytes and age; `purge`: delete; `export`: one checkpoint per line, as JSON.
        clock: seconds since the epoch.
        older_than: for `purge`, seconds of age from which checkpoints are deleted; None: all.

    Returns:
        The lines to print, without line ends.

    Raises:
        SettingError: there is no such store, or it can't be reached.
    """
    _refuse_absent(store_url)
    # No TTL and no cap: what is there is shown, and nothing goes but what is purged.
    store = open_store(store_url, clock=clock, ttl=math.inf, max_bytes=2**62, timeout=TIMEOUT)
    try:
        lines = await _run(store, action, clock, older_than)
        if not store.healthy:
            raise refusal(store_url, "the store can't be reached")
    finally:
        await store.close()
    return lines


def _refuse_absent(url: str) -> None:
    if url == "memory://":
        raise refusal(url, "it lives in the memory of the proxy and can't be seen from outside")
    if url.startswith("sqlite:") and not sqlite_path(url).is_file():
        raise refusal(url, "there is no such file yet")


async def _run(
    store: StoreAdmin, action: Action, clock: Callable[[], float], older_than: float | None
) -> Iterator[str]:
    match action:
        case "stats":
            return iter(_stats_lines(await store.stats()))
        case "purge":
            count = await store.purge(older_than=None if older_than is None else clock() - older_than)
            return iter([f"purged {count} checkpoint{'' if count == 1 else 's'}"])
        case "export":
            return (encode(item).decode() for item in await store.export())
        case _:
            assert_never(action)


def _stats_lines(stats: StoreStats) -> list[str]:
    oldest = (
        "-" if stats.oldest is None else datetime.fromtimestamp(stats.oldest, UTC).isoformat("T", "seconds")
    )
    return [f"checkpoints {stats.checkpoints}", f"bytes {stats.bytes}", f"oldest {oldest}"]

"""`spillway store`: look into the checkpoint store, or empty it, while a proxy may be using it."""

import argparse
import asyncio
import math
import time
from datetime import UTC, datetime

from proxy.core.errors import plural
from proxy.core.settings import Settings
from proxy.store import StoreLimits, open_store
from proxy.store.driver import encode, refusal
from proxy.store.sqlite import sqlite_path

_DAY = 86_400.0
_TIMEOUT = 5.0
"""Seconds that reaching the store may take: somebody waits at a terminal, not a chat request."""


def run(settings: Settings, args: argparse.Namespace) -> int:
    """Run one action and print its lines.

    Raises:
        SettingError: there is no such store, or it can't be reached.
    """
    lines = asyncio.run(_lines(settings, args.action, args.older_than))
    print(*lines, sep="\n", end="\n" if lines else "")  # noqa: T201 - a command line tool prints
    return 0


async def _lines(settings: Settings, action: str, days: float | None) -> list[str]:
    """Run `stats`, `purge` or `export`; `days` bounds a purge to checkpoints older than that.

    Raises:
        SettingError: there is no such store, or it can't be reached.
    """
    url, clock = settings.store, time.time  # noqa: TID251 - wall clock of a command
    if url == "memory://":
        raise refusal(url, "it lives in the memory of the proxy and can't be seen from outside")
    path = sqlite_path(url) if url.startswith("sqlite") else None
    if path is not None and not path.is_file():
        raise refusal(url, "there is no such file yet")
    # No TTL and no cap: what is there is shown, and nothing goes but what is purged.
    opened = open_store(url, StoreLimits(clock=clock, ttl=math.inf, max_bytes=2**62, timeout=_TIMEOUT))
    try:
        if action == "purge":
            count = await opened.purge(older_than=None if days is None else clock() - days * _DAY)
            lines = [f"purged {plural(count, 'checkpoint')}"]
        else:
            found = await opened.export()
            encoded = [*map(encode, found)]
            lines = [each.decode() for each in encoded]
            if action == "stats":
                oldest = datetime.fromtimestamp(found[0].created, UTC).isoformat("T", "seconds") if found else "-"
                lines = [f"checkpoints {len(found)}", f"bytes {sum(map(len, encoded))}", f"oldest {oldest}"]
        if not opened.healthy:
            raise refusal(url, "the store can't be reached")
    finally:
        await opened.close()
    return lines

"""`spillway store`: shows, exports or empties the checkpoint store, also while a proxy is using it."""

import argparse
import asyncio
import math
import time
from datetime import UTC, datetime

from proxy.cli import say
from proxy.core.errors import plural
from proxy.core.settings import Settings
from proxy.store import StoreLimits, open_store
from proxy.store.driver import encode, refusal
from proxy.store.sqlite import sqlite_path

_DAY = 86_400.0
_TIMEOUT = 5.0
"""Seconds that an operation may take: longer than for a chat request, since a person waits at a terminal."""


def run(settings: Settings, args: argparse.Namespace) -> int:
    """Run one action and print its lines.

    Raises:
        SettingError: the store does not exist, or cannot be reached.
    """
    for line in asyncio.run(lines(settings, args.action, args.older_than)):
        say(line)
    return 0


async def lines(settings: Settings, action: str, days: float | None = None) -> list[str]:
    """Run `stats`, `purge` or `export`, and return the lines to print; `days` limits a purge to checkpoints older than that.

    Raises:
        SettingError: the store does not exist, or cannot be reached.
    """
    url, clock = settings.store, time.time  # noqa: TID251 - wall clock of a command
    if url == "memory://":
        raise refusal(url, "it lives in the memory of the proxy and can't be seen from outside")
    path = sqlite_path(url) if url.startswith("sqlite") else None
    if path is not None and not path.is_file():
        raise refusal(url, "there is no such file yet")
    # No TTL and no size limit: show everything that is there, and delete only what is purged.
    opened = open_store(url, StoreLimits(clock=clock, ttl=math.inf, max_bytes=2**62, timeout=_TIMEOUT))
    try:
        if action == "purge":
            count = await opened.purge(older_than=None if days is None else clock() - days * _DAY)
            printed = [f"purged {plural(count, 'checkpoint')}"]
        else:
            found = await opened.export()
            encoded = [*map(encode, found)]
            printed = [each.decode() for each in encoded]
            if action == "stats":
                oldest = datetime.fromtimestamp(found[0].created, UTC).isoformat("T", "seconds") if found else "-"
                printed = [f"checkpoints {len(found)}", f"bytes {sum(map(len, encoded))}", f"oldest {oldest}"]
        if not opened.healthy:
            raise refusal(url, "the store can't be reached")
    finally:
        await opened.close()
    return printed

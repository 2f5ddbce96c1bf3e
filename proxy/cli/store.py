"""`spillway store`: shows, exports or empties the checkpoint store, also while a proxy is using it."""

import argparse
import asyncio
import math
import time
from datetime import UTC, datetime
from pathlib import Path

from proxy.cli import say
from proxy.core.errors import SettingError, plural
from proxy.core.settings import Settings
from proxy.store import StoreLimits, open_store
from proxy.store.driver import encode, public_url, refusal
from proxy.store.sqlite import sqlite_path

_DAY = 86_400.0
_TIMEOUT = 5.0
"""Seconds that an operation may take: longer than for a chat request, since a person waits at a terminal."""


def run(settings: Settings, args: argparse.Namespace) -> int:
    """Run one action and print its lines.

    Raises:
        SettingError: the store does not exist, or cannot be reached.
    """
    for line in asyncio.run(_lines(settings, args.action, args.older_than)):
        say(line)
    return 0


def look(settings: Settings) -> tuple[str, list[tuple[str, str, str]]]:
    """Describe where the store is and how much it holds, and find its problems: each has a code, a text and a cure."""
    url, place, problems = settings.store, public_url(settings.store), list[tuple[str, str, str]]()
    try:
        path = sqlite_path(url) if url.startswith("sqlite") else None
        place = str(path.absolute()) if path else place
        if path and path.parent.name and Path("/", path.parent).is_dir() and not path.is_absolute():
            cure = f"if you mean /{path}, write four slashes: SPILLWAY_STORE=sqlite:////{path}"
            problems.append(("relative_store", f"The store {url} is below the current folder: {place}.", cure))
        exists = url != "memory://" and (path is None or path.exists())
        return f"{place} ({', '.join(asyncio.run(_lines(settings, 'stats', None))) if exists else 'empty'})", problems
    except (SettingError, ValueError) as error:
        cure = "correct it; meanwhile conversations go on, but are compacted anew after each restart"
        return f"{place} (fails)", [*problems, ("store_fails", f"{error}.", cure)]


async def _lines(settings: Settings, action: str, days: float | None) -> list[str]:
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

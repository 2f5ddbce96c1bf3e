"""What other processes have put into a SQLite file that is shared: asked for by many at a time, with one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from proxy.store import sqlite_rows as rows
from proxy.store.ledger import Ledger
from proxy.store.sqlite_thread import SqliteThread


@dataclass(slots=True, eq=False)
class _Asked:
    scope: str
    digests: Sequence[bytes]
    told: bool = False


class News:
    """Has a ledger know what others have stored. A thousand who ask at once wait for two statements, not for a thousand."""

    def __init__(self, thread: SqliteThread, ledger: Ledger, version: Callable[[], int]) -> None:
        """`version`: the data version as of which the ledger is complete."""
        self._thread = thread
        self._ledger = ledger
        self._version = version
        self._one = asyncio.Lock()
        self._waiting: list[_Asked] = []

    async def hear(self, scope: str, digests: Sequence[bytes]) -> None:
        """Enter those of these that others have stored by now. Takes no longer than any operation."""
        mine = _Asked(scope, digests)
        self._waiting.append(mine)
        async with self._one:
            if mine.told:
                return
            asked, self._waiting = self._waiting, []
            try:
                statement = partial(
                    rows.newer, asked=[(each.scope, each.digests) for each in asked], than=self._version()
                )
                found = await self._thread.ask(statement)
            except asyncio.CancelledError:  # the others go on without this one
                self._waiting = [each for each in asked if each is not mine] + self._waiting
                raise
            for key, entry in found or ():
                self._ledger.note(key, entry)
            for each in asked:
                each.told = True

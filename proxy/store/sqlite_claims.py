"""Claims in a SQLite file, for the processes of one machine that share it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from functools import partial

from typing_extensions import override

from proxy.store import sqlite_rows as rows
from proxy.store.claims import POLL, LocalClaims
from proxy.store.sqlite_thread import SqliteThread


class FileClaims(LocalClaims):
    """See `Claims`. While the file can't be written they hold within this process alone."""

    def __init__(self, steady: Callable[[], float], thread: SqliteThread | None) -> None:
        """Take what they are kept with.

        Args:
            steady: seconds that never go back or jump, the same to all processes of the machine.
            thread: of the file; None: claims are this process' own.
        """
        super().__init__(steady)
        self._claiming = thread
        self._owners: dict[str, bytes] = {}

    @override
    async def claim(self, key: str, seconds: float) -> bool:
        if not await super().claim(key, seconds):
            return False
        if self._claiming is None:
            return True
        owner = self._owners[key] = secrets.token_bytes(16)
        statement = partial(rows.claim, key=key, owner=owner, steady=self._steady, seconds=seconds)
        mine = False
        try:
            mine = await self._claiming.ask(statement, write=True) is not False
        except asyncio.CancelledError:  # it may have it all the same
            self._claiming.post(partial(rows.release, key=key, owner=owner))
            raise
        finally:
            if not mine:  # another process has it, or nobody waits for it any more
                self._owners.pop(key, None)
                await super().release(key)
        return mine

    @override
    async def renew(self, key: str, seconds: float) -> None:
        await super().renew(key, seconds)
        if self._claiming is not None and (owner := self._owners.get(key)) is not None:
            until = self._steady() + seconds
            await self._claiming.ask(partial(rows.renew, key=key, owner=owner, until=until), write=True)

    @override
    async def release(self, key: str) -> None:
        """See `Claims.release`. Never frees what another process has claimed since."""
        owner = self._owners.pop(key, None)
        if self._claiming is None or owner is None:
            await super().release(key)
            return
        statement = partial(rows.release, key=key, owner=owner)
        try:
            await self._claiming.ask(statement, write=True)
        except asyncio.CancelledError:  # it may not have come to that
            self._claiming.post(statement)
            raise
        finally:
            await super().release(key)

    @override
    async def wait(self, key: str, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await super().wait(key, seconds)
                while await self._claimed(key):  # noqa: ASYNC110 - the event happens in another process
                    await asyncio.sleep(POLL)

    async def _claimed(self, key: str) -> bool:
        if self._claiming is None:
            return False
        return bool(await self._claiming.ask(partial(rows.claimed, key=key, steady=self._steady)))

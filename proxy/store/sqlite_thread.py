"""The bridge between the event loop and the thread that owns the SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from proxy.store.breaker import StoreGuard, Use
from proxy.store.opening import CLOSE_TIMEOUT
from proxy.store.sqlite_file import Overtaken, SqliteFile, describe, judge, passing
from proxy.store.sqlite_rows import NotOurs
from proxy.store.worker import QueueFull, Worker

T = TypeVar("T")

QUEUE_DEPTH = 512
"""Statements that may wait for the disk before one that nobody waits for is dropped."""


def _nothing(_: object) -> None:
    pass


class SqliteThread:
    """Runs statements on the file, in order, under its `guard`. Nothing but `start` and `close` waits long."""

    def __init__(self, file: SqliteFile, *, timeout: float) -> None:
        self._file = file
        self._timeout = timeout
        self._worker = Worker("spillway-sqlite", depth=QUEUE_DEPTH)
        self.guard = StoreGuard("store sqlite", describe=describe, judge=judge)
        self._closed = False

    def start(self, statement: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run the first statement and block until it is done; None when it may work later.

        Raises:
            OSError, sqlite3.Error, NotOurs: it can never work. The thread has ended.
        """
        use = self.guard.enter(seconds=CLOSE_TIMEOUT, write=False)
        future = self._worker.submit(partial(self._file.run, statement))
        try:
            return future.result(CLOSE_TIMEOUT)
        except (OSError, sqlite3.Error, NotOurs) as error:
            if use is None or not passing(error):
                self._worker.stop(self._file.close)
                raise
            self.guard.failed(use, error)
            return None

    async def ask(
        self, statement: Callable[[sqlite3.Connection], T], *, seconds: float = 0.0, write: bool = False
    ) -> T | None:
        """Run a statement and wait for its answer; None when there is none within so many seconds."""
        seconds = seconds or self._timeout
        return await self.guard.run(
            lambda: self._call(partial(self._file.run, statement, look=write), seconds),
            None,
            seconds=seconds,
            write=write,
        )

    def post(
        self,
        statement: Callable[[sqlite3.Connection], T],
        done: Callable[[T | None], None] = _nothing,
        *,
        write: bool = True,
    ) -> None:
        """Queue a statement; `done` gets its result later, or None when it failed or was not even queued.

        Results arrive in the order of queueing.
        """
        use = self.guard.enter(seconds=self._timeout, write=write)
        if use is None:
            return done(None)
        try:
            future = self._worker.offer(partial(self._in_turn, use, statement))
        except QueueFull as error:
            self.guard.failed(use, error)
            return done(None)
        asyncio.wrap_future(future).add_done_callback(partial(self._posted, use, done))
        return None

    async def close(self) -> None:
        """Finish what is queued and close the file, within `CLOSE_TIMEOUT` seconds."""
        if self._closed:
            return
        self._closed = True
        self.guard.close()
        future = asyncio.wrap_future(self._worker.stop(self._file.close))
        await asyncio.wait({future}, timeout=CLOSE_TIMEOUT)
        if future.done():
            future.exception()  # nobody is left to be told

    async def _call(self, job: Callable[[], T], seconds: float) -> T:
        future = asyncio.wrap_future(self._worker.submit(job))
        try:
            # Not asyncio.timeout: when the loop was held up, an answer that has come meanwhile counts.
            await asyncio.wait({future}, timeout=seconds)
            if not future.done():
                raise TimeoutError
            return future.result()
        finally:
            future.cancel()

    def _in_turn(self, use: Use, statement: Callable[[sqlite3.Connection], T]) -> T:
        if self.guard.overtaken(use):
            raise Overtaken
        return self._file.run(statement)

    def _posted(self, use: Use, done: Callable[[Any], None], future: asyncio.Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, Exception):
            self.guard.failed(use, error)
            done(None)
        else:
            self.guard.worked(use)
            done(future.result())

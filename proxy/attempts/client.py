"""The client's side of a streamed answer: opened late, kept alive, told what is going on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Protocol

from typing_extensions import override

from proxy.core.dialect import Writer
from proxy.core.errors import FAILED, ClientError, InternalError
from proxy.core.headers import Headers
from proxy.core.piece import NOBODY, Identity, Piece
from proxy.exchange import Exchange
from proxy.net.tasks import spawn
from proxy.stream.status import FORMS, Form, Notice, carries_chunks

_log = logging.getLogger("spillway.stream")

PROGRESS, LONGEST_PROGRESS = 2.0, 16.0
"""Seconds until it is told how far a summary has come, and between two times that it is told at most."""


class Audience(Protocol):
    """Whoever gets the answer as it is made."""

    identity: Identity | None
    """Under which notices were sent before the backend gave the answer one; None: none was."""
    writer: Writer
    """Writes all that it gets."""
    beside: Sequence[Form]
    """How something is told beside the answer, not in its own text; empty: it is not."""

    async def notify(self, notice: Notice) -> None:
        """Show a notice."""
        ...

    def progress(self, written: Callable[[], int]) -> AbstractAsyncContextManager[None]:
        """Show, while inside, how many tokens of a summary are written."""
        ...

    def write(self, data: bytes) -> Awaitable[None]:
        """Take bytes of the stream."""
        ...


class Nobody:
    """For answers that are sent whole: nothing is shown while they are made."""

    identity: Identity | None = None

    beside: Sequence[Form] = ()

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    async def notify(self, notice: Notice) -> None:
        """Show nothing."""

    def progress(self, written: Callable[[], int]) -> AbstractAsyncContextManager[None]:
        """Show nothing."""
        del written
        return nullcontext()

    async def write(self, data: bytes) -> None:
        """Drop it: the answer itself is kept by the session."""


class ClientStream:
    """Writes server-sent events to one client.

    The response is opened with the first bytes, so that until then a real status code can be sent; or after
    `grace` seconds of silence, with a comment, so that neither the client nor what is between gives up.
    """

    def __init__(
        self,
        exchange: Exchange,
        writer: Writer,
        *,
        form: str,
        own: Identity,
        extra_headers: Callable[[], Headers],
        grace: float,
        heartbeat: float,
    ) -> None:
        """Make it; nothing is sent yet.

        Args:
            exchange: the client.
            writer: of the answer, in the client's dialect.
            form: a key of the status forms.
            own: under which notices go out while the backend has not given the answer an identity.
            extra_headers: gives Spillway's own headers when they are due.
            grace: seconds after which a silent response is opened.
            heartbeat: seconds between comments on a silent stream.
        """
        self.exchange = exchange
        self.writer = writer
        self.identity: Identity | None = None
        self.head: Headers = ((b"content-type", writer.media_type.encode()), (b"cache-control", b"no-cache"))
        """The backend's, once it has answered in the client's dialect."""
        self._forms = FORMS[form]
        self.beside: Sequence[Form] = [form for form in self._forms if form in FORMS["auto"]]
        self._own = own if carries_chunks(form) else None
        self._own_headers = extra_headers
        self._queued: list[bytes] = []
        """Notices, written when they were told: what a writer writes depends on what it wrote before."""
        self._opening = b""
        self._telling = False
        self._heading = False
        """Whether the head waits until the client reads."""
        self._heartbeat = heartbeat
        self._beating: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(grace, self._tick)

    async def notify(self, notice: Notice) -> None:
        """Show a notice, at the latest when the response opens. One that closes nothing is left out, but for the last."""
        if not self._forms or (notice.done is not self._telling and not notice.ended):
            return
        self._telling = not notice.done
        self._introduce()
        written = self._framed(notice)
        if self.exchange.started:
            await self.write(written)
        else:
            self._queued.append(written)

    @asynccontextmanager
    async def progress(self, written: Callable[[], int]) -> AsyncIterator[None]:
        """Show, while inside, how many tokens of a summary are written: now and then, and ever more rarely."""
        task = spawn(self._show_progress(written), name="progress")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _show_progress(self, written: Callable[[], int]) -> None:
        pause, shown = PROGRESS, 0
        while self.beside:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PROGRESS)
            # Until the response opens there is one notice waiting, which says that it is being compacted.
            if self._telling and self.exchange.started and written() > shown:
                shown = written()
                await self.write(self._written(Notice(done=False, written=shown), self.beside))

    def write(self, data: bytes) -> Awaitable[None]:
        """Send bytes of the answer. No coroutine of its own: this runs for every chunk."""
        self._last = self._loop.time()
        if self._beating is not None and not self._beating.done():
            return self._after_beat(data)
        return self._write(data)

    def _write(self, data: bytes) -> Awaitable[None]:
        return self.exchange.write(data) if self.exchange.started else self._open_with(data)

    async def _after_beat(self, data: bytes) -> None:
        await self._beaten()
        await self._write(data)

    async def _beaten(self) -> None:
        """Wait for a heartbeat that waits for the client: it would come in between, or after the end."""
        if self._beating is not None:
            await asyncio.wait({self._beating})

    async def _open_with(self, data: bytes) -> None:
        await self._open()
        await self.exchange.write(data)

    async def end(self) -> None:
        """End the answer."""
        self.stop()
        await self._beaten()
        if not self.exchange.started:
            await self._open()
        await self.exchange.end()

    async def close_notice(self) -> None:
        """Close a notice that is still open, so that no client shows it as running for ever."""
        await self.notify(Notice(done=True, failed=True))

    def stop(self) -> None:
        """No more heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _open(self) -> None:
        queued, self._queued = self._queued, []
        self._heading = True
        await self.exchange.start(200, [*self.head, *self._own_headers()])
        self._heading = False
        if opening := b"".join(queued):
            await self.exchange.write(opening)

    def _framed(self, notice: Notice) -> bytes:
        opening, self._opening = self._opening, b""
        return opening + self._written(notice, self._forms)

    def _written(self, notice: Notice, forms: Iterable[Form]) -> bytes:
        identity = self.identity or NOBODY
        return b"".join(self.writer.insert(form(notice), identity) for form in forms)

    def _introduce(self) -> None:
        """Give the answer an identity if a notice needs one before the backend has."""
        if self.identity is None and self._own is not None:
            self.identity = self._own
            self._opening = self.writer.insert(Piece(role=True), self._own)

    async def _beat(self) -> None:
        # The answer may have ended, or something else may own the response, since the timer went off.
        if self._timer is not None:
            self._last = self._loop.time()
            await self._write(self.writer.insert(Piece(comment="spillway"), NOBODY))

    def _tick(self) -> None:
        silent = not self.exchange.started or self._loop.time() - self._last >= self._heartbeat * 0.9
        # One that waits until the client reads is enough, and the head comes first.
        if silent and not self._heading and (self._beating is None or self._beating.done()):
            self._beating = spawn(self._beat(), name="heartbeat")
        self._timer = self._loop.call_later(self._heartbeat, self._tick)


class KeepingStream(ClientStream):
    """The same for an answer that is kept: it is before the client has its end, and may ask for more."""

    keep: Callable[[dict[str, Any]], Awaitable[None]] | None = None

    @override
    def write(self, data: bytes) -> Awaitable[None]:
        if self.keep is None or self.writer.final is None:
            return super().write(data)
        return self._keep_first(data)

    async def _keep_first(self, data: bytes) -> None:
        keep, final = self.keep, self.writer.final
        assert keep is not None
        assert final is not None
        self.keep = None
        await keep(final)
        await super().write(data)


async def end_with_nothing(client: ClientStream, identity: Identity) -> None:
    """An answer in which no model says anything: what the client is told beside that is all of it."""
    await client.close_notice()
    await client.write(client.writer.insert(Piece(choice=True), identity) + client.writer.end())
    await client.end()


def client_error(exchange: Exchange, error: BaseException) -> ClientError:
    """Error that ends a stream which is open already, whatever went wrong.

    Raises:
        ClientError: nothing was sent yet, so that it can have a status.
        BaseException: the error itself; nobody is there to be told, or the endpoint does it.
    """
    failed = exchange.stopped() if isinstance(error, asyncio.CancelledError) else error
    if failed is None or exchange.ended or not exchange.started:
        raise (failed or error) from None
    if isinstance(failed, ClientError):
        return failed
    _log.error("answer failed: %s", type(failed).__name__, exc_info=failed)
    return InternalError(FAILED)


async def end_with_error(client: ClientStream, body: dict[str, Any]) -> None:
    """An error after the status code: inside the stream, which then ends in good order."""
    await client.close_notice()
    await client.write(client.writer.error(body))
    await client.end()

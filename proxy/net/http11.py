"""One HTTP/1.1 connection to a backend: writes a request, parses the response, one exchange at a time.

llhttp (through httptools) does the parsing. Waking the reader once per received segment, and not once
per header or HTTP chunk, is what makes it cheap.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterable, Callable
from functools import partial
from typing import Protocol

import httpx
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from typing_extensions import override

from proxy.net.framing import BODILESS, InvalidResponse, fault_in, has_body, is_chunked, is_framed
from proxy.net.sending import Seconds, Sending
from proxy.net.silence import Silence
from proxy.net.sockets import readable
from proxy.net.tasks import spawn

HIGH_WATER = 256 * 1024
"""Bytes of body buffered before the socket is left unread, so that a slow client slows its backend."""
JOIN_LIMIT = 64 * 1024
"""Bytes of body up to which head and body are copied together into one write."""
BETWEEN = 128 * 1024
"""Bytes that may come without anything of the answer: its head, 1xx responses, what frames the body, trailers."""


class Owner(Protocol):
    """Who is told that a connection is gone."""

    def connection_gone(self, connection: Connection) -> None:
        """Forget `connection`."""
        ...


class Connection(asyncio.Protocol):
    """A connection and the state of its current exchange.

    `start` or `upload` begins an exchange, `read_head` waits for the response head, `read` yields the
    body. Failures are httpx exceptions. The owner decides from `reusable` what becomes of it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Owner, origin: tuple[str, str, int | None]
    ) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self.after_stream = False
        """Whether it is idle since a response whose length nobody told; for the owner, as `idle_since`."""
        self.responded = False
        """Whether any byte of the current response has arrived."""
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.taker: Callable[[bytes], bool] | None = None
        """Is offered what comes of the body while the reader waits; True: it took it, and the reader goes on waiting."""
        self._loop = loop
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._readable: Callable[[], object] = lambda: True
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._blocked: asyncio.Future[None] | None = None
        """Waits for room to write; `_waiter` for anything of the response."""
        self._silence = Silence(loop, self._waits, partial(self._late, httpx.ReadTimeout, "said"))
        self._sending = Sending(loop, self._unsent, partial(self._late, httpx.WriteTimeout, "read"))
        self._writable = True
        self._sent = self._has_head = self._complete = True
        self._keep_alive = False
        self._head_only = False
        self._paused = False
        self._chunks: list[bytes] = []
        self._size = self._between = 0
        self._parser: HttpResponseParser | None = None

    # -- an exchange ---------------------------------------------------------------------------------

    def start(self, head: bytes, body: bytes, seconds: Seconds, *, head_only: bool) -> None:
        """Send a whole request. `head_only`: the response has no body whatever its head says (HEAD)."""
        transport = self._begin(head_only=head_only)
        if len(body) <= JOIN_LIMIT:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
            self._sending.wrote(len(head) + len(body), seconds.send)
        self._silence.watch(seconds.read)

    async def upload(
        self, head: bytes, body: AsyncIterable[bytes], seconds: Seconds, *, chunked: bool, head_only: bool
    ) -> None:
        """Send a request whose body is produced while it is sent; stops once the server has answered.

        An answer that comes before the end of the body ends the upload, even while nobody has more of it to send. What
        the body raises is raised by `read_head`.
        """
        self._begin(head_only=head_only).write(head)
        self._sent = False
        pump = spawn(self._pump(body, chunked=chunked, seconds=seconds.send), name="upload")
        try:
            while not (self._has_head or self._sent or self._error is not None):
                await self._wait()
        finally:
            pump.cancel()
        self._silence.watch(seconds.read)

    async def _pump(self, body: AsyncIterable[bytes], *, chunked: bool, seconds: float) -> None:
        try:
            async for data in body:
                if data:
                    await self._put(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data, seconds)
            await self._put(b"0\r\n\r\n" if chunked else b"", seconds)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is raised where the response is waited for
            if not self._has_head:
                self._fail(error)
        else:
            self._sent = True
            self._wake()

    async def _put(self, data: bytes, seconds: float) -> None:
        if self.readable:
            # A server that answers before it has read all may close at once: then writing would lose its answer.
            await asyncio.sleep(0)
        if self._transport is not None:
            self._transport.write(data)
            self._sending.wrote(len(data), seconds)
        while not self._writable:
            self._blocked = self._loop.create_future()
            await self._blocked

    async def read_head(self) -> None:
        """Wait until `status`, `reason` and `headers` are those of the response (not of a 1xx before it).

        Raises:
            httpx.ReadTimeout, httpx.WriteTimeout: nothing came, or nothing was taken, for as long as is allowed.
            httpx.ReadError: the connection broke.
            httpx.RemoteProtocolError: it was closed before the head was whole, or it isn't HTTP.
        """
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """Give what has arrived of the body since the last call, waiting for at least one byte; b"" is its end.

        Raises:
            httpx.HTTPError: as `read_head`, and `RemoteProtocolError` for a body that breaks off.
        """
        while True:
            chunks = self._chunks
            if chunks:
                data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                chunks.clear()
                self._size = 0
                if self._paused:
                    self._resume()
                return data
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()

    @property
    def at_end(self) -> bool:
        """Whether the body is complete, and has been read."""
        return self._complete and not self._chunks

    @property
    def reusable(self) -> bool:
        """Whether the exchange ended cleanly and both sides leave the connection open."""
        transport = self._transport
        return (
            self._complete
            and self._keep_alive
            and self._sent
            and self._error is None
            and not self._chunks
            and transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        )

    @property
    def connected(self) -> bool:
        """Whether the connection is open as far as anyone has told us."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def streamed(self) -> bool:
        """Whether the last response had a body whose length its head did not tell."""
        return is_chunked(self.headers)

    @property
    def readable(self) -> bool:
        """Whether the socket has something that the loop has not yet told us: on an idle connection, most likely its end."""
        return self._transport is None or bool(self._readable())

    def abort(self) -> None:
        """Close the socket at once, dropping what was not sent."""
        self._silence.stop()
        self._sending.stop()
        if self._transport is not None:
            self._transport.abort()

    # -- inside --------------------------------------------------------------------------------------

    def _begin(self, *, head_only: bool) -> asyncio.Transport:
        if self._transport is None:
            raise httpx.ReadError("the connection was closed while it was idle")
        self.responded = self._has_head = self._complete = self._keep_alive = False
        self.status, self.reason, self.headers = 0, b"", []
        self._sent, self._between, self._head_only = True, 0, head_only
        # A parser for each response: after one to HEAD it would wait for a body that never comes.
        self._parser = HttpResponseParser(self)
        return self._transport

    def _wait(self) -> asyncio.Future[None]:
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _taken(self) -> bool:
        """Whether the taker has taken all that came: one piece, and not the last."""
        take, waiter, chunks = self.taker, self._waiter, self._chunks
        if (
            take is None
            or waiter is None
            or waiter.done()
            or len(chunks) != 1
            or self._complete
            or self._error
        ):
            return False
        try:
            if not take(chunks[0]):
                return False
        except Exception as error:  # noqa: BLE001 - the reader is told
            self._fail(error)
        chunks.clear()
        self._size = 0
        return True

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    def _resume(self) -> None:
        self._paused = False
        self._silence.heard = self._loop.time()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _waits(self) -> bool | None:
        if self._complete or self._error is not None:
            return None
        return self._waiter is not None and not self._paused

    def _unsent(self) -> int:
        transport = None if self._has_head or self._error is not None else self._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def _late(self, kind: type[httpx.TimeoutException], does: str, seconds: float) -> None:
        self._fail(kind(f"the server {does} nothing for {seconds:g} s"))

    # -- asyncio.Protocol ----------------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, as create_connection makes
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # A prompt may be processed for minutes without a byte; routers forget such connections.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._readable = readable(sock.fileno())

    @override
    def data_received(self, data: bytes) -> None:
        self.responded = True
        parser = self._parser
        if parser is None or self._complete:
            self._keep_alive = False
            self.abort()  # bytes that belong to no request
            return
        had, size = self._has_head, self._size
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._keep_alive = False
            if not self._complete:
                self._fail(InvalidResponse(str(error.__context__ or error)))
        if self._head_only and not data.endswith(b"\r\n\r\n"):
            self._keep_alive = False  # something lies behind the head
        if self._size > size or self._has_head is not had:
            self._silence.heard = self._loop.time()
            self._between = 0
        else:
            self._between += len(data)
            if self._between > BETWEEN and not self._complete:
                self._fail(InvalidResponse(f"{self._between} bytes with nothing of an answer"))
                self.abort()
        if self.taker is None or not self._taken():
            self._wake()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._silence.stop()
        self._sending.stop()
        if not self._complete:
            if self._has_head and exc is None and not is_framed(self.headers):
                self._complete = True
            else:
                self._fail(self._loss(exc))
        self._wake()
        self._owner.connection_gone(self)

    @override
    def pause_writing(self) -> None:
        self._writable = False

    @override
    def resume_writing(self) -> None:
        self._writable = True
        if self._blocked is not None and not self._blocked.done():
            self._blocked.set_result(None)

    def _loss(self, exc: Exception | None) -> httpx.HTTPError:
        if exc is not None:
            return httpx.ReadError(str(exc) or type(exc).__name__)
        if self._has_head:
            return httpx.RemoteProtocolError("the server closed the connection in the middle of the body")
        return httpx.RemoteProtocolError("the server closed the connection without a response")

    # -- httptools callbacks -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Refuse a response that nobody asked for: its head would be taken for that of the one before."""
        if self._complete:
            raise ValueError("a second response")

    def on_status(self, status: bytes) -> None:
        """Take the reason phrase; it may come in pieces."""
        self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body (trailers) are dropped."""
        if not self._has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Take the head, unless it is that of a 1xx response."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if (fault := fault_in(status, self.headers)) is not None:
            raise ValueError(fault)
        if status < 200:
            self.reason, self.headers = b"", []
            return
        self.status = status
        self._has_head = True
        if self._head_only or status in BODILESS:
            self._complete = True
            told = not self._head_only and has_body(self.headers)
            self._keep_alive = not told and self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """Buffer a piece of the body; too much of it stops reading."""
        if self._complete:
            self._keep_alive = False
            return
        self._chunks.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Note the end of the response, unless it is a 1xx one."""
        if not self._has_head:
            return
        if self._complete:
            self._keep_alive &= not has_body(self.headers)  # else there was one although there is none
            return
        assert self._parser is not None
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()

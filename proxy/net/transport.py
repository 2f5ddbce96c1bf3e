"""The HTTP client under everything that talks to a backend: httpx's requests and responses over aiohttp's connections.

aiohttp parses, pools, races addresses (RFC 8305) and goes through proxies; httpx's `AsyncBaseTransport` is the seam for tests.
Bodies of responses are read to their end within bounds.
"""

import asyncio
import logging
import os
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import BadHttpMessage
from typing_extensions import override
from yarl import URL

from proxy.core.errors import SettingError, UpstreamTimeout, UpstreamTooLarge, UpstreamUnavailable
from proxy.net.headers import VISITED, visited

_log = logging.getLogger("spillway")

# Connections are reused because opening one for each POST took a third of the time of sending a short request. Longer
# than a second is not safe: the server may be closing the connection just then.
KEEP_ALIVE = 1.0
"""Seconds for which an idle connection is reused: less than the 2 s of gunicorn and the 5 s of uvicorn, Node and llama-server."""
PIECE = 512 * 1024
"""Bytes of a request body written at a time; aiohttp objects to 1 MiB and more."""
HEADER_BYTES = 65_536
"""Longest header of a response, in bytes; some gateways exceed aiohttp's own limit of 8 kB."""
# Each busy stream used to be read as far as it had come, up to 128 KiB at a time: among 400 of them, a new stream's
# first byte took 0.1 to 11 s. With 8 KiB it takes 0.1 to 3 s, and the busy ones together are read faster.
TURN_BYTES = 8192
"""Bytes of a response that are read in one turn: small enough that hundreds of busy streams let a new one in within a second."""
NO_HOST = "there is no host "
NO_TLS = "no TLS connection could be made: "
UNTRUSTED = f"{NO_TLS}certificate verify failed"
"""Texts of errors for which `spillway check` has advice."""
ERROR_BYTES = 256 * 1024
"""Bytes of an error's body that are read."""
ERROR_SECONDS = 30.0
"""Seconds for reading an error's body."""
QUOTED = 2000
"""Characters of a backend's own words in an error of Spillway's."""
MOST_INTERIM = 100
"""Maximum number of 1xx responses before the final one."""
_SENDABLE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")
"""Header as defined by RFC 9110, section 5. aiohttp is more lenient, but the clients that get these headers are not."""
_ADDED_BY_AIOHTTP = ("accept", "accept-encoding", "content-type", "user-agent")


class InvalidResponse(httpx.RemoteProtocolError):
    """A server's response is not valid HTTP/1.1."""


class HttpTransport(httpx.AsyncBaseTransport):
    """A pool of HTTP/1.1 connections without a limit, cookies, redirects or decompression.

    llama-server silently closes each connection after a stream, and any server may close one just as it is reused. So a
    request that fails at once on a reused connection, before the first byte of its response, is sent again over a new one. If
    it fails later, the server may already have worked on it.

    Args:
        connect_timeout: seconds to look the host up, connect and shake hands.
        read_timeout: seconds in which the server has to take a request and send the head of its response, and of silence
            in the body of a response; there is no limit on the total.
        ssl_context: for https; default: certifi's roots, verified.
        proxies: URLs of HTTP proxies by that of the origin that is reached through them, e.g. `https://openrouter.ai`.

    Raises:
        ValueError: a proxy's URL is malformed, or its scheme is neither http nor https.
        SettingError: the file of certificates that the environment names can't be used.
    """

    # Directly on aiohttp. CPU time of a short streamed request, measured side by side: aiohttp alone 0.14 ms, this 0.24,
    # `httpx.AsyncClient` over httpx-aiohttp 0.2 0.31 to 0.36, over httpx's own transport 0.61. The client would bring
    # what is not wanted here: cookies that clients would share, and a line of the log with each URL, which may hold a
    # key. And httpx-aiohttp keeps 6 of the 45 promises tested of this transport: it reports a connection that breaks as
    # one that can't be made in time, lets aiohttp's own errors out, sends no POST again whose old connection was closed,
    # does not count what the server takes of a request, and reads a busy stream without giving way. What makes up for
    # that is all but a dozen lines of this file. A client of our own, with parser and pool, saved 0.05 ms for 1,900.

    def __init__(
        self,
        *,
        connect_timeout: float,
        read_timeout: float,
        ssl_context: ssl.SSLContext | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> None:
        self._timeouts = {"connect": connect_timeout, "read": read_timeout}
        try:
            self._ssl = ssl_context or httpx.create_ssl_context()
        except OSError as error:
            raise SettingError(f"SSL_CERT_FILE can't be used: {error.strerror or error}") from None
        self._proxies = {URL(origin).origin(): URL(proxy) for origin, proxy in (proxies or {}).items()}
        for proxy in self._proxies.values():
            if proxy.scheme not in {"http", "https"}:
                raise ValueError(f"a proxy is reached by http or https, not by {proxy.scheme or 'nothing'}")
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._malformed: set[URL] = set()
        """Origins that sent malformed headers."""

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise httpx.ConnectError("the transport is closed")
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_connected)
        trace.on_connection_create_end.append(_note_connected)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._ssl, keepalive_timeout=KEEP_ALIVE)
        factory = partial(_Connection, loop=asyncio.get_running_loop())
        connector._factory = factory  # type: ignore[assignment]  # noqa: SLF001 - aiohttp has no public way
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_ADDED_BY_AIOHTTP,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
            trace_configs=[trace],
        )
        return self._session

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and return the response once its head is there; its stream must be closed.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: no connection; the text says why.
            httpx.ReadTimeout, httpx.ReadError, InvalidResponse: no response.
            httpx.LocalProtocolError: the request can't be sent, because the client's own is malformed.

        Exceptions from the producer of a body are raised here.
        """
        timeouts = request.extensions.get("timeout", self._timeouts)
        now = asyncio.get_running_loop().time
        began = now()
        while True:  # may repeat several times: a restarted server has closed every idle connection
            sending = _Sending(timeouts["read"])
            try:
                return await self._send(request, sending, timeouts["connect"])
            except httpx.ReadError:
                if not sending.reused or now() - began > KEEP_ALIVE or not isinstance(request.stream, httpx.ByteStream):
                    raise

    async def _send(self, request: httpx.Request, sending: "_Sending", connect_timeout: float) -> httpx.Response:
        session, url = self._session or self._open(), URL(str(request.url), encoded=True)
        headers = request.headers.multi_items()
        if passed := visited.get():  # probes carry it too: a backend that is this Spillway would probe itself for ever
            headers.append((VISITED.decode(), passed.decode("latin-1")))
        try:
            async with sending.deadline:
                if isinstance(request.stream, httpx.ByteStream) and len(request.content) <= PIECE:
                    data: bytes | AsyncIterable[bytes] = request.content
                else:
                    data = sending.pieces(request)
                    headers = [(name, value) for name, value in headers if name != "transfer-encoding"]  # aiohttp's own
                response = await session.request(
                    request.method,
                    url,
                    headers=headers,
                    data=data or None,
                    allow_redirects=False,
                    proxy=self._proxies.get(url.origin()) if self._proxies else None,
                    timeout=aiohttp.ClientTimeout(connect=connect_timeout),
                    trace_request_ctx=sending,
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise sending.failure or _translated(error, sending.seconds) from error
        passing = [each for each in response.raw_headers if _SENDABLE.fullmatch(b":".join(each))]
        if len(passing) < len(response.raw_headers) and (origin := url.origin()) not in self._malformed:
            self._malformed.add(origin)
            names = b", ".join(name for name, value in response.raw_headers if (name, value) not in passing)
            _log.warning("%s sends malformed headers, which are left out: %.80r", origin, names)
        body = _Body(response, sending.seconds)
        return httpx.Response(response.status, headers=passing, stream=body, request=request)

    @override
    async def aclose(self) -> None:
        """Close every connection, including those in use."""
        self._closed = True
        if self._session is not None:
            await self._session.close()


@dataclass(slots=True)
class _Sending:
    """State of sending one request. Once connected, each piece that the server accepts extends the deadline of its response."""

    seconds: float
    deadline: asyncio.Timeout = field(default_factory=partial(asyncio.timeout, None))
    reused: bool = False
    """Whether the connection was used before."""
    failure: BaseException | None = None
    """Exception from the producer of the body, which is the real cause: the server only sees a request that ends too early."""

    def extend(self) -> None:
        """Give the server the full time from now on."""
        self.deadline.reschedule(asyncio.get_running_loop().time() + self.seconds)

    async def pieces(self, request: httpx.Request) -> AsyncIterator[bytes]:
        """Yield a body that is large, or still being produced, in pieces."""
        assert isinstance(request.stream, httpx.AsyncByteStream)
        task = asyncio.current_task()
        try:
            async for data in request.stream:
                for at in range(0, len(data), PIECE):
                    await asyncio.sleep(0)  # lets the loop notice a closed connection before the next write fails
                    self.extend()
                    yield data[at : at + PIECE]
        except (Exception, asyncio.CancelledError) as error:
            if task is not None and not task.cancelling():  # aiohttp cancels it once the server has answered
                self.failure = error
            raise


async def _note_connected(session: object, context: SimpleNamespace, params: object) -> None:
    del session
    sending: _Sending = context.trace_request_ctx
    sending.reused = isinstance(params, aiohttp.TraceConnectionReuseconnParams)
    sending.extend()


class _Connection(ResponseHandler):
    """A connection whose server may refuse a request and hang up before it has read all of it."""

    _interim = 0

    @override
    async def read(self) -> Any:
        """Read the head of a response; an error keeps the connection out of the pool."""
        head, body = await super().read()
        if not 100 <= head.code < 600 or head.code == 101:
            raise BadHttpMessage(f"a status of {head.code:03}")
        self._interim = self._interim + 1 if head.code < 200 else 0
        if self._interim > MOST_INTERIM:
            raise BadHttpMessage(f"more than {MOST_INTERIM} responses before the final one")
        return head, body

    @override
    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """Also end the body being read: aiohttp (3.14) reports broken chunks only to the reader of the next head."""
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError(str(exc)))
        super().set_exception(exc, *cause)

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        """Read what the server has sent before closing: a failed write would end the connection with the response unread."""
        # Without this, a backend's 413 reached the client as 502 in about one of ten tries on a busy machine.
        transport = self.transport
        if transport is not None and isinstance(exc, OSError) and transport.get_extra_info("ssl_object") is None:
            with suppress(OSError):
                while data := os.read(transport.get_extra_info("socket").fileno(), HEADER_BYTES):
                    self.data_received(data)
        super().connection_lost(exc)


@dataclass(slots=True)
class _Body(httpx.AsyncByteStream):
    """The body of a response, in pieces as they arrive; silence of `seconds` is an error.

    Closing it before its end closes the connection.
    """

    response: aiohttp.ClientResponse
    seconds: float

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = self.response.content
        while True:
            try:
                async with asyncio.timeout(self.seconds):
                    piece = await content.read(TURN_BYTES)
            except (aiohttp.ClientError, OSError) as error:
                raise _translated(error, self.seconds) from error
            if not piece:
                return
            yield piece
            if len(piece) == TURN_BYTES:
                await asyncio.sleep(0)

    @override
    async def aclose(self) -> None:
        self.response.close()


def _translated(error: Exception, seconds: float) -> httpx.TransportError:
    """Translate an error of aiohttp's to httpx's; `seconds` is the time limit that a timeout's text names."""
    number = getattr(error, "errno", None)
    text = os.strerror(number).lower() if number else str(error) or type(error).__name__
    match error:
        case aiohttp.ConnectionTimeoutError():
            return httpx.ConnectTimeout(text)
        case TimeoutError():
            return httpx.ReadTimeout(f"nothing came within {seconds:g} s")
        case aiohttp.ClientConnectorError():
            return httpx.ConnectError(_connect_failure(error) or text)
        case aiohttp.ClientResponseError():
            return InvalidResponse(error.message or text)
        case aiohttp.ClientError() | OSError():
            return httpx.ReadError(text)
        case _:
            return httpx.LocalProtocolError(text)


def _connect_failure(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"{NO_HOST}{error.host}"
    if isinstance(error, aiohttp.ClientSSLError):  # [SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)
        return NO_TLS + str(error.os_error).partition("] ")[2].partition(" (_ssl")[0].rstrip(".")
    return ""


# -- responses


def is_event_stream(response: httpx.Response) -> bool:
    """Return whether the response is a streamed answer, not an error."""
    return response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream")


def retry_after(response: httpx.Response) -> int | None:
    """Read the seconds of `Retry-After`; None if there is no such header. A date counts as years away."""
    value = str(response.headers.get("retry-after", "")).strip()
    if not value:
        return None
    return int(value[:9]) if value.isdecimal() else 10**9


async def body_of(response: httpx.Response, limit: int) -> bytes:
    """Read the body, without decoding it, and close the response.

    An error's body is cut off if it is too long or arrives too slowly.

    Raises:
        UpstreamTooLarge: a body other than an error's has more than `limit` bytes.
        UpstreamUnavailable, UpstreamTimeout: it broke off.
    """
    stream, body, is_error = response.stream, bytearray(), not response.is_success
    assert isinstance(stream, httpx.AsyncByteStream)
    try:
        async with asyncio.timeout(ERROR_SECONDS if is_error else None):
            async for part in stream:
                body += part
                if is_error and len(body) > ERROR_BYTES:
                    break
                if len(body) > limit:
                    raise UpstreamTooLarge(
                        f"The backend's answer is larger than {limit} bytes: raise SPILLWAY_MAX_BODY."
                    )
    except httpx.TimeoutException:
        raise UpstreamTimeout(
            "The backend fell silent in the middle of the answer: see its log, or raise SPILLWAY_READ_TIMEOUT."
        ) from None
    except httpx.TransportError as error:
        raise UpstreamUnavailable(f"The backend broke off the answer ({type(error).__name__}): see its log.") from None
    except TimeoutError:
        pass
    finally:
        await stream.aclose()
    return bytes(body)

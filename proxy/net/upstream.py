"""The configured backends: the address of each, how to send to it, its prober, and whether all are ready."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import uuid4

import httpx
from typing_extensions import override

from proxy.backends.base import UNKNOWN, Backend, Generic
from proxy.core.errors import BadRequest, ClientError, UpstreamInvalid, UpstreamTimeout, UpstreamUnavailable
from proxy.core.history.turns import without_system
from proxy.core.jsontext import HEAVY, dumps, loads, loads_object
from proxy.core.sse import FrameTooLong
from proxy.dialects.bodies import dict_in
from proxy.dialects.chat import UPSTREAM_PATH
from proxy.dialects.ollama_upstream import UPSTREAM_PATH as OLLAMA_PATH
from proxy.dialects.ollama_upstream import LineReader, ollama_body
from proxy.net.headers import (
    BODILESS,
    OF_ENCODING,
    Header,
    Headers,
    ProxyKeys,
    content_length,
    is_credential,
    openai_headers,
    request_headers,
)
from proxy.net.prober import KnownModel, Prober
from proxy.net.tasks import offload_if, spawn
from proxy.net.transport import TURN_BYTES, InvalidResponse, body_of, is_event_stream

_log = logging.getLogger("spillway")

BELIEVED = 3.0
"""Seconds for which readiness is cached: orchestrators ask every second, and there may be several."""
PATIENCE = 3.0
"""Seconds that a backend has to answer. An orchestrator that gives up earlier concludes the same: not ready."""
_AWAY = frozenset({502, 503, 504})
"""Statuses of a gateway in front of the server, or of a server that is still loading; any other counts as an answer."""
_ACCEPT_ENCODING = b"accept-encoding"
# Such requests once cancelled what was being done ahead.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Safe methods, which only read (RFC 9110, section 9.2.1)."""
_MOST_CLIENTS = 64
"""Maximum number of client credentials that each have a prober of their own for one backend."""
_LARGEST = 64 * 2**20
"""Maximum bytes of an unstreamed answer of Ollama's."""
_STREAMED = re.compile(rb'\s*+(?:(?:data|event|id|retry)?:|\{(?=[^\n]*?"(?:delta|done)")[^\n]*\}[ \t\r]*\n)')
"""Beginning of an event, or a line of JSON that is part of an answer."""
_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")

MakeProber: TypeAlias = Callable[[Sequence[Header]], Prober]
"""Makes a prober that sends these credentials."""
client_headers: ContextVar[Headers] = ContextVar("client_headers", default=())
"""Headers of the request that is being served, with the client's credentials."""


@lru_cache(maxsize=256)
def _url(root: str, target: bytes) -> httpx.URL:
    """Join root and target. Cached, since parsing takes 50 µs and most requests have one of a few targets."""
    return httpx.URL(root).copy_with(raw_path=target)


@dataclass(frozen=True, slots=True)
class ChatBody:
    """A body of chat completions, and the forms in which the client sent it, if these can be passed on."""

    content: bytes
    wire: bytes | None = None
    """The body with the client's content-encoding."""
    native: bytes | None = None
    """The body as a request of Ollama's `/api/chat`."""


class Upstream:
    """A backend.

    `name` is its key in what is stored and known, and is taken wherever a backend is named, also while people are shown another.
    `url` is its root, without user, `/v1` or trailing slash; `authorization` is sent to it instead of the client's. If there is
    none and it refuses probes, it is probed with the current client's credentials, and the results are used for the same
    credentials only.
    """

    def __init__(
        self,
        *,
        name: str,
        url: str,
        authorization: bytes | None,
        proxy_keys: ProxyKeys,
        transport: httpx.AsyncBaseTransport,
        prober: MakeProber,
        managed: bool = True,
    ) -> None:
        self.key = self._name = name
        self.by_kind = False
        """Whether people are shown its kind and port instead of its key, as soon as the kind is known."""
        self.url = url
        self._make_prober = prober
        self._prober = prober(() if authorization is None else [(b"authorization", authorization)])
        self._probers: dict[tuple[Header, ...], Prober] = {}
        self.ahead: set[asyncio.Task[Any]] = set()
        """Tasks that work ahead of time; they are cancelled as soon as anything else is sent here."""
        self.managed = managed
        """Whether requests to it are managed, unless a model's setting decides."""
        self.near = False
        """Whether it is on this machine or in the local network."""
        self._authorization = authorization
        self._proxy_keys = proxy_keys
        self._transport = transport
        self._root = httpx.URL(url)
        self._prefix = self._root.raw_path.rstrip(b"/")

    @property
    def name(self) -> str:
        """Its name for people. Once it is named by its kind, it keeps that name."""
        if self.by_kind and not isinstance(kind := self._prober.known_backend, Generic):
            self._name, self.by_kind = f"{kind.kind}-{self.place[1]}", False
        return self._name

    @property
    def wants_clients_keys(self) -> bool:
        """Return whether it refuses probes without a key, and none is set for it."""
        return self._authorization is None and self._prober.runner.unauthorized

    @property
    def prober(self) -> Prober:
        """Prober with the knowledge that the current client may see."""
        # A server with a key once listed no models to a client that had the key, until one of its chats succeeded; from
        # then on that client's key was used for everybody.
        if not self.wants_clients_keys:
            return self._prober
        passing = request_headers(client_headers.get(), authorization=None, proxy_keys=self._proxy_keys)
        credentials = tuple(header for header in openai_headers(passing) if is_credential(header[0]))
        if not credentials:
            return self._prober
        prober = self._probers.pop(credentials, None) or self._make_prober(credentials)
        if len(self._probers) >= _MOST_CLIENTS:  # rejected credentials go first, since anybody can make them up
            useless = (each for each, known in self._probers.items() if known.runner.unauthorized)
            del self._probers[next(useless, next(iter(self._probers)))]
        self._probers[credentials] = prober
        return prober

    async def backend(self) -> Backend:
        """Return the kind of backend, `UNKNOWN` while it does not answer."""
        await self._prober.backend()
        return await self.prober.backend()

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        return self._root.host, self._root.port or (443 if self._root.scheme == "https" else 80)

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes],
        *,
        drop: frozenset[bytes] = frozenset(),
        plain: bool = False,
        ahead: bool = False,
    ) -> httpx.Response:
        """Send a request and return the response with its body unread; close it when done.

        `target` is path and query as the client sent them; `drop` names headers to leave out; `plain` asks for an answer
        without content-encoding; `ahead` marks a request sent ahead of time, for which no client waits. A body that is
        produced while it is sent has the length given in the client's headers.

        Raises:
            BadRequest: the client's request can't be sent on.
            UpstreamUnavailable: no connection, or it broke before the response.
            UpstreamInvalid: the response is not valid HTTP/1.1, or not `plain`.
            UpstreamTimeout: the backend read nothing of the request, or sent nothing, for the read timeout.
        """
        if not ahead and method not in SAFE:  # a safe request does not compete for the backend
            for task in self.ahead:
                task.cancel()
        if plain:
            drop |= {_ACCEPT_ENCODING}
        passing = request_headers(headers, authorization=self._authorization, proxy_keys=self._proxy_keys, drop=drop)
        if plain:
            passing.append((_ACCEPT_ENCODING, b"identity"))
        if not isinstance(body, bytes):
            passing += content_length(headers)
        target = self._prefix + (self._proxy_keys.without(target) if b"?" in target else target)
        try:
            request = httpx.Request(method, _url(self.url, target), headers=passing, content=body)
            response = await self._transport.handle_async_request(request)
        except (httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError) as error:
            raise BadRequest(f"The request can't be sent to a backend as it is: {error}.") from None
        except httpx.TransportError as error:
            raise self._failed(error) from None
        if plain and response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise UpstreamInvalid(
                f"Backend {self.name} at {self.url} compressed its answer, although it was asked not to."
            )
        if response.status_code in BODILESS:
            response.headers.pop("content-length", None)  # of a body that does not come
        return response

    async def send_chat(
        self, known: KnownModel, headers: Headers, body: ChatBody, *, query: bytes = b"", ahead: bool = False
    ) -> httpx.Response:
        """Send a chat request to a model, and return a response in the form of chat completions with its body unread.

        All other code knows chat completions only: translation to and from a backend's own form is done here. Raises as `send`
        does, and BadRequest if the backend's form cannot express the request.
        """
        backend, window = known.prober.known_backend, known.window_request.granted
        if "no_system" in known.current().demands:
            body = ChatBody(await offload_if(len(body.content) > 8 * HEAVY, _without_system, body.content))
        usage, drop = False, frozenset() if body.wire else OF_ENCODING
        target, content = UPSTREAM_PATH + (b"?" + query if query else b""), body.wire or body.content
        if backend.speaks_ollama:
            content, usage = await offload_if(len(body.content) > 8 * HEAVY, _translate, body.content, window)
            target, drop, content = OLLAMA_PATH, OF_ENCODING, content if window else body.native or content
        response = await _named(await self.send("POST", target, headers, content, drop=drop, plain=True, ahead=ahead))
        if not backend.speaks_ollama:
            return response
        source, lines = response.stream, LineReader(f"chatcmpl-{uuid4().hex}", usage=usage)
        if is_event_stream(response):
            assert isinstance(source, httpx.AsyncByteStream)
            response.stream = _Derived(source, _frames(source, lines))
        else:
            reply = await body_of(response, _LARGEST)
            if response.status_code == 200:
                reply = lines.completion(reply)
            elif loads_object(reply) is None:  # Ollama says why; one that only imitates it may not, or has no such path
                known.prober.give_up_door()
                _log.warning("backend %s only imitates Ollama: /v1 is spoken to it from now on", self.name)
                return await self.send_chat(known, headers, body, query=query, ahead=ahead)
            response.headers["content-type"], response.stream = "application/json", httpx.ByteStream(reply)
        response.headers.pop("content-length", None)
        return response

    def _failed(self, error: httpx.TransportError) -> UpstreamInvalid | UpstreamUnavailable:
        """Return the error for a request that failed. Unless it timed out, knowledge is discarded: the server may have changed."""
        if isinstance(error, httpx.TimeoutException):
            return UpstreamTimeout(f"Backend {self.name} at {self.url} did not answer in time.")
        for prober in (self._prober, *self._probers.values()):
            prober.forget()
        if isinstance(error, InvalidResponse):
            return UpstreamInvalid(f"Backend {self.name} at {self.url} gave no valid HTTP response: {error}.")
        return UpstreamUnavailable(
            f"Backend {self.name} at {self.url} cannot be reached: {error}. `spillway check` says what to do."
        )


async def _named(response: httpx.Response) -> httpx.Response:
    """Label a response as an event stream if its content is one: with a wrong content type, or lines of JSON."""
    if response.status_code != 200 or is_event_stream(response):
        return response
    if not response.headers.get("content-type", "").startswith(_LINES):
        source = response.stream
        assert isinstance(source, httpx.AsyncByteStream)
        parts = aiter(source)
        beginning, error = await _beginning(source, parts)
        response.stream = _Derived(source, _again(beginning, error, parts))
        if not _STREAMED.match(beginning):
            return response
    response.headers["content-type"] = "text/event-stream"
    return response


async def _beginning(
    source: httpx.AsyncByteStream, parts: AsyncIterator[bytes]
) -> tuple[bytes, httpx.TransportError | None]:
    """Read up to the end of the first line, at most some kilobytes; an error is returned, to be raised when reading goes on."""
    beginning = b""
    try:
        async for data in parts:
            beginning += data
            if b"\n" in beginning.lstrip() or beginning[TURN_BYTES:]:
                break
    except httpx.TransportError as error:
        return beginning, error
    except asyncio.CancelledError:  # no caller has the response yet, so none could close it
        await source.aclose()
        raise
    return beginning, None


async def _again(first: bytes, error: httpx.TransportError | None, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    if error is not None:
        raise error
    async for data in rest:
        yield data


async def _frames(source: httpx.AsyncByteStream, lines: LineReader) -> AsyncIterator[bytes]:
    """Yield the lines of a body as frames."""
    try:
        async for data in source:
            yield lines.feed(data)
        yield lines.close()
    except FrameTooLong as error:
        raise httpx.ReadError(f"it holds {error}") from None


class _Derived(httpx.AsyncByteStream):
    """A body derived from another one, which is closed with it."""

    def __init__(self, source: httpx.AsyncByteStream, parts: AsyncIterator[bytes]) -> None:
        self._source, self._parts = source, parts

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    @override
    async def aclose(self) -> None:
        await self._source.aclose()


def _without_system(body: bytes) -> bytes:
    parsed = loads(body)
    return dumps(parsed | {"messages": without_system(parsed["messages"])})


def _translate(body: bytes, window: int | None) -> tuple[bytes, bool]:
    """Translate a body to a request of Ollama's for a model loaded with this window; also return whether usage is requested.

    The window is always sent, because a `num_ctx` other than the last request's would reload the model.
    """
    parsed = loads(body)
    if window is not None:
        parsed["options"] = {**dict_in(parsed, "options"), "num_ctx": window}
    options = parsed.get("stream_options")
    return dumps(ollama_body(parsed)), isinstance(options, dict) and options.get("include_usage") is True


class ReadinessProbe:
    """Checks whether all backends answer and list models. Each change is logged once.

    Args:
        upstreams: the backends; more may be added later.
        clock: monotonic clock, in seconds.
        patience: seconds that a backend has to answer.
    """

    def __init__(
        self, upstreams: Sequence[Upstream], *, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE
    ) -> None:
        self._upstreams = upstreams
        self._clock = clock
        self._patience = patience
        self._kinds: dict[Upstream, str | None] = {}
        self._expires = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def kinds(self) -> dict[str, str | None]:
        """Return the kind of each backend by its name, None if it does not answer, or lists no model.

        One that wants a key counts as well, since clients may bring theirs.
        """
        if self._clock() >= self._expires:
            if self._asking is None or self._asking.done():
                self._asking = spawn(self._ask(), name="readiness")
            await asyncio.shield(self._asking)
        return {upstream.name: kind for upstream, kind in self._kinds.items()}

    async def _ask(self) -> None:
        upstreams = tuple(self._upstreams)
        kinds = await asyncio.gather(*map(self._kind, upstreams))
        for upstream, kind in zip(upstreams, kinds, strict=True):
            before = self._kinds.get(upstream, "not asked yet")
            if kind is None and before is not None:
                _log.warning("backend %s does not answer, or lists no model; `spillway check` says why", upstream.name)
            elif kind is not None and before is None:
                _log.info("backend %s answers again", upstream.name)
            self._kinds[upstream] = kind
        self._expires = self._clock() + BELIEVED

    async def _kind(self, upstream: Upstream) -> str | None:
        try:
            async with asyncio.timeout(self._patience):
                # HEAD brings no body back, and a server that does not support it still answers.
                response = await upstream.send("HEAD", b"/v1/models", [], b"")
                await response.aclose()
                backend, lists = await upstream.prober.backend(), bool(await upstream.prober.listed())
        except (ClientError, TimeoutError):
            return None
        away = backend is UNKNOWN or response.status_code in _AWAY
        return backend.kind if (lists or upstream.wants_clients_keys) and not away else None

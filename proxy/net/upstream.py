"""The configured backends: where each is, how to send to it, what its prober knows, and whether all are ready."""

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeAlias

import httpx

from proxy.backends.base import UNKNOWN, Backend
from proxy.core.errors import BadRequest, ClientError, UpstreamInvalid, UpstreamTimeout, UpstreamUnavailable
from proxy.net.headers import (
    BODILESS,
    Header,
    Headers,
    ProxyKeys,
    content_length,
    is_credential,
    openai_headers,
    request_headers,
)
from proxy.net.prober import Prober
from proxy.net.tasks import spawn
from proxy.net.transport import InvalidResponse

_log = logging.getLogger("spillway")

BELIEVED = 3.0
"""Seconds for which an answer is believed: orchestrators ask every second, and there may be several."""
PATIENCE = 3.0
"""Seconds that a backend has to answer. Who asks here and gives up before that has got the same answer: not ready."""
_AWAY = frozenset({502, 503, 504})
"""Statuses of something in front of the server, or of a server that is still loading; any other is an answer."""
_ACCEPT_ENCODING = b"accept-encoding"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that only look (RFC 9110, section 9.2.1)."""
_MOST_CLIENTS = 64
"""Credentials whose knowledge of one backend is remembered."""

MakeProber: TypeAlias = Callable[[Sequence[Header]], Prober]
"""Makes a prober that sends these credentials."""
client_headers: ContextVar[Headers] = ContextVar("client_headers", default=())
"""Headers of the request that is being served, with the client's credentials."""


@lru_cache(maxsize=256)
def _url(root: httpx.URL, target: bytes) -> httpx.URL:
    """Join them; parsing takes 50 us, and most requests have one of a few targets."""
    return root.copy_with(raw_path=target)


class Upstream:
    """A backend.

    `url` is its root, without user, `/v1` and a slash at its end; `authorization` is sent to it instead of the client's.
    Where there is none and it refuses probes, it is probed with the current client's credentials, and what that brings to
    light is for the same credentials alone.
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
        self.name = name
        self.url = url
        self._make_prober = prober
        self._prober = prober(() if authorization is None else [(b"authorization", authorization)])
        self._probers: dict[tuple[Header, ...], Prober] = {}
        self.ahead: set[asyncio.Task[Any]] = set()
        """Work ahead of time, which is cancelled as soon as anything else is sent here."""
        self.managed = managed
        """Whether requests to it are managed, where nothing is said of the model."""
        self.near = False
        """Whether it is on this machine or in its network."""
        self._authorization = authorization
        self._proxy_keys = proxy_keys
        self._transport = transport
        self._root = httpx.URL(url)
        self._prefix = self._root.raw_path.rstrip(b"/")

    @property
    def prober(self) -> Prober:
        """Knowledge of the backend, as far as the current client may know it."""
        if self._authorization is not None or not self._prober.runner.unauthorized:
            return self._prober
        passing = request_headers(client_headers.get(), authorization=None, proxy_keys=self._proxy_keys)
        credentials = tuple(header for header in openai_headers(passing) if is_credential(header[0]))
        if not credentials:
            return self._prober
        prober = self._probers.pop(credentials, None) or self._make_prober(credentials)
        if len(self._probers) >= _MOST_CLIENTS:  # first of those that the backend refuses: anybody can make them up
            useless = (each for each, known in self._probers.items() if known.runner.unauthorized)
            del self._probers[next(useless, next(iter(self._probers)))]
        self._probers[credentials] = prober
        return prober

    async def backend(self) -> Backend:
        """The kind of backend; `UNKNOWN` while it does not answer."""
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

        `target` is path and query as the client sent them; `drop` names headers to leave out, `plain` asks for
        an answer without a content-encoding; for what is sent `ahead` of time nobody waits. A body that is produced while it is
        sent has the length that the client's headers tell.

        Raises:
            BadRequest: the client's request can't be sent on.
            UpstreamUnavailable: no connection, or it broke before the response.
            UpstreamInvalid: it is no response of HTTP/1.1, or not `plain`.
            UpstreamTimeout: it took nothing of the request, or said nothing, for the read timeout.
        """
        if not ahead and method not in SAFE:  # a look at something does not need the room
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
            request = httpx.Request(method, _url(self._root, target), headers=passing, content=body)
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

    def _failed(self, error: httpx.TransportError) -> UpstreamInvalid | UpstreamUnavailable:
        """Return the error for a request that failed; unless it only took too long, the server may be another one by now."""
        if isinstance(error, httpx.TimeoutException):
            return UpstreamTimeout(f"Backend {self.name} at {self.url} did not answer in time.")
        for prober in (self._prober, *self._probers.values()):
            prober.forget()
        if isinstance(error, InvalidResponse):
            return UpstreamInvalid(f"Backend {self.name} at {self.url} gave no valid HTTP response: {error}.")
        return UpstreamUnavailable(
            f"Backend {self.name} at {self.url} cannot be reached: {error}. `spillway check` says what to do."
        )


class ReadinessProbe:
    """Asks all backends. What changes is logged once.

    Args:
        upstreams: the backends; more may be added.
        clock: seconds that never go back.
        patience: seconds that a backend has to answer.
    """

    def __init__(
        self, upstreams: Sequence[Upstream], *, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE
    ) -> None:
        self._upstreams = upstreams
        self._clock = clock
        self._patience = patience
        self._kinds: dict[str, str | None] = {}
        self._expires = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def kinds(self) -> dict[str, str | None]:
        """Name of each backend to its kind, None where it does not answer."""
        if self._clock() >= self._expires:
            if self._asking is None or self._asking.done():
                self._asking = spawn(self._ask(), name="readiness")
            await asyncio.shield(self._asking)
        return self._kinds

    async def _ask(self) -> None:
        upstreams = tuple(self._upstreams)
        kinds = await asyncio.gather(*map(self._kind, upstreams))
        for upstream, kind in zip(upstreams, kinds, strict=True):
            before = self._kinds.get(upstream.name, "not asked yet")
            if kind is None and before is not None:
                _log.warning("backend %s does not answer; `spillway check` says why", upstream.name)
            elif kind is not None and before is None:
                _log.info("backend %s answers again", upstream.name)
            self._kinds[upstream.name] = kind
        self._expires = self._clock() + BELIEVED

    async def _kind(self, upstream: Upstream) -> str | None:
        try:
            async with asyncio.timeout(self._patience):
                # No body comes back, and a server that knows no HEAD answers as well as one that does.
                response = await upstream.send("HEAD", b"/v1/models", [], b"")
                await response.aclose()
                backend = await upstream.prober.backend()
        except (ClientError, TimeoutError):
            return None
        return None if backend is UNKNOWN or response.status_code in _AWAY else backend.kind

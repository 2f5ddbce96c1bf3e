"""Running a backend's flows over HTTP, one small request after the other, and discovering local backends with them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import httpx

from proxy.backends import BACKENDS, LOCAL, detect
from proxy.backends.base import MODELS, Flow, Probe, Reply
from proxy.backends.fields import nonblank
from proxy.core import jsontext
from proxy.core.errors import UpstreamTooLarge, UpstreamUnavailable
from proxy.core.settings import BackendSetting
from proxy.net.headers import AS_JSON
from proxy.net.transport import body_of

T = TypeVar("T")

LARGEST_REPLY = 8 * 2**20
"""Maximum bytes of a reply; the token list of a prompt of a million tokens is that long."""

HEAD_BYTES = 2**16
"""Bytes of a model file that are read: the keys of its architecture come before its vocabulary."""

PROBE_TIMEOUT = 5.0
"""Seconds for one probe, unless the backend is given up sooner."""

NOT_NOW = frozenset({0, 408, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that say nothing about the model: no connection, loading, overloaded, broken."""

DEFAULT_PORTS = tuple(backend.port for backend in LOCAL)
_UNAUTHORIZED = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class Traced(Generic[T]):
    """Result of a flow; whether the server answered at all; whether every probe had a conclusive reply."""

    value: T
    reached: bool
    complete: bool


class FlowRunner:
    """Runs flows against one server. Holds no connection and no task of its own.

    Args:
        transport: sends the requests; shared, never closed here.
        url: root of the server, without `/v1`.
        headers: credentials, sent with each request.
        timeout: seconds for one exchange, from connecting to the last byte.
        load_timeout: the same for a probe that loads a model.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        url: str,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        timeout: float = PROBE_TIMEOUT,
        load_timeout: float = PROBE_TIMEOUT,
    ) -> None:
        self.url = url.rstrip("/")
        self._transport = transport
        self._headers = [(b"accept", b"application/json"), (b"accept-encoding", b"identity"), *headers]
        self._timeout = timeout
        self._load_timeout = load_timeout
        self.unauthorized = False
        """Whether a probe was refused for its credentials."""

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end and return its result. A probe that fails is answered with status 0."""
        return (await self.trace(flow)).value

    async def trace(self, flow: Flow[T]) -> Traced[T]:
        """Run a flow to its end, and report how reliable its result is.

        No path is read twice, except after a load. After the first failed connection, all further probes are answered with
        status 0 without trying: a dead host must not cost one timeout per probe.
        """
        statuses: list[int] = []
        seen: dict[str, Reply] = {}
        reply: Reply | None = None
        while True:
            try:
                probe = next(flow) if reply is None else flow.send(reply)
            except StopIteration as stop:
                value: T = stop.value
                self.unauthorized |= not _UNAUTHORIZED.isdisjoint(statuses)
                return Traced(value, any(statuses), NOT_NOW.isdisjoint(statuses))
            if probe.method == "GET" and probe.path in seen:
                reply = seen[probe.path]
                continue
            reply = seen[probe.path] = Reply(0) if 0 in statuses else await self.exchange(probe)
            statuses.append(reply.status)
            if probe.loads:  # earlier replies may no longer be true
                seen.clear()

    async def exchange(self, probe: Probe) -> Reply:
        """Send one probe; the status is 0 without a complete response."""
        if probe.method == "FILE":
            return await asyncio.to_thread(_head_of, probe.path)
        seconds = self._load_timeout if probe.loads else self._timeout
        headers = self._headers if probe.json is None else [*self._headers, AS_JSON]
        content = None if probe.json is None else jsontext.dumps(probe.json)
        timeouts = {"timeout": {"connect": self._timeout, "read": seconds}}
        try:
            url = self.url + probe.path
            request = httpx.Request(probe.method, url, headers=headers, content=content, extensions=timeouts)
            async with asyncio.timeout(seconds):
                response = await self._transport.handle_async_request(request)
                try:
                    body = await body_of(response, LARGEST_REPLY)
                except UpstreamTooLarge:
                    return Reply(response.status_code)
        except (UpstreamUnavailable, httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError):
            return Reply(0)
        return Reply(response.status_code, jsontext.loads_or_none(body))


def _head_of(path: str) -> Reply:
    """Read the beginning of a model file; status 404 if it cannot be read."""
    with suppress(OSError, ValueError):
        if path.endswith(".gguf") and Path(path).is_file():
            with Path(path).open("rb") as file:
                return Reply(200, file.read(HEAD_BYTES).decode("latin-1"))
    return Reply(404)


async def discover(
    transport: httpx.AsyncBaseTransport, hosts: Sequence[str] = ("127.0.0.1",), ports: Sequence[int] = DEFAULT_PORTS
) -> list[BackendSetting]:
    """Discover the backends on these hosts and ports by the shape of replies, asking all at once; in order of hosts and ports.

    The first of a kind is named by it; one that demands a key is of the kind `auto`.

    Many other programs use ports 8080 and 8000, so a server of unknown kind counts only if it lists models, or demands a key
    for that, in OpenAI's form. A server that two host names reach is found twice.
    """
    urls = [f"http://{host}:{port}" for host in hosts for port in ports]
    kinds = await asyncio.gather(*(_kind(FlowRunner(transport, url, timeout=1.0)) for url in urls))
    found = enumerate(zip(kinds, urls, strict=True))
    return [
        BackendSetting(url=url, name="" if kind in kinds[:index] else kind, kind=kind or "auto")
        for index, (kind, url) in found
        if kind is not None
    ]


async def _kind(runner: FlowRunner) -> str | None:
    if (backend := await runner.run(detect(runner.url))) is not None:
        return backend.kind
    if runner.unauthorized:
        body = (await runner.exchange(MODELS)).json
        own = any(body in backend.unauthorized for backend in BACKENDS)
        return "" if own or nonblank(jsontext.dig(body, "error", "message")) else None
    return None


async def nearby(url: str, wire: httpx.AsyncBaseTransport) -> str:
    """Find a backend that lists models at a URL with the other scheme, or another path; return its URL, or an empty string."""
    parts = urlsplit(url)
    schemes, paths = (parts.scheme, "http" if parts.scheme == "https" else "https"), (parts.path, "", "/api")
    urls = dict.fromkeys(parts._replace(scheme=scheme, path=path).geturl() for scheme in schemes for path in paths)
    runners = [FlowRunner(wire, each, timeout=2.0) for each in urls if each != url]

    async def lists_models(runner: FlowRunner) -> bool:
        backend = await runner.run(detect(runner.url))
        return backend is not None and bool(await runner.run(backend.models()))

    found = await asyncio.gather(*map(lists_models, runners))
    return next((runner.url for runner, lists in zip(runners, found, strict=True) if lists), "")


async def failure_at(url: str, wire: httpx.AsyncBaseTransport) -> str:
    """Return why a server can't be reached; empty if it can."""
    try:
        response = await wire.handle_async_request(httpx.Request("GET", f"{url}{MODELS.path}"))
    except httpx.TransportError as error:
        return str(error)
    await response.aclose()
    return ""

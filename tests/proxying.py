"""The real application on a real loopback port, in a thread of its own: quick to start, hundreds of times."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import httpx
import uvloop
from fastapi import FastAPI

from proxy.app import Times, create_app
from proxy.core.jsontext import loads
from proxy.core.settings import BackendSetting, Settings
from proxy.server import Server
from tests.fakes.base import HttpFake
from tests.fakes.waiting import PATIENT

UNREDUCED = frozenset(("forwarded", "continued", "moved", "shaped"))
"""Actions of requests for which nothing was shortened."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy; `client` talks to it."""

    url: str
    client: httpx.Client
    app: FastAPI
    loop: asyncio.AbstractEventLoop
    """In which it runs, in another thread."""
    server: Server

    def chat(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json=body, headers=headers)


def metric(proxy: Proxy, name: str) -> dict[str, float]:
    """Lines of a metric: labels, and the value."""
    lines = [line for line in proxy.client.get("/metrics").text.split("\n") if line.startswith(f"{name}{{")]
    return {line[len(name) :].rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


# What is done in the background would make a difference from run to run.
_USUAL: dict[str, Any] = {"ahead": "off", "store": "memory://", "port": 0, "graceful_timeout": 0.2}
_USUAL_TIMES = {"store_timeout": PATIENT, "grace": 30.0}


@contextmanager
def running_proxy(*backends: HttpFake | BackendSetting, **settings: Any) -> Iterator[Proxy]:
    """Run Spillway in front of these backends; settings by their names in `proxy.core.settings`, the times of the application, a `transport`, a `clock`, `spans`, a `page_token` and the server's `client_timeout`."""
    bounds = {name: settings.pop(name) for name in ("client_timeout",) if name in settings}
    given_to_app = {name: settings.pop(name) for name in ("transport", "clock", "spans", "page_token") if name in settings}
    times = {each.name: settings.pop(each.name) for each in fields(Times) if each.name in settings}
    given = tuple(_setting(backend) for backend in backends)
    chosen = Settings(**{**_USUAL, **settings, "backends": given})
    app = create_app(chosen, times=Times(**{**_USUAL_TIMES, **times}), **given_to_app)
    ready: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
    server = Server(
        app,
        host="127.0.0.1",
        port=0,
        graceful=chosen.graceful_timeout,
        max_connections=chosen.max_connections,
        on_started=lambda port: ready.set_result((asyncio.get_running_loop(), port)),
        **bounds,
    )
    thread = threading.Thread(target=_serve, args=(server,), daemon=True)
    thread.start()
    loop, port = ready.result(20)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield Proxy(url, client, app, loop, server)
    finally:
        server.stop()
        thread.join(20)


def _serve(server: Server) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve())


def _setting(backend: HttpFake | BackendSetting) -> BackendSetting:
    if isinstance(backend, BackendSetting):
        return backend
    return BackendSetting(url=backend.url, name=backend.kind)


@dataclass(slots=True)
class Streamed:
    """A streamed answer as a client sees it."""

    text: str
    reasoning: str
    ids: set[str]
    roles: int
    finishes: list[str]
    done: int
    usage: dict[str, Any] | None
    errors: list[Any]
    events: list[dict[str, Any]]
    comments: list[str]


def read_stream(body: bytes) -> Streamed:
    """Read a whole event stream the way a careful client does."""
    seen = Streamed("", "", set(), 0, [], 0, None, [], [], [])
    for frame in body.split(b"\n\n"):
        for line in frame.split(b"\n"):
            if line.startswith(b":"):
                seen.comments.append(line[1:].strip().decode())
            elif line == b"data: [DONE]":
                seen.done += 1
            elif line.startswith(b"data: "):
                _take(seen, loads(line[6:]))
    return seen


def _take(seen: Streamed, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        seen.errors.append(chunk["error"])
        return
    seen.ids.add(chunk["id"])
    seen.usage = chunk.get("usage") or seen.usage
    if "event" in chunk:
        seen.events.append(chunk["event"])
    for choice in chunk["choices"]:
        delta = choice["delta"]
        seen.text += delta.get("content") or ""
        seen.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        seen.roles += "role" in delta
        if choice.get("finish_reason"):
            seen.finishes.append(choice["finish_reason"])

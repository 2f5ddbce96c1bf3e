"""Backends that send too much: the client gets a clear error, and the proxy stays small."""

import gzip
import itertools
import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from proxy.core import sse
from proxy.net import transport
from tests.proxying import Proxy, read_stream, running_proxy
from tests.rawbackend import DEADLINE, SSE, Call, RawBackend, answering, raw_backend

pytestmark = pytest.mark.slow

OK = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
MIB = 2**20
ENDLESS = 24
"""MiB after which a backend that should have been left gives up."""


def chat(proxy: Proxy, *, stream: bool = False) -> httpx.Response:
    return proxy.chat({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "go"}]})


def flood(backend: RawBackend, call: Call, start: bytes, piece: bytes) -> None:
    """Send the beginning, and then the piece until the proxy hangs up."""
    size, alive = 0, call.send(start)
    while alive and size < ENDLESS * MIB:
        alive = call.send(piece)
        size += len(piece)
    if not alive:
        backend.gone.set()


@contextmanager
def flooding(start: bytes, piece: bytes, **settings: Any) -> Iterator[tuple[RawBackend, Proxy]]:
    script = partial(flood, start=start, piece=piece)
    with raw_backend(script) as backend, running_proxy(backend.setting, **settings) as proxy:
        yield backend, proxy


HEAD = b"HTTP/1.1 200 OK\r\n"
FLOODS: dict[str, tuple[bytes, bytes]] = {
    "headers": (HEAD, b"x-more: yes\r\n" * 1000),
    "one header": (HEAD + b"x-long: ", b"x" * 65536),
    "a reason": (b"HTTP/1.1 200 ", b"x" * 65536),
}


@pytest.mark.parametrize("flood_of", sorted(FLOODS))
@pytest.mark.parametrize("passed_on", [False, True])
def test_a_head_without_end_is_an_error(flood_of: str, passed_on: bool) -> None:
    with flooding(*FLOODS[flood_of]) as (backend, proxy):
        answer = proxy.client.get("/other") if passed_on else chat(proxy)
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] in ("upstream_invalid", "upstream_unavailable")
        assert backend.gone.wait(DEADLINE)


EVENT = b'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'


@pytest.mark.parametrize("piece", [b"x" * 65536, b": comment\ndata: y\n" * 1000])
def test_an_event_without_end_ends_the_stream_with_an_error(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse.FrameSplitter.__init__, "__defaults__", (4 * MIB,))
    with flooding(SSE + EVENT + b"data: ", piece) as (backend, proxy):
        seen = read_stream(chat(proxy, stream=True).content)
        assert (seen.text, len(seen.errors), seen.done) == ("x", 1, 1)
        assert "an event of more than" in seen.errors[0]["message"]
        assert backend.gone.wait(DEADLINE)


@pytest.mark.parametrize("status", ["429 Too Many Requests", "500 Internal Server Error"])
def test_an_error_without_end_keeps_its_status_and_is_quoted(status: str, stream: bool) -> None:
    start = f"HTTP/1.1 {status}\r\nretry-after: 7\r\ncontent-type: text/html\r\nconnection: close\r\n\r\nslow down"
    with flooding(start.encode(), b"x" * 65536) as (backend, proxy):
        answer = chat(proxy, stream=stream)
        assert answer.status_code == int(status[:3])
        assert answer.headers["retry-after"] == "7"
        assert "slow down" in answer.json()["error"]["message"]
        assert len(answer.content) < 4 * transport.QUOTED
        assert backend.gone.wait(DEADLINE)


def test_a_whole_answer_has_a_bound(stream: bool) -> None:
    start = OK + b'content-type: application/json\r\n\r\n{"choices": "'
    with flooding(start, b"x" * 65536, max_body=4 * MIB) as (backend, proxy):
        answer = chat(proxy, stream=stream)
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "upstream_too_large"
        assert str(4 * MIB) in answer.json()["error"]["message"]
        assert backend.gone.wait(DEADLINE)


WHOLE: dict[str, Any] = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def test_a_compressed_answer_that_nobody_asked_for_is_an_error(stream: bool) -> None:
    body = gzip.compress(EVENT if stream else json.dumps(WHOLE).encode())
    head = f"content-type: text/event-stream\r\ncontent-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    def script(backend: RawBackend, call: Call) -> None:
        call.send(OK + head + body)

    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        answer = chat(proxy, stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_invalid")
        assert "compressed" in answer.json()["error"]["message"]


def test_a_plain_answer_is_asked_for() -> None:
    def script(backend: RawBackend, call: Call) -> None:
        call.send(answering(WHOLE))

    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        for stream in (False, True):
            chat(proxy, stream=stream)
        assert [call.header("accept-encoding") for call in backend.chats()] == ["identity"] * 2


def test_a_list_of_models_has_a_bound() -> None:
    """A gigabyte of models. Requests go through without the list."""

    def script(backend: RawBackend, call: Call) -> None:
        if call.path.endswith("/chat/completions"):
            call.send(answering(WHOLE))
        elif not call.path.endswith("/models"):
            call.send(answering({}, "404 Not Found"))
        else:
            start = OK + b'content-type: application/json\r\n\r\n{"data": ['
            flood(backend, call, start, b'{"id": "m"},' * 5000)

    with raw_backend(script, lists=False) as backend, running_proxy(backend.setting) as proxy:
        tracemalloc.start()
        try:
            assert proxy.client.get("/v1/models").json()["data"] == []
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 100 * MIB
        assert backend.gone.wait(DEADLINE)
        assert chat(proxy).json()["choices"][0]["message"]["content"] == "hi"


ODD: dict[str, tuple[bytes, int]] = {
    "999": (b"HTTP/1.1 999 What\r\ncontent-length: 2\r\n\r\n{}", 502),
    "600": (b"HTTP/1.1 600 What\r\ncontent-length: 2\r\n\r\n{}", 502),
    "000": (b"HTTP/1.1 000 None\r\ncontent-length: 2\r\n\r\n{}", 502),
    "099": (b"HTTP/1.1 099 None\r\ncontent-length: 2\r\n\r\n{}", 502),
    "101": (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", 502),
    "no number": (b"HTTP/1.1 OK\r\ncontent-length: 2\r\n\r\n{}", 502),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.7\r\n", 502),
    "304 with a length": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 200\r\netag: x\r\n\r\n", 304),
    "204 with a length": (b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n{}", 502),
    "204 with a body": (b"HTTP/1.1 204 No Content\r\n\r\n{}", 502),
    "204 in chunks": (b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 502),
    "after 1xx": (b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 E\r\n\r\n" + answering({"a": 1}, "404 Not Found"), 404),
}


@pytest.mark.parametrize("odd", sorted(ODD))
@pytest.mark.parametrize("way", ["passed", "whole", "stream"])
def test_odd_responses_are_answered_clearly_and_the_next_one_as_well(odd: str, way: str) -> None:
    """The backend leaves the connection open, so that nothing of the odd one may turn up in the next."""

    def script(backend: RawBackend, call: Call) -> None:
        if len(backend.calls) == 1:
            call.send(ODD[odd][0])
            call.left(0.3)
        else:
            call.send(answering(WHOLE))

    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        ask = proxy.client.get("/other") if way == "passed" else chat(proxy, stream=way == "stream")
        # What is no stream is no answer to who asked for one.
        assert ask.status_code == (502 if way != "passed" and ODD[odd][1] < 400 else ODD[odd][1])
        if ask.status_code == 502:
            assert ask.json()["error"]["message"]
            assert ask.json()["error"]["code"] in ("upstream_invalid", "upstream_unavailable")
        elif ask.status_code in (204, 304):
            assert ask.content == b""
        assert chat(proxy).json()["choices"][0]["message"]["content"] == "hi"


def test_the_head_has_the_read_timeout_for_all_of_it() -> None:
    """One byte after the other is as good as silence."""

    def script(backend: RawBackend, call: Call) -> None:
        for at in itertools.count():
            if not call.send(HEAD[at : at + 1] or b"x") or call.left(0.01):
                backend.gone.set()
                return

    with raw_backend(script) as backend, running_proxy(backend.setting, read_timeout=0.3) as proxy:
        began = time.monotonic()
        answer = chat(proxy)
        assert time.monotonic() - began < 5, "the time to connect is not added"
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
        assert backend.gone.wait(DEADLINE)

"""The real process is stopped while it serves: everything ends in good order, and in time."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.engine.spillway import Spillway, spillway_server
from tests.fakes import Gate, GenericFake, wait_until, walk
from tests.fakes.model import Reply
from tests.proxying import read_stream
from tests.raw import chat, connected

STREAMS, WHOLE, PASSED = 50, 10, 5
BYPASS = "x-spillway-bypass: 1\r\n"


@contextmanager
def stopping(log: Path, fake: GenericFake, graceful: float) -> Iterator[tuple[Spillway, Callable[[], int]]]:
    """A process, and what waits for its exit status."""
    with spillway_server([fake.url], log=log, graceful_timeout=graceful, log_level="info") as proxy:
        yield proxy, lambda: proxy.process._process.wait(30)


def held(gate: Gate) -> GenericFake:
    return GenericFake(brain=lambda _: Reply(text="one two three four", gate=gate))


def stop(proxy: Spillway) -> None:
    os.kill(proxy.pid, signal.SIGTERM)


def answers(proxy: Spillway) -> bool:
    try:
        return httpx.get(f"{proxy.url}/healthz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def body_of(answer: bytes) -> bytes:
    assert answer.endswith(b"\r\n0\r\n\r\n"), answer[-200:]
    chunks = answer.partition(b"\r\n\r\n")[2]
    body = b""
    while (size := int(chunks.partition(b"\r\n")[0], 16)) > 0:
        chunks = chunks.partition(b"\r\n")[2]
        body, chunks = body + chunks[:size], chunks[size + 2 :]
    return body


def test_what_runs_too_long_ends_with_an_error_and_its_mark(tmp_path: Path) -> None:
    gate = Gate(at=1)
    with held(gate) as fake, stopping(tmp_path / "log", fake, 1.0) as (proxy, status), ExitStack() as stack:
        streams = [stack.enter_context(connected(proxy.url)) for _ in range(STREAMS)]
        passed = [stack.enter_context(connected(proxy.url)) for _ in range(PASSED)]
        whole = [stack.enter_context(connected(proxy.url)) for _ in range(WHOLE)]
        for number, client in enumerate(streams):
            client.send(chat(stream=True, text=f"stream {number}"))
        for number, client in enumerate(passed):
            packed = "content-encoding: gzip\r\n" if number % 2 else ""
            client.send(chat(stream=True, headers=BYPASS + packed))
        for client in whole:
            client.send(chat())
        wait_until(lambda: gate.waiting == STREAMS + PASSED + WHOLE, 30)
        stop(proxy)
        for client in (*streams, *passed):
            seen = read_stream(body_of(client.rest()))
            assert seen.text == "one"
            assert [error["code"] for error in seen.errors] == ["shutting_down"]
            assert seen.done == 1
        for client in whole:
            code, error = client.error()
            assert (code, error["code"]) == (503, "shutting_down")
        assert status() == 0
        assert "Traceback" not in proxy.log
        wait_until(lambda: fake.active == 0)
        assert fake.cancelled == STREAMS + PASSED + WHOLE


@pytest.mark.slow
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_in_time_ends_as_ever(tmp_path: Path, first: signal.Signals) -> None:
    gate = Gate(at=1)
    with held(gate) as fake, stopping(tmp_path / "log", fake, 30.0) as (proxy, status), ExitStack() as stack:
        streams = [stack.enter_context(connected(proxy.url)) for _ in range(5)]
        idle = stack.enter_context(connected(proxy.url))
        idle.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert idle.answer()[0].status == 200
        for number, client in enumerate(streams):
            client.send(chat(stream=True, text=f"stream {number}"))
        wait_until(lambda: gate.waiting == 5, 30)
        os.kill(proxy.pid, first)
        assert idle.rest() == b""  # an idle connection is closed at once
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{proxy.url}/healthz", trust_env=False)
        began = time.monotonic()
        gate.open()
        for client in streams:
            seen = read_stream(body_of(client.rest()))
            assert seen.text == "one two three four"
            assert (seen.finishes, seen.done, seen.errors) == (["stop"], 1, [])
        assert status() == 0
        assert time.monotonic() - began < 20  # it does not wait for the rest of its time


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(tmp_path: Path, second: signal.Signals) -> None:
    gate = Gate(at=1)
    with held(gate) as fake, stopping(tmp_path / "log", fake, 1000.0) as (proxy, status), connected(proxy.url) as client:
        client.send(chat(stream=True))
        gate.wait_reached()
        stop(proxy)
        wait_until(lambda: not answers(proxy))
        os.kill(proxy.pid, second)
        client.rest()
        assert status() == 0


@pytest.mark.slow
def test_a_client_that_does_not_read_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    fake = GenericFake(brain=walk(), tokens_per_chunk=400, window=10**9)
    with fake, stopping(tmp_path / "log", fake, 0.2) as (proxy, status), connected(proxy.url, window=4096) as client:
        client.send(chat(stream=True, tokens=None))
        wait_until(lambda: fake.active == 1)
        stop(proxy)
        assert status() == 0
        assert "Traceback" not in proxy.log


@pytest.mark.slow
def test_it_opens_as_many_files_as_the_system_permits(tmp_path: Path) -> None:
    with GenericFake() as fake, spillway_server([fake.url], log=tmp_path / "log") as proxy:
        soft, hard = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
        assert soft >= min(hard if hard != resource.RLIM_INFINITY else 65536, 65536)

"""Several workers on one port: what each does and learns holds for all, none is missed for long, and they end in good order."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.cli import main
from tests.engine.spillway import Spillway, spillway_server
from tests.fakes import FakeModel, Gate, GenericFake, LlamaCppFake, qa, summariser, wait_until
from tests.fakes.model import Reply
from tests.fakes.waiting import PATIENT
from tests.proxying import read_stream
from tests.server.raw import Raw, chat, connected
from tests.server.test_server import body_of
from tests.store.stack import backend, history
from tests.store.support import RedisServer, redis_server

__all__ = ["redis_server"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

WORKERS = 2
ASK = {"model": "n", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5}


def workers_of(pid: int) -> list[int]:
    """The processes that serve for the one that keeps them."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return sorted(
        int(each) for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()
    )


@contextmanager
def only(worker: int, proxy: Spillway) -> Iterator[None]:
    """Have all new connections taken by this one."""
    others = [each for each in workers_of(proxy.pid) if each != worker]
    for each in others:
        os.kill(each, signal.SIGSTOP)
        wait_until(lambda each=each: state_of(each) == "T")  # type: ignore[misc]  # bound at once
    try:
        yield
    finally:
        for each in others:
            os.kill(each, signal.SIGCONT)


def state_of(pid: int) -> str:
    """The letter of a process' state, see proc(5); empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def at(worker: int, proxy: Spillway, stack: ExitStack) -> httpx.Client:
    """A client with one connection, to this worker."""
    client = httpx.Client(
        base_url=proxy.url, timeout=60, trust_env=False, limits=httpx.Limits(max_connections=1)
    )
    stack.enter_context(client)
    with only(worker, proxy):
        assert client.get("/healthz").status_code == 200
    return client


@contextmanager
def serving(folder: Path, *urls: str, **settings: Any) -> Iterator[Spillway]:
    usual = {"store": f"sqlite:///{folder}/store.sqlite3", "workers": WORKERS, "keep_alive": 120}
    usual["store_timeout"] = PATIENT
    with spillway_server(urls, log=folder / "log", **usual | settings) as proxy:
        wait_until(lambda: len(workers_of(proxy.pid)) == WORKERS, 30)
        with httpx.Client(base_url=proxy.url, trust_env=False, timeout=30) as client:
            for worker in workers_of(proxy.pid):
                with only(worker, proxy):  # which answers once it has started
                    assert client.get("/healthz", headers={"connection": "close"}).status_code == 200
        yield proxy


@dataclass(frozen=True, slots=True)
class Pair:
    proxy: Spillway
    known: LlamaCppFake
    """Has the model `m`, and tells its window."""
    silent: GenericFake
    """Has the model `n`, and tells no window."""
    one: httpx.Client
    two: httpx.Client


@contextmanager
def two_workers(folder: Path, **settings: Any) -> Iterator[Pair]:
    silent = GenericFake([FakeModel("n", 2048)], summariser(qa()))
    with (
        backend(prompt_delay=0.2) as known,
        silent,
        serving(folder, known.url, silent.url, **settings) as proxy,
        ExitStack() as stack,
    ):
        first, second = workers_of(proxy.pid)
        yield Pair(proxy, known, silent, at(first, proxy, stack), at(second, proxy, stack))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_workers(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture(scope="module")
def redis_pair(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_workers(tmp_path_factory.mktemp("redis_pair"), store=redis_server.url) as pair:
        yield pair


@pytest.fixture(params=["pair", pytest.param("redis_pair", marks=pytest.mark.slow)])
def each_pair(request: pytest.FixtureRequest) -> Pair:
    """With either store that workers can share."""
    pair: Pair = request.getfixturevalue(request.param)
    return pair


def ask(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def test_a_history_is_shortened_once_whichever_workers_are_asked(each_pair: Pair) -> None:
    messages = history("shared")
    body = {"model": "m", "messages": messages, "max_tokens": 10}
    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        first, second = workers_of(each_pair.proxy.pid)
        clients = [at(worker, each_pair.proxy, stack) for worker in (first, second) * 3]
        list(pool.map(lambda client: ask(client, body), clients))
    sent = [request.json["messages"] for request in each_pair.known.chats()]
    sent = [each for each in sent if "shared" in str(each)]
    asked = [each for each in sent if "Summarise" in str(each[-1]["content"])]
    assert len(asked) == 1, each_pair.proxy.log
    forwarded = [each for each in sent if each not in asked]
    assert len(forwarded) == 6
    assert all(each == forwarded[0] for each in forwarded)


def test_what_one_worker_has_shortened_the_other_takes_at_once(pair: Pair) -> None:
    clients = [pair.one, pair.two]
    for number in range(6):  # the next turn comes right after: there is no second in which it may be unknown
        messages = history(f"passed on {number}")
        here, there = clients[number % 2], clients[1 - number % 2]
        ask(here, {"model": "m", "messages": messages, "max_tokens": 10})
        messages += [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And?"}]
        later = ask(there, {"model": "m", "messages": messages, "max_tokens": 10})
        assert later.headers["x-spillway-action"] == "forwarded"


def test_a_window_that_one_worker_has_learned_the_other_knows(each_pair: Pair) -> None:
    def window(client: httpx.Client) -> Any:
        backends = client.get("/spillway/models").json()["backends"]
        found = [each["models"]["n"] for each in backends if "n" in each["models"]]
        return found[0].get("window")

    one, two, silent = each_pair.one, each_pair.two, each_pair.silent
    # Which the backend refuses, and names its window.
    ask(one, {**ASK, "messages": history("learning", 12)})
    assert (window(one)["value"], window(one)["trust"]) == (2048, "learned")
    wait_until(lambda: (window(two) or {}).get("trust") == "learned", 20)
    assert window(two)["value"] == 2048
    refused = silent.overflows
    ask(two, {**ASK, "messages": history("knowing", 12)})
    assert silent.overflows == refused


def requests_counted(client: httpx.Client) -> float:
    lines = re.findall(
        r'^spillway_requests_total\{.*model="counted".*\} (\S+)$', client.get("/metrics").text, re.MULTILINE
    )
    return sum(map(float, lines))


def test_metrics_are_those_of_all_workers(pair: Pair) -> None:
    for client in (pair.one, pair.one, pair.two):
        client.post("/v1/chat/completions", json={**ASK, "model": "counted"})
    for client in (pair.one, pair.two):
        wait_until(lambda client=client: requests_counted(client) == 3, 20)  # type: ignore[misc]  # bound at once
    text = pair.one.get("/metrics").text
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "spillway_store_healthy"):
        assert len(re.findall(rf"^{name} ", text, re.MULTILINE)) == 1
    assert "\nspillway_store_healthy 1.0" in text
    assert "pid=" not in text


@pytest.mark.parametrize(
    "path", ["/spillway/conversations", "/spillway/live", "/spillway/session", "/spillway/savings", "/"]
)
def test_what_one_process_alone_could_show_says_that_there_are_several(pair: Pair, path: str) -> None:
    answer = pair.one.get(path, headers={"accept": "text/html"})
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert error["code"] == "one_worker_only"
    assert "SPILLWAY_WORKERS" in error["message"]


@contextmanager
def answering(folder: Path, **settings: Any) -> Iterator[tuple[Spillway, GenericFake, Gate, list[Raw]]]:
    """Workers with one stream each that waits in the middle."""
    gate = Gate(at=1)
    fake = GenericFake(brain=lambda _: Reply(text="one two three four", gate=gate))
    with fake, serving(folder, fake.url, **settings) as proxy, ExitStack() as stack:
        streams = []
        for worker in workers_of(proxy.pid):
            with only(worker, proxy):
                streams.append(stack.enter_context(connected(proxy.url)))
                streams[-1].send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                assert streams[-1].answer()[0].status == 200
        for number, client in enumerate(streams):
            client.send(chat(stream=True, text=f"stream {number}"))
        wait_until(lambda: gate.waiting == WORKERS, 30)
        yield proxy, fake, gate, streams


def signal_all(proxy: Spillway, number: signal.Signals) -> None:
    """Send it to every process, as a terminal and systemd do."""
    for pid in (proxy.pid, *workers_of(proxy.pid)):
        os.kill(pid, number)
    wait_until(lambda: proxy.log.count("stopping: ") > 0, 20)


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_answers_of_the_others_end_as_ever(tmp_path: Path) -> None:
    with answering(tmp_path, graceful_timeout=30) as (proxy, fake, gate, streams), ExitStack() as stack:
        killed, other = workers_of(proxy.pid)
        clients = [at(worker, proxy, stack) for worker in (killed, other)]
        for client in clients:
            client.post("/v1/chat/completions", json={**ASK, "model": "counted"})
        wait_until(lambda: requests_counted(clients[1]) == 2, 20)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: fake.cancelled == 1, 20)
        wait_until(lambda: len({*workers_of(proxy.pid)} - {killed}) == WORKERS, 30)
        new = next(each for each in workers_of(proxy.pid) if each != other)
        replaced = at(new, proxy, stack)
        assert replaced.get("/readyz").status_code == 200
        assert requests_counted(replaced) == 2  # no counter falls
        assert "status -9" in proxy.log
        signal_all(proxy, signal.SIGINT)
        gate.open()
        seen = read_stream(body_of(streams[1].rest()))
        assert (seen.text, seen.finishes, seen.done) == ("one two three four", ["stop"], 1)
        assert proxy.process._process.wait(30) == 0


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    with answering(tmp_path, graceful_timeout=600) as (proxy, _, _, streams):
        signal_all(proxy, signal.SIGTERM)
        os.kill(proxy.pid, signal.SIGTERM)
        for client in streams:
            client.rest()
        assert proxy.process._process.wait(30) == 0


@pytest.mark.slow
def test_workers_end_in_good_order_when_nobody_keeps_them_any_more(tmp_path: Path) -> None:
    with answering(tmp_path, graceful_timeout=0.2) as (proxy, _, _, streams):
        pids = workers_of(proxy.pid)
        os.kill(proxy.pid, signal.SIGKILL)
        for client in streams:
            seen = read_stream(body_of(client.rest()))
            assert (seen.text, seen.done) == ("one", 1)
            assert [error["code"] for error in seen.errors] == ["shutting_down"]
        wait_until(lambda: not any(state_of(pid).strip("Z") for pid in pids), 30)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", "--backend", "http://127.0.0.1:9", *arguments]) == 2
    return capsys.readouterr().err


def test_a_store_that_processes_can_not_share_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLWAY_STORE", "memory://")
    said = refusal(capsys, "--workers", "2")
    assert "memory://" in said
    assert "sqlite:///PATH" in said


def test_an_address_that_is_taken_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPILLWAY_STORE", f"sqlite:///{tmp_path}/store.sqlite3")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal(capsys, "--workers", "2", "--port", port)
    assert re.fullmatch(rf"spillway: can't listen on 127.0.0.1, port {port}: .+\n", said)


def test_what_the_workers_refuse_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPILLWAY_STORE", f"sqlite:///{tmp_path}")  # a folder
    said = refusal(capsys, "--workers", "2", "--port", "0")
    assert said.count("SPILLWAY_STORE=") == 1

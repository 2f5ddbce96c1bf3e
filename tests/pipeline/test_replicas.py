"""Two replicas with one Redis behind nginx: no summary is written twice, and either takes the next turn."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from benchmarks.process import free_port
from benchmarks.scale import gateway
from tests.fakes import FakeModel, LlamaCppFake, qa, summariser
from tests.proxying import Proxy, running_proxy
from tests.store.stack import history
from tests.store.support import RedisServer, redis_server

__all__ = ["redis_server"]

pytestmark = pytest.mark.slow  # they start Redis and nginx


@dataclass(frozen=True, slots=True)
class Replicas:
    one: Proxy
    two: Proxy
    both: httpx.Client
    """Through the gateway, which sends requests to either."""
    known: LlamaCppFake
    """Has the model `m`."""


@pytest.fixture
def replicas(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    known = LlamaCppFake([FakeModel("m", 2048)], summariser(qa()), prompt_delay=0.1)
    with ExitStack() as stack:
        stack.enter_context(known)
        shared = {"store": redis_server.url}
        one, two = (stack.enter_context(running_proxy(known, **shared)) for _ in range(2))
        port = free_port()
        behind = [int(proxy.url.rsplit(":", 1)[1]) for proxy in (one, two)]
        stack.enter_context(gateway(port, behind, tmp_path_factory.mktemp("gateway")))
        both = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        yield Replicas(one, two, stack.enter_context(both), known)


def ask(client: httpx.Client, messages: list[dict[str, Any]]) -> httpx.Response:
    body = {"model": "m", "messages": messages, "max_tokens": 10}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def test_a_summary_is_written_once_and_serves_both(replicas: Replicas) -> None:
    messages = history("shared")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: ask(replicas.both, messages), range(6)))
    sent = [request.json["messages"] for request in replicas.known.chats()]
    sent = [each for each in sent if "shared" in str(each)]
    asked = [each for each in sent if "Summarise" in str(each[-1]["content"])]
    assert len(asked) == 1
    forwarded = [each for each in sent if each not in asked]
    assert len(forwarded) == 6
    assert all(each == forwarded[0] for each in forwarded)
    for number in range(4):
        messages += [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": f"And {number}?"}]
        assert ask(replicas.both, messages).headers["x-spillway-action"] == "continued"


def test_the_next_turn_after_a_summary_may_come_to_the_other_replica(replicas: Replicas) -> None:
    pair = [replicas.one, replicas.two]
    for number in range(2):
        here, there = pair[number % 2], pair[1 - number % 2]
        messages = history(f"passed on {number}")
        assert ask(here.client, messages).headers["x-spillway-action"] == "compacted"
        messages += [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And?"}]
        assert ask(there.client, messages).headers["x-spillway-action"] == "continued"

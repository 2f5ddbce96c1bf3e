"""Long work takes turns: whoever had least of the threads' time comes next, and nobody has more than a bound."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from proxy.compaction import source
from proxy.net import tasks
from tests.fakes import FakeModel, LlamaCppFake, qa, summariser, wait_until
from tests.fakes.waiting import PATIENCE
from tests.proxying import Proxy, running_proxy
from tests.raw import asking, connected


def history(characters: int, name: str) -> list[dict[str, Any]]:
    lines = [f"src/{name}{n % 97}/part{n}/module_{n * n % 9973}.py:{n}" for n in range(characters // 50)]
    texts = ["\n".join(lines[at : at + 40]) for at in range(0, len(lines), 40)]
    said = [[{"role": "user", "content": text}, {"role": "assistant", "content": "Noted."}] for text in texts]
    return [*(message for turn in said for message in turn), {"role": "user", "content": f"Which port has {name}7?"}]


def asked(proxy: Proxy, key: str, characters: int, name: str, order: list[str]) -> int:
    body = {"model": "m", "messages": history(characters, name)}
    status: int = proxy.chat(body, **{"x-api-key": key}).status_code
    order.append(name)
    return status


@pytest.mark.parametrize("key", ["bert-key-12345", "anne-key-12345"])
@pytest.mark.rows(1)
def test_a_short_chat_does_not_wait_for_long_ones(key: str) -> None:
    order: list[str] = []
    keys = ("anne-key-12345", "bert-key-12345")
    fake = LlamaCppFake([FakeModel("m", 8192)], summariser(qa()))
    with fake, running_proxy(fake, api_keys=keys) as proxy, ThreadPoolExecutor(4) as clients:
        long = [clients.submit(asked, proxy, keys[0], 120_000, name, order) for name in ("one", "two")]
        wait_until(lambda: tasks.TURNS.running >= 2)
        assert asked(proxy, key, 20_000, "short", order) == 200
        assert [each.result() for each in long] == [200, 200]
    assert order[0] == "short"


def test_shortening_ends_when_its_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, left, read = Event(), Event(), list[str]()
    facts_in = source.facts_in

    def watched(sentence: str) -> tuple[source.TextFact, ...]:
        begun.set()
        assert left.wait(PATIENCE)
        read.append(sentence)
        return facts_in(sentence)

    monkeypatch.setattr(source, "facts_in", watched)
    with LlamaCppFake([FakeModel("m", 8192)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        body = {"model": "m", "messages": history(400_000, "long")}
        with connected(proxy.url) as client:
            client.send(asking(body))
            assert begun.wait(PATIENCE)
        wait_until(lambda: not proxy.server.server_state.connections)
        left.set()
        wait_until(lambda: not tasks.TURNS.running)
        assert 0 < len(read) < 4_000, "it has 8,000 sentences"
        assert not fake.chats()


def test_a_request_that_takes_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOST_SECONDS", 0.01)
    with LlamaCppFake([FakeModel("m", 8192)], qa()) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": history(200_000, "long")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_much_work")
        assert proxy.chat({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).status_code == 200

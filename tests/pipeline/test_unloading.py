"""Chats with models that their engine has unloaded: loaded first, then asked for their window, through the HTTP stack."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.core.request import text_of
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, qa, summariser
from tests.fakes.base import HttpFake
from tests.fakes.llamaswap import Entry, LlamaSwapFake
from tests.pipeline.test_counting import history, told
from tests.proxying import Proxy, running_proxy

pytestmark = pytest.mark.slow

WINDOW = 32_768
TRAINED = 131_072
NOW = 1e-9
"""Seconds a profile is believed: every request finds out whether the model is still loaded."""
LONG = history(41, 222)
"""About 9,300 tokens."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine as Spillway sees it (`front`), and the server in which its model `m` runs."""

    front: HttpFake
    server: FakeBackend
    unloading: tuple[str, dict[str, Any]]

    def unload(self) -> None:
        """Unload the model the way the engine's own client does."""
        path, body = self.unloading
        httpx.post(self.front.url + path, json=body, trust_env=False).raise_for_status()

    @property
    def summaries(self) -> int:
        return sum("summar" in text_of(chat.json["messages"][-1]).lower() for chat in self.server.chats())


def _server(kind: str, **options: Any) -> Engine:
    model, brain = FakeModel("m", WINDOW, TRAINED, loaded=False), summariser(qa())
    server: FakeBackend
    match kind:
        case "ollama":
            server = OllamaFake([model], brain, **options)
            return Engine(server, server, ("/api/generate", {"model": "m", "keep_alive": 0}))
        case "lmstudio":
            server = LmStudioFake([model], brain, **options)
            return Engine(server, server, ("/api/v1/models/unload", {"instance_id": "m"}))
        case "llamacpp":
            server = LlamaCppFake([model], brain, router=True)
            return Engine(server, server, ("/models/unload", {"model": "m"}))
        case _:
            server = LlamaCppFake([model], brain)
            front = LlamaSwapFake({"m": Entry(server, command=f"llama-server -c {WINDOW}")})
            return Engine(front, server, ("/api/models/unload", {}))


@contextmanager
def engine(kind: str, **options: Any) -> Iterator[Engine]:
    made = _server(kind, **options)
    with made.front:
        yield made


def ask(proxy: Proxy, messages: list[dict[str, Any]], model: str = "m") -> httpx.Response:
    answer = proxy.chat({"model": model, "messages": messages, "max_tokens": 5})
    assert answer.status_code == 200
    return answer


@pytest.mark.parametrize("when", ["first request", "idle", "restart"])
@pytest.mark.parametrize("kind", ["ollama", "lmstudio", "llamacpp", "llamaswap"])
def test_a_chat_that_fits_is_sent_as_it_is_to_a_model_that_is_not_loaded(kind: str, when: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite3"
    settings: dict[str, Any] = {"store": f"sqlite:///{path}", "profile_ttl": NOW}
    with engine(kind) as there:
        if when == "restart":
            with running_proxy(there.front, **settings) as before:
                ask(before, LONG[:1])
            there.unload()
        with running_proxy(there.front, **settings) as proxy:
            if when == "idle":
                ask(proxy, LONG[:1])
                there.unload()
            answer = ask(proxy, LONG)
        assert answer.headers["x-spillway-action"] == "forwarded"
        assert answer.headers["x-spillway-window"] == str(WINDOW)
        assert there.server.chats()[-1].json["messages"] == LONG
        assert 9_000 < there.server.count({"model": "m", "messages": LONG}) < 10_000
        assert (there.summaries, there.server.cuts) == (0, 0)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM checkpoints").fetchone() == (0,)


def test_the_window_that_a_model_was_last_loaded_with_outlasts_a_restart(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/kept.sqlite3"}
    with engine("ollama") as there:
        with running_proxy(there.front, **settings) as before:
            ask(before, LONG[:1], "m:latest")
        there.unload()
        with running_proxy(there.front, **settings) as proxy:
            window = told(proxy, "m:latest")["window"]
        assert (window["value"], window["origin"]) == (WINDOW, "when it was last loaded")


@pytest.mark.parametrize("kind", ["ollama", "lmstudio"])
def test_a_model_that_comes_back_with_a_smaller_window_cuts_nothing(kind: str) -> None:
    with engine(kind) as there, running_proxy(there.front, profile_ttl=NOW) as proxy:
        ask(proxy, LONG[:1])
        there.unload()
        (model,) = there.server.models
        model.window = 4096
        answer = ask(proxy, LONG)
        assert answer.headers["x-spillway-action"] == "compacted"
        assert answer.headers["x-spillway-window"] == "4096"
        assert (there.server.cuts, there.server.overflows) == (0, 0)


def test_a_checkpoint_for_a_smaller_window_is_not_applied_where_the_history_fits() -> None:
    model = FakeModel("m", 4096, TRAINED)
    with OllamaFake([model], summariser(qa())) as fake, running_proxy(fake, profile_ttl=NOW, recall="off") as proxy:
        there = Engine(fake, fake, ("/api/generate", {"model": "m", "keep_alive": 0}))

        def turn(window: int, number: int) -> str:
            there.unload()
            model.window = window
            return str(ask(proxy, [*LONG, *history(2 * number, 20)]).headers["x-spillway-action"])

        assert turn(4096, 0) == "compacted"
        short = fake.chats()[-1].json["messages"]
        written = there.summaries
        assert turn(WINDOW, 1) == "forwarded"
        assert fake.chats()[-1].json["messages"] == [*LONG, *history(2, 20)]
        assert turn(4096, 2) == "continued"
        assert fake.chats()[-1].json["messages"] == [*short, *history(4, 20)]
        assert (there.summaries, fake.cuts) == (written, 0)

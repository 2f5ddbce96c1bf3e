"""Ollama's own package for Python, in front of every kind of backend: chats, streamed, tools, past the window."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import httpx
import ollama
import pytest

from proxy.core.settings import BackendSetting
from tests.fakes import FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, scripted
from tests.proxying import Proxy, running_proxy

MODEL = "fake-model"


Sdk: TypeAlias = Callable[[Proxy], ollama.Client]


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    made: list[ollama.Client] = []

    def client(proxy: Proxy) -> ollama.Client:
        made.append(ollama.Client(host=proxy.url, timeout=60))
        return made[-1]

    yield client
    for each in made:
        each.close()  # type: ignore[no-untyped-call]


def test_the_lists_of_ollama_are_answered_for_any_backend(sdk: Sdk) -> None:
    models = [FakeModel("small", window=2048), FakeModel("seeing", window=8192, vision=True, tools=False)]
    with LlamaCppFake(models[:1]) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        assert proxy.client.get("/api/version").json()["version"]
        (listed,) = client.list().models
        assert listed.model == "small"
        (loaded,) = client.ps().models
        assert (loaded.model, loaded.context_length) == ("small", 2048)
        shown = client.show("small:latest")
        assert shown.modelinfo is not None
        told = [shown.modelinfo[key] for key in shown.modelinfo if key.endswith("context_length")]
        assert (told, shown.parameters) == ([2048], "num_ctx 2048")
        assert shown.capabilities == ["completion", "tools"]
        with pytest.raises(ollama.ResponseError) as caught:
            client.show("nobody's")
        assert caught.value.status_code == 404
    with LmStudioFake(models) as other, running_proxy(other) as proxy:
        assert "vision" in (sdk(proxy).show("seeing").capabilities or ())


def test_an_ollama_behind_answers_itself(sdk: Sdk) -> None:
    with OllamaFake() as fake, running_proxy(fake) as proxy, httpx.Client(base_url=fake.url) as direct:
        for path in ("/api/tags", "/api/ps", "/api/version"):
            assert proxy.client.get(path).json() == direct.get(path).json()
        assert sdk(proxy).show(MODEL).template is not None
        assert proxy.client.post("/api/show", json={"model": "none"}).status_code == 404


def test_a_spillway_behind_is_not_taken_for_an_ollama() -> None:
    with LlamaCppFake(window=2048) as fake, running_proxy(fake) as inner, running_proxy(BackendSetting(url=inner.url)) as outer:
        (backend,) = outer.client.get("/spillway/models").json()["backends"]
        assert backend["kind"] != "ollama"
        (model,) = outer.client.get("/v1/models").json()["data"]
        assert model["spillway"]["window"] == 2048


def test_options_formats_and_thinking_are_told_in_the_backends_words(sdk: Sdk) -> None:
    with LlamaCppFake(brain=scripted(["{}"] * 4)) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        messages = [{"role": "user", "content": "go"}]
        options = {"temperature": 0.1, "top_k": 4, "seed": 7, "stop": ["\n"], "num_predict": 9, "num_ctx": 512}
        client.chat(MODEL, messages, options=options, format="json", keep_alive="5m", think=False)
        sent = fake.chats()[-1].json
        assert {name: sent[name] for name in ("temperature", "top_k", "seed", "stop", "max_tokens")} == {
            "temperature": 0.1, "top_k": 4, "seed": 7, "stop": ["\n"], "max_tokens": 9,
        }  # fmt: skip
        assert sent["response_format"] == {"type": "json_object"}
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}
        assert sent.keys().isdisjoint({"num_ctx", "keep_alive", "format", "think", "options"})
        client.chat(MODEL, messages, think="high")
        assert fake.chats()[-1].json["reasoning_effort"] == "high"
        client.chat(MODEL, messages, think=True)
        assert "reasoning_effort" not in fake.chats()[-1].json
        assert fake.chats()[-1].json["chat_template_kwargs"] == {"enable_thinking": True}

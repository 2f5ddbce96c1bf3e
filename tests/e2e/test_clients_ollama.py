"""Ollama's own package for Python, in front of every kind of backend: chats, streamed, tools, past the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import httpx
import ollama
import pytest

from proxy.core.settings import BackendSetting
from tests.e2e.clients.weather import asked_for_weather
from tests.fakes import FAKES, FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, qa, scripted, summariser, walk, words
from tests.proxying import Proxy, running_proxy

MODEL = "fake-model"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


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


def chat(client: ollama.Client, *, streamed: bool, **asked: Any) -> ollama.ChatResponse:
    """What comes of a request; of a stream its last line, with all that was said in the message."""
    asked = {"model": MODEL, **asked}
    if not streamed:
        whole: ollama.ChatResponse = client.chat(**asked)
        return whole
    text, thought, calls = "", "", list[Any]()
    for line in client.chat(**asked, stream=True):
        text += line.message.content or ""
        thought += line.message.thinking or ""
        calls += line.message.tool_calls or []
    line.message = ollama.Message(role="assistant", content=text, thinking=thought or None, tool_calls=calls or None)
    return line


@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer(kind: str, streamed: bool, sdk: Sdk) -> None:
    with FAKES[kind](brain=scripted(["Good day to you."])) as fake, running_proxy(fake) as proxy:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
        said = chat(sdk(proxy), streamed=streamed, messages=messages, options={"temperature": 0.5, "num_ctx": 99})
        assert said.message.content == "Good day to you."
        assert (said.done, said.done_reason, said.model) == (True, "stop", MODEL)
        assert said.prompt_eval_count
        assert said.eval_count
        (sent,) = fake.chats()
        options = sent.json["options"] if kind == "ollama" else sent.json
        assert sent.path.endswith("/api/chat" if kind == "ollama" else "/chat/completions")
        assert (sent.json["messages"], options["temperature"]) == (messages, 0.5)
        assert ("num_ctx" in options) is (kind == "ollama")


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_of_several_windows_is_one(streamed: bool, sdk: Sdk) -> None:
    with LlamaCppFake(brain=walk(last=1500), window=1024) as fake, running_proxy(fake) as proxy:
        said = chat(sdk(proxy), streamed=streamed, messages=[{"role": "user", "content": "go"}])
        assert said.message.content == words(1, 1500)
        assert len(fake.chats()) > 2
        bounded = chat(
            sdk(proxy), streamed=streamed, messages=[{"role": "user", "content": "go"}], options={"num_predict": 9}
        )
        assert bounded.done_reason == "length"


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_tool_is_called_and_its_result_goes_back(streamed: bool, native: bool, sdk: Sdk) -> None:
    with asked_for_weather(native=native, thought="Two.") as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        messages: list[Any] = [{"role": "user", "content": "How is the weather in Graz and Linz?"}]
        asked = chat(client, streamed=streamed, messages=messages, tools=[WEATHER])
        made = [call.function for call in asked.message.tool_calls or []]
        assert [(call.name, call.arguments) for call in made] == [("weather", {"city": c}) for c in ("Graz", "Linz")]
        assert asked.message.thinking == ("Two." if native else None)
        results = [{"role": "tool", "tool_name": "weather", "content": said} for said in ("sun", "rain")]
        told = chat(client, streamed=streamed, messages=[*messages, asked.message, *results], tools=[WEATHER])
        assert told.message.content == "Sunny in both."
        assert fake.invalid_histories == []
        if native:
            *_, call, first, second = fake.chats()[-1].json["messages"]
            assert [each["id"] for each in call["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
            assert (first["content"], second["content"]) == ("sun", "rain")


def test_errors_and_formats(sdk: Sdk) -> None:
    with LlamaCppFake(brain=scripted(['{"a": 1}']), window=1024) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        said = chat(client, streamed=False, messages=[{"role": "user", "content": "go"}], format={"type": "object"})
        assert said.message.content == '{"a": 1}'
        assert fake.chats()[-1].json["response_format"]["json_schema"]["schema"] == {"type": "object"}
        with pytest.raises(ollama.ResponseError) as caught:
            chat(client, streamed=False, messages=[{"role": "system", "content": "word " * 5000}])
        assert caught.value.status_code == 400
        with pytest.raises(ollama.ResponseError, match="role"):
            chat(client, streamed=False, messages=[{"role": "boss", "content": "go"}])
        fake.stop()
        with pytest.raises(ollama.ResponseError, match="cannot be reached"):
            chat(client, streamed=True, messages=[{"role": "user", "content": "go"}])


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
    with (
        LlamaCppFake(window=2048) as fake,
        running_proxy(fake) as inner,
        running_proxy(BackendSetting(url=inner.url)) as outer,
    ):
        (backend,) = outer.client.get("/spillway/models").json()["backends"]
        assert backend["kind"] != "ollama"
        (model,) = outer.client.get("/v1/models").json()["data"]
        assert model["spillway"]["window"] == 2048


@pytest.mark.parametrize("streamed", [True, False])
def test_a_chat_goes_on_past_the_window_and_forgets_nothing(streamed: bool, sdk: Sdk) -> None:
    """What Ollama's own path forgets without a word."""
    brain = summariser(qa(filler=60))
    with LlamaCppFake([FakeModel(MODEL, window=2048)], brain=brain) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        messages: list[Any] = [{"role": "user", "content": "Remember: the code of alpha is X-17."}]
        for turn in range(25):
            said = chat(client, streamed=streamed, messages=messages)
            assert said.done_reason == "stop"
            assert said.prompt_eval_count is not None
            assert said.prompt_eval_count < 2048
            more = f"Turn {turn}: " + "this is what I have to say. " * 12
            messages += [said.message.model_dump(exclude_none=True), {"role": "user", "content": more}]
        messages[-1] = {"role": "user", "content": "What is the code of alpha?"}
        last = chat(client, streamed=streamed, messages=messages)
        assert (last.message.content or "").startswith("The code of alpha is X-17.")
        assert (fake.overflows, fake.invalid_histories) == (0, [])


def test_options_formats_and_thinking_are_told_in_the_backends_words(sdk: Sdk) -> None:
    with LlamaCppFake(brain=scripted(["{}"] * 4)) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        messages = [{"role": "user", "content": "go"}]
        options = {"temperature": 0.1, "top_k": 4, "seed": 7, "stop": ["\n"], "num_predict": 9, "num_ctx": 512}
        client.chat(MODEL, messages, options=options, format="json", keep_alive="5m", think=False)
        sent = fake.chats()[-1].json
        assert {name: sent[name] for name in ("temperature", "top_k", "seed", "stop", "max_tokens")} == {
            "temperature": 0.1,
            "top_k": 4,
            "seed": 7,
            "stop": ["\n"],
            "max_tokens": 9,
        }
        assert sent["response_format"] == {"type": "json_object"}
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}
        assert sent.keys().isdisjoint({"num_ctx", "keep_alive", "format", "think", "options"})
        client.chat(MODEL, messages, think="high")
        assert fake.chats()[-1].json["reasoning_effort"] == "high"
        client.chat(MODEL, messages, think=True)
        assert "reasoning_effort" not in fake.chats()[-1].json
        assert fake.chats()[-1].json["chat_template_kwargs"] == {"enable_thinking": True}

"""Anthropic's own SDK, in front of every kind of backend: whole, streamed, tools, images, thinking, past the window."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.e2e.clients.weather import asked_for_weather
from tests.fakes import FAKES, FakeBackend, FakeModel, GenericFake, LlamaCppFake, scripted, walk, words
from tests.proxying import running_proxy
from tests.sdks import anthropic_sdk as sdk
from tests.sdks import closed

__all__ = ["closed"]

MODEL = "fake-model"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER: ToolParam = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(text: str) -> list[MessageParam]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("kind", FAKES)
def test_a_whole_and_a_streamed_answer(kind: str) -> None:
    with FAKES[kind](brain=scripted(["Good day to you."] * 2)) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        whole = client.messages.create(model=MODEL, max_tokens=100, system="Be brief.", messages=ask("hello"))
        assert whole.content[0].type == "text"
        assert whole.content[0].text == "Good day to you."
        assert (whole.type, whole.role, whole.stop_reason) == ("message", "assistant", "end_turn")
        assert whole.usage.input_tokens > 0
        assert whole.usage.output_tokens > 0
        with client.messages.stream(model=MODEL, max_tokens=100, messages=ask("hello")) as stream:
            assert "".join(stream.text_stream) == "Good day to you."
            final = stream.get_final_message()
        assert final.stop_reason == "end_turn"
        assert final.usage.output_tokens > 0
        assert all(chat.path.endswith(fake.chat_paths) for chat in fake.chats())


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_of_several_windows_is_one_message(streamed: bool) -> None:
    with LlamaCppFake(brain=walk(last=1500), window=1024) as fake, running_proxy(fake) as proxy:
        said = _answer(sdk(proxy), streamed=streamed, messages=ask("go"))
        assert said.content[0].type == "text"
        assert said.content[0].text == words(1, 1500)
        assert said.stop_reason == "end_turn"
        assert len(fake.chats()) > 2


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_tool_is_called_and_its_result_goes_back(streamed: bool, native: bool) -> None:
    with asked_for_weather(native=native) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        messages = ask("How is the weather in Graz and Linz?")
        asked = _answer(client, streamed=streamed, messages=messages, tools=[WEATHER])
        uses = [block for block in asked.content if block.type == "tool_use"]
        assert [(use.name, use.input) for use in uses] == [("weather", {"city": "Graz"}), ("weather", {"city": "Linz"})]
        assert asked.stop_reason == "tool_use"
        assert len({use.id for use in uses}) == 2
        results: Any = [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"} for use in uses]
        messages += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": results}]
        told = _answer(client, streamed=streamed, messages=messages, tools=[WEATHER])
        assert told.content[-1].type == "text"
        assert told.content[-1].text == "Sunny in both."
        assert fake.invalid_histories == []


def test_a_picture_goes_along_and_a_result_with_one_too() -> None:
    picture: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    models = [FakeModel(MODEL, vision=True)]
    with LlamaCppFake(models, brain=scripted(["A pixel."])) as fake, running_proxy(fake) as proxy:
        use: Any = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Graz"}}
        result: Any = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [picture], "is_error": False}
        messages: list[MessageParam] = [
            {"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        sdk(proxy).messages.create(model=MODEL, max_tokens=50, messages=messages, tools=[WEATHER])
        (sent,) = fake.chats()
        first, call, answered, last = sent.json["messages"]
        url = f"data:image/png;base64,{PIXEL}"
        assert first["content"][0] == {"type": "image_url", "image_url": {"url": url}}
        assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Graz"}'}
        assert (answered["role"], answered["tool_call_id"]) == ("tool", "toolu_1")
        assert last["content"] == [{"type": "image_url", "image_url": {"url": url}}]


def _answer(client: anthropic.Anthropic, *, streamed: bool, **asked: Any) -> anthropic.types.Message:
    asked = {"model": MODEL, "max_tokens": 4000, **asked}
    if not streamed:
        message: anthropic.types.Message = client.messages.create(**asked)
        return message
    with client.messages.stream(**asked) as stream:
        return stream.get_final_message()


def _fails(fake: FakeBackend, **asked: Any) -> anthropic.APIStatusError:
    with running_proxy(fake) as proxy, pytest.raises(anthropic.APIStatusError) as caught:
        sdk(proxy).messages.create(**{"model": MODEL, "max_tokens": 10, "messages": ask("hello"), **asked})
    return caught.value


def test_errors_are_those_that_the_sdk_knows() -> None:
    with LlamaCppFake(window=1024) as fake:
        too_long = _fails(fake, system="word " * 5_000)
        assert isinstance(too_long, anthropic.BadRequestError)
        body: Any = too_long.body
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["message"].startswith("prompt is too long: ")
        fake.fail_next(429, {"error": {"message": "slow down", "code": 429}})
        assert isinstance(_fails(fake), anthropic.RateLimitError)
        unknown: Any = [{"role": "user", "content": [{"type": "dance"}]}]
        assert "dance" in str(_fails(fake, messages=unknown))
        fake.stop()
        assert _fails(fake).status_code == 502


def test_a_prompt_is_counted_as_the_backend_counts_it_or_near_to_that() -> None:
    for kind, exact in ((LlamaCppFake, True), (GenericFake, False)):
        with kind(brain=scripted(["Well."])) as fake, running_proxy(fake) as proxy:
            client = sdk(proxy)
            asked: Any = {"model": MODEL, "messages": ask("hello " * 50), "system": "Be brief.", "tools": [WEATHER]}
            counted = client.messages.count_tokens(**asked).input_tokens
            used = client.messages.create(**asked, max_tokens=10).usage.input_tokens
            assert counted == used if exact else 0.5 < counted / used < 2


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("kind", ["llamacpp", "vllm", "ollama", "lmstudio", "openrouter"])
def test_an_answer_that_the_client_began_is_gone_on_with(kind: str, streamed: bool) -> None:
    begun: list[MessageParam] = [*ask("go"), {"role": "assistant", "content": words(1, 4)}]
    model = FakeModel(MODEL, window=1024)
    with FAKES[kind]([model], brain=walk(last=1200)) as fake, running_proxy(fake) as proxy:
        said = _answer(sdk(proxy), streamed=streamed, messages=begun)
        assert said.content[0].type == "text"
        assert said.content[0].text.strip() == words(5, 1200)
        if kind in ("llamacpp", "vllm"):
            asked = json.loads(fake.chats()[0].body)
            assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)

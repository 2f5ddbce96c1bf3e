"""Anthropic's own SDK, in front of every kind of backend: whole, streamed, tools, images, thinking, past the window."""

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.fakes import FAKES, FakeModel, GenericFake, LlamaCppFake, scripted, walk, words
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
@pytest.mark.rows(3)
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

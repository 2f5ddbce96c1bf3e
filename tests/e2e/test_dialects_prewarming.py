"""A prompt that is sent to be read alone, by the SDKs: nothing is said of what the backend had to generate for it."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.fakes import LlamaCppFake, Reply, scripted
from tests.proxying import running_proxy
from tests.sdks import anthropic_sdk, closed, openai_sdk

__all__ = ["closed"]

MODEL = "fake-model"
both = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
ANSWERS = [Reply(text="one two three", reasoning="Hm."), Reply(text="four five six")]
READ: Any = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}


@both
def test_anthropics(streamed: bool) -> None:
    with LlamaCppFake(brain=scripted(ANSWERS)) as fake, running_proxy(fake) as proxy:
        client: anthropic.Anthropic = anthropic_sdk(proxy)
        asked: Any = {"model": MODEL, "max_tokens": 0, "messages": [{"role": "user", "content": "Read this."}]}
        if streamed:
            with client.messages.stream(**asked) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**asked)
        assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
        assert message.usage.input_tokens > 0
        assert fake.chats()[0].json["max_tokens"] == 1
        more = client.messages.create(**{**asked, "max_tokens": 50})
        assert more.content[-1].type == "text"
        assert more.content[-1].text == "four five six"


@both
def test_openais(streamed: bool) -> None:
    with LlamaCppFake(brain=scripted(ANSWERS)) as fake, running_proxy(fake) as proxy:
        client: openai.OpenAI = openai_sdk(proxy)
        asked: Any = {"model": MODEL, "input": "Read this.", "prompt_cache_options": {"prewarm": True}}
        if streamed:
            with client.responses.stream(**asked) as stream:
                kinds = [event.type for event in stream]
                response = stream.get_final_response()
            assert kinds == ["response.created", "response.in_progress", "response.completed"]
        else:
            response = client.responses.create(**asked)
        assert (response.output, response.status) == ([], "completed")
        assert response.usage is not None
        assert (response.usage.output_tokens, response.usage.input_tokens > 0) == (0, True)
        assert fake.chats()[0].json["max_tokens"] == 1


def test_a_tool_that_was_taken_back_is_not_offered() -> None:
    with LlamaCppFake(brain=scripted(["Sorry."])) as fake, running_proxy(fake) as proxy:
        gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read"}}
        messages: Any = [{"role": "user", "content": "Read on."}, {"role": "system", "content": [gone]}]
        client: anthropic.Anthropic = anthropic_sdk(proxy)
        client.beta.messages.create(model=MODEL, max_tokens=50, messages=messages, tools=[READ])
        assert "tools" not in fake.chats()[0].json

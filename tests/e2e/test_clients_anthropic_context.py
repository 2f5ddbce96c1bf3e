"""Anthropic's own SDK, with what its betas have for long contexts: edits, compactions, and what is told of them."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaMessage

from tests.fakes import FakeModel, LlamaCppFake, scripted
from tests.proxying import Proxy, running_proxy

MODEL = "fake-model"
READ: Any = {
    "name": "read",
    "description": "Reads.",
    "input_schema": {"type": "object", "properties": {"file": {"type": "string"}}},
}
EDITS = "context-management-2025-06-27"
both = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


def sdk(proxy: Proxy, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=proxy.url, api_key=key, max_retries=0, timeout=60)


def answer(client: anthropic.Anthropic, *, streamed: bool, **asked: Any) -> BetaMessage:
    asked = {"model": MODEL, "max_tokens": 200, **asked}
    if not streamed:
        message: BetaMessage = client.beta.messages.create(**asked)
        return message
    with client.beta.messages.stream(**asked) as stream:
        return stream.get_final_message()


def steps(number: int) -> list[Any]:
    made: list[Any] = [{"role": "user", "content": "Find it."}]
    for step in range(number):
        use = {"type": "tool_use", "id": f"t{step}", "name": "read", "input": {"file": f"f{step}"}}
        thought = {"type": "thinking", "thinking": f"Thought {step}.", "signature": ""}
        made.append({"role": "assistant", "content": [thought, use]})
        result = {"type": "tool_result", "tool_use_id": f"t{step}", "content": f"{step} " + "text " * 200}
        made.append({"role": "user", "content": [result]})
    return made


@both
def test_edits_are_made_and_told(streamed: bool) -> None:
    edits: Any = {
        "edits": [
            {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "input_tokens", "value": 500},
                "keep": {"type": "tool_uses", "value": 2},
                "clear_tool_inputs": True,
            },
        ]
    }
    messages = [*steps(6), {"role": "user", "content": "Now?"}]
    with (
        LlamaCppFake([FakeModel(MODEL, window=32_768)], brain=scripted(["Found."])) as fake,
        running_proxy(fake) as proxy,
    ):
        client = sdk(proxy)
        said = answer(
            client,
            streamed=streamed,
            messages=messages,
            tools=[READ],
            context_management=edits,
            betas=[EDITS],
        )
        assert said.content[-1].type == "text"
        assert said.context_management is not None
        (told,) = said.context_management.applied_edits
        assert told.type == "clear_tool_uses_20250919"
        assert told.cleared_tool_uses == 4
        sent = fake.chats()[-1].json["messages"]
        results = [message["content"] for message in sent if message["role"] == "tool"]
        assert ["left out" in result for result in results] == [True] * 4 + [False] * 2
        arguments = [m["tool_calls"][0]["function"]["arguments"] for m in sent if "tool_calls" in m]
        assert [each == "{}" for each in arguments] == [True] * 4 + [False] * 2
        assert fake.invalid_histories == []
        counted = client.beta.messages.count_tokens(
            model=MODEL, messages=messages, tools=[READ], context_management=edits, betas=[EDITS]
        )
        assert counted.input_tokens == said.usage.input_tokens + (said.usage.cache_read_input_tokens or 0)
        assert counted.context_management is not None
        before = counted.context_management.original_input_tokens
        assert 0.8 < told.cleared_input_tokens / (before - counted.input_tokens) < 1.25


@both
def test_who_asks_for_edits_is_told_that_there_were_none(streamed: bool) -> None:
    keeps: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_later_2027"}]}
    with LlamaCppFake(brain=scripted(["Well."] * 2)) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        messages: Any = [{"role": "user", "content": "hello"}]
        said = answer(client, streamed=streamed, messages=messages, context_management=keeps, betas=[EDITS])
        assert said.context_management is not None
        assert said.context_management.applied_edits == []
        assert answer(client, streamed=streamed, messages=messages).context_management is None
        for wrong in ({"edits": 1}, {"edits": [{"type": "clear_tool_uses_20250919", "keep": 3}]}):
            with pytest.raises(anthropic.BadRequestError, match="must be"):
                answer(client, streamed=False, messages=messages, context_management=wrong)

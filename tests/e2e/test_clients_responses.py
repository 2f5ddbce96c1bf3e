"""The openai package speaking Responses, in front of every kind of backend: as the Agents SDK and Codex do."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.fakes import LlamaCppFake, Reply, ToolCall, scripted
from tests.proxying import running_proxy
from tests.sdks import openai_sdk as sdk

MODEL = "fake-model"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


def answer(client: openai.OpenAI, *, streamed: bool, **asked: Any) -> Response:
    """What comes of a request; a stream's events have to be numbered, and agree with the response at its end."""
    asked = {"model": MODEL, **asked}
    if not streamed:
        response: Response = client.responses.create(**asked)
        return response
    text, items = "", []
    with client.responses.stream(**asked) as stream:
        for number, event in enumerate(stream):
            assert event.sequence_number == number
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.output_item.done":
                items.append(event.item.model_dump())
    assert event.type in ("response.completed", "response.incomplete")
    final: Response = event.response
    assert final.output_text == text
    assert [item["id"] for item in items] == [item.id for item in final.output]
    return final


@pytest.mark.parametrize("streamed", [True, False])
def test_codexs_tools_come_back_as_what_they_are(streamed: bool) -> None:
    """A free text (`apply_patch`), a function in a namespace; a shell and the nameless search are left out."""
    tools: Any = [
        {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}},
        {"type": "namespace", "name": "agents", "description": "", "tools": [{**WEATHER, "name": "spawn"}]},
        {"type": "local_shell"},
        {"type": "web_search"},
    ]
    calls = [ToolCall("patch", json.dumps({"input": "*** Begin\n+a"})), ToolCall("agents__spawn", '{"city": "x"}')]
    with LlamaCppFake(brain=scripted([Reply(tool_calls=calls), "Done."])) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        given: list[Any] = [{"role": "developer", "content": "You code."}, {"role": "user", "content": "go"}]
        asked = answer(client, streamed=streamed, input=given, tools=tools)
        patch, spawn = (item.model_dump(exclude_none=True) for item in asked.output)
        assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin\n+a")
        assert (spawn["type"], spawn["namespace"], spawn["name"]) == ("function_call", "agents", "spawn")
        given += [patch, spawn]
        given += [
            {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "patched"},
            {"type": "function_call_output", "call_id": spawn["call_id"], "output": [{"type": "input_text", "text": "ok"}]},
        ]
        assert answer(client, streamed=streamed, input=given, tools=tools).output_text == "Done."
        first, second = fake.chats()
        assert [tool["function"]["name"] for tool in first.json["tools"]] == ["patch", "agents__spawn"]
        _, _, called, *results = second.json["messages"]
        assert [call["function"]["name"] for call in called["tool_calls"]] == ["patch", "agents__spawn"]
        assert [result["content"] for result in results] == ["patched", "ok"]
        assert fake.invalid_histories == []


def test_reasoning_is_shown_as_a_summary_and_may_come_back() -> None:
    replies: list[Any] = [Reply(reasoning="Let me think.", text="Yes."), "Sure."]
    with LlamaCppFake(brain=scripted(replies)) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        said = answer(client, streamed=True, input="really?")
        thought, message = said.output
        assert thought.type == "reasoning"
        assert message.type == "message"
        assert [part.text for part in thought.summary] == ["Let me think."]
        given: Any = [{"role": "user", "content": "really?"}, *(item.model_dump() for item in said.output)]
        answer(client, streamed=False, input=[*given, {"role": "user", "content": "sure?"}])
        assert fake.chats()[-1].json["messages"][1]["content"] == "Yes."


def test_a_prompt_is_counted() -> None:
    with LlamaCppFake(brain=scripted(["Well."])) as fake, running_proxy(fake) as proxy:
        client = sdk(proxy)
        counted = client.responses.input_tokens.count(model=MODEL, input="hello " * 50)
        used = client.responses.create(model=MODEL, input="hello " * 50).usage
        assert used is not None
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", used.input_tokens)

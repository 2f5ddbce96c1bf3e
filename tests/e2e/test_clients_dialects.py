"""The packages that speak Messages, Responses and Ollama's chat, in front of every kind of backend: whole, streamed, tools, past the window."""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import anthropic
import ollama
import openai
import pytest

from tests.e2e.clients.weather import asked_for_weather
from tests.fakes import FAKES, LlamaCppFake, scripted, walk, words
from tests.proxying import Proxy, running_proxy
from tests.sdks import anthropic_sdk, closed, openai_sdk

__all__ = ["closed"]

MODEL = "fake-model"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BRIEF = "Be brief."


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, as a program has it of its package."""

    text: str
    end: str | None
    calls: list[tuple[str, Any]]
    tokens: tuple[int, int]
    back: list[Any]
    """How it and the results of its calls are sent back."""


Ask: TypeAlias = Callable[..., Said]


def by_messages(
    proxy: Proxy, turns: list[Any], *, streamed: bool, bound: int = 4000, tools: bool = False, system: str = BRIEF
) -> Said:
    client: Any = anthropic_sdk(proxy)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": bound, "system": system, "messages": turns}
    if tools:
        asked["tools"] = [{"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}]
    if streamed:
        with client.messages.stream(**asked) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**asked)
    uses = [block for block in message.content if block.type == "tool_use"]
    assert len({use.id for use in uses}) == len(uses)
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"} for use in uses]
    back = [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    text = "".join(block.text for block in message.content if block.type == "text")
    used = message.usage.input_tokens, message.usage.output_tokens
    return Said(text, message.stop_reason, [(use.name, use.input) for use in uses], used, back)


def by_responses(
    proxy: Proxy, turns: list[Any], *, streamed: bool, bound: int = 0, tools: bool = False, system: str = BRIEF
) -> Said:
    client: Any = openai_sdk(proxy)
    asked: dict[str, Any] = {"model": MODEL, "instructions": system, "input": turns}
    asked |= {"max_output_tokens": bound} if bound else {}
    if tools:
        asked["tools"] = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
    if streamed:
        with client.responses.stream(**asked) as stream:
            events = list(stream)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        response = events[-1].response
    else:
        response = client.responses.create(**asked)
    made = [item for item in response.output if item.type == "function_call"]
    back = [item.model_dump(exclude_none=True) for item in response.output]
    back += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in made]
    used = response.usage.input_tokens, response.usage.output_tokens
    calls = [(call.name, json.loads(call.arguments)) for call in made]
    return Said(response.output_text, response.status, calls, used, back)


def by_ollama(
    proxy: Proxy, turns: list[Any], *, streamed: bool, bound: int = 0, tools: bool = False, system: str = BRIEF
) -> Said:
    client: Any = ollama.Client(host=proxy.url, timeout=60)
    asked: Any = {"model": MODEL, "messages": [{"role": "system", "content": system}, *turns], "stream": streamed}
    asked["options"] = {"num_predict": bound} if bound else {}
    if tools:
        function = {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}
        asked["tools"] = [{"type": "function", "function": function}]
    with closing(client):
        lines: list[Any] = list(client.chat(**asked)) if streamed else [client.chat(**asked)]
    assert [line.done for line in lines] == [*(False for _ in lines[1:]), True]
    text = "".join(line.message.content or "" for line in lines)
    made = [call for line in lines for call in line.message.tool_calls or ()]
    last, calls = lines[-1], [(call.function.name, dict(call.function.arguments)) for call in made]
    answer = ollama.Message(role="assistant", content=text, tool_calls=made or None)
    back = [answer, *({"role": "tool", "tool_name": name, "content": "sunny"} for name, _ in calls)]
    return Said(text, last.done_reason, calls, (last.prompt_eval_count or 0, last.eval_count or 0), back)


ENDS: Mapping[Ask, tuple[str, str]] = {
    by_messages: ("end_turn", "max_tokens"),
    by_responses: ("completed", "incomplete"),
    by_ollama: ("stop", "length"),
}
every = pytest.mark.parametrize("by", ENDS)
both = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@every
@both
@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.rows(12)
def test_an_answer(kind: str, by: Ask, streamed: bool) -> None:
    with FAKES[kind](brain=scripted(["Good day to you."])) as fake, running_proxy(fake) as proxy:
        said = by(proxy, [user("hello")], streamed=streamed)
        assert (said.text, said.end) == ("Good day to you.", ENDS[by][0])
        assert min(said.tokens) > 0
        (sent,) = fake.chats()
        assert sent.path.endswith(fake.chat_paths)
        assert sent.json["messages"] == [{"role": "system", "content": BRIEF}, user("hello")]


@every
@both
@pytest.mark.rows(3)
def test_an_answer_of_several_windows_is_one_and_a_bound_holds(by: Ask, streamed: bool) -> None:
    with LlamaCppFake(brain=walk(last=1500), window=1024) as fake, running_proxy(fake) as proxy:
        said = by(proxy, [user("go")], streamed=streamed)
        assert (said.text, said.end) == (words(1, 1500), ENDS[by][0])
        assert len(fake.chats()) > 2
        bounded = by(proxy, [user("go")], streamed=streamed, bound=20)
        assert bounded.end == ENDS[by][1]
        assert bounded.text


@every
@both
@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
def test_a_tool_is_called_and_its_result_goes_back(by: Ask, streamed: bool, native: bool) -> None:
    with asked_for_weather(native=native) as fake, running_proxy(fake) as proxy:
        turns = [user("How is the weather in Graz and Linz?")]
        asked = by(proxy, turns, streamed=streamed, tools=True)
        assert asked.calls == [("weather", {"city": "Graz"}), ("weather", {"city": "Linz"})]
        assert by(proxy, [*turns, *asked.back], streamed=streamed, tools=True).text == "Sunny in both."
        assert fake.invalid_histories == []
        if native:
            *_, call, first, second = fake.chats()[-1].json["messages"]
            assert [each["id"] for each in call["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]


@every
def test_errors_are_those_that_the_packages_know(by: Ask) -> None:
    failures = (anthropic.APIStatusError, openai.APIStatusError, ollama.ResponseError)
    with LlamaCppFake(window=1024) as fake, running_proxy(fake) as proxy:

        def fails(turn: Any, **fields: Any) -> Any:
            with pytest.raises(failures) as caught:
                by(proxy, [turn], streamed=False, **fields)
            return caught.value

        too_long = fails(user("go"), system="word " * 5_000)
        assert too_long.status_code == 400
        if by is by_messages:
            assert too_long.body["error"]["type"] == "invalid_request_error"
            assert too_long.body["error"]["message"].startswith("prompt is too long: ")
        if by is by_responses:
            assert too_long.code == "context_length_exceeded"
        assert "role" in str(fails({"role": "boss", "content": "go"}))
        fake.fail_next(429, {"error": {"message": "slow down", "code": 429}})
        assert fails(user("go")).status_code == 429
        fake.stop()
        assert fails(user("go")).status_code == 502
        assert "cannot be reached" in str(fails(user("go")))

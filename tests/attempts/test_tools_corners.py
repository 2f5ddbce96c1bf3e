"""Corners of emulated tools: what must not become a call, and calls that must not be lost."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.jsontext import dumps
from tests.attempts.test_resuming import history, joined_calls
from tests.attempts.test_tools import ASK, CALL, EMULATED, PARIS, WEATHER, calls_of, loop_turn, says
from tests.fakes import Brain, FakeModel, GenericFake, LlamaCppFake, Question, Reply, ToolCall, asks_summary, summariser
from tests.proxying import read_stream, running_proxy

pytestmark = pytest.mark.slow

BROKEN = CALL.replace('"city": "Paris"', '"town": "Rome"')
TIME = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}},
}
both = pytest.mark.parametrize("stream", [True, False])


def goes_on(text: str) -> Brain:
    """Says a text, and goes on where a prefix ends in it."""

    def brain(question: Question) -> Reply:
        end = question.prefix[-60:]
        return Reply(text=text[text.find(end) + len(end) :] if end else text)

    return brain


@both
def test_a_broken_call_is_asked_for_again_where_the_window_is_not_known(stream: bool) -> None:
    with GenericFake([FakeModel("m", 8192)], says(BROKEN, CALL)) as fake, running_proxy(fake, **EMULATED) as proxy:
        assert calls_of(proxy, stream=stream)[1:] == ([PARIS], "tool_calls")


@both
def test_a_call_behind_a_code_block_that_a_pause_interrupted_is_made(stream: bool) -> None:
    lines = "\n".join(f"line {n} = {n}" for n in range(170))
    text = f"Here:\n```python\n{lines}\n```\nNow I ask.\n{CALL}"
    with (
        LlamaCppFake([FakeModel("m", 2048)], summariser(goes_on(text))) as fake,
        running_proxy(fake, **EMULATED) as proxy,
    ):
        made = calls_of(proxy, stream=stream, messages=history(140, 8))
        assert len(fake.chats()) >= 3, "there was no pause"
        assert made[1:] == ([PARIS], "tool_calls")


def test_a_call_in_a_thought_that_a_pause_interrupted_is_none() -> None:
    lines = "\n".join(f"line {n} = {n}" for n in range(170))
    text = f"<think>\n{lines}\nI could write:\n{CALL}\nbut no.\n</think>\nIt is sunny."
    with (
        LlamaCppFake([FakeModel("m", 2048)], summariser(goes_on(text))) as fake,
        running_proxy(fake, **EMULATED) as proxy,
    ):
        made = calls_of(proxy, stream=True, messages=history(140, 8))
        assert len(fake.chats()) >= 3, "there was no pause"
        assert made[1:] == ([], "stop")


@both
def test_a_whole_call_survives_a_model_that_talks_on_until_the_window_is_full(stream: bool) -> None:
    """Small models write a call and then make up its result, and a conversation about that."""
    text = f"{CALL}\nThe result is: {' '.join(f'w{n}' for n in range(900))}"
    with (
        LlamaCppFake([FakeModel("m", 2048)], summariser(goes_on(text))) as fake,
        running_proxy(fake, **EMULATED) as proxy,
    ):
        assert calls_of(proxy, stream=stream, messages=history(20, 8))[1] == [PARIS]


@both
@pytest.mark.parametrize(
    "written",
    [
        '<tool_call>\n{"name": "get_time", "zone": "UTC"}\n</tool_call>',
        '<tool_call>\n{"name": "get_time", "input": {"zone": "UTC"}}\n</tool_call>',
        '<tool_call>\n{"name": "get_time", "params": {"zone": "UTC"}}\n</tool_call>',
    ],
)
def test_arguments_in_another_place_are_not_dropped_in_silence(written: str, stream: bool) -> None:
    """Understood, asked for again or delivered as text; but never a call without what was written."""
    with LlamaCppFake([FakeModel("m", 8192)], says(written)) as fake, running_proxy(fake, **EMULATED) as proxy:
        made = calls_of(proxy, stream=stream, tools=[TIME])[1]
        assert {"name": "get_time", "arguments": "{}"} not in made


@both
@pytest.mark.parametrize(
    "record",
    [
        '{"name": "get_time", "color": "red", "size": 3}',
        '[\n  {"id": 1, "name": "home"},\n  {"id": 2, "name": "get_time"}\n]',
        '{"plan":\n  {"name": "get_time", "arguments": {}}\n}',
    ],
)
def test_json_that_only_names_a_tool_stays_text(record: str, stream: bool) -> None:
    with LlamaCppFake([FakeModel("m", 8192)], says(record)) as fake, running_proxy(fake, **EMULATED) as proxy:
        assert calls_of(proxy, stream=stream, tools=[TIME]) == (record, [], "stop")


@both
def test_a_number_at_the_very_end_may_have_been_cut(stream: bool) -> None:
    """A stop string, or a backend that stops, leaves 12 of 1200: nobody may pay that."""
    pay = {
        "type": "function",
        "function": {"name": "pay", "parameters": {"type": "object", "properties": {"amount": {"type": "integer"}}}},
    }
    written = '<tool_call>\n{"name": "pay", "arguments": {"amount": 1200}}\n</tool_call>'
    with LlamaCppFake([FakeModel("m", 8192)], says(written)) as fake, running_proxy(fake, **EMULATED) as proxy:
        made = calls_of(proxy, stream=stream, tools=[pay], stop=["00"])[1]
        assert made == []


def breaks_once(error: str, *, native: bool) -> Brain:
    """Says "Hi." and writes a call; the first time the backend fails in the middle of it."""
    arguments = dumps({"city": "word " * 100}).decode()
    written = f'Hi.\n<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
    asked: list[Question] = []

    def brain(question: Question) -> Reply:
        asked.append(question)
        failure: dict[str, Any] = {"error": error, "after": 60} if len(asked) == 1 else {}
        if native:
            text = "" if question.prefix else "Hi."
            return Reply(text=text, tool_calls=[ToolCall("get_weather", arguments)], **failure)
        return Reply(text=written.removeprefix(question.prefix), **failure)

    return brain


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
def test_memory_that_fills_up_in_mid_call_is_answered_as_for_native_calls(native: bool) -> None:
    brain = breaks_once("Context size has been exceeded.", native=native)
    with (
        LlamaCppFake([FakeModel("m", 2048)], brain) as fake,
        running_proxy(fake, **({} if native else EMULATED)) as proxy,
    ):
        answer = proxy.chat({"model": "m", "messages": ASK, "tools": [WEATHER], "stream": True})
        assert len(joined_calls(answer.content)) == 1
        assert read_stream(answer.content).text.strip() == "Hi."
        assert "could not be made" not in str(fake.chats()[-1].json["messages"][-1])


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
def test_an_error_of_the_backend_in_mid_call_is_no_fault_of_the_models(native: bool) -> None:
    with (
        LlamaCppFake([FakeModel("m", 2048)], breaks_once("out of quota", native=native)) as fake,
        running_proxy(fake, **({} if native else EMULATED)) as proxy,
    ):
        answer = proxy.chat({"model": "m", "messages": ASK, "tools": [WEATHER], "stream": True})
        assert len(read_stream(answer.content).errors) == 1
        assert len(fake.chats()) == 1


@both
def test_who_is_asked_to_mend_a_call_sees_the_calls_that_it_made(stream: bool) -> None:
    """What was delivered already must not be written again: it would be made twice."""

    def brain(question: Question) -> Reply:
        if "could not be made" not in question.last_user:
            return Reply(text=f"{CALL}\n{BROKEN}")
        mended = CALL.replace("Paris", "Rome")
        shown = "".join(str(m["content"]) for m in question.messages if m["role"] == "assistant")
        return Reply(text=mended if "Paris" in shown else f"{CALL}\n{mended}")

    with LlamaCppFake([FakeModel("m", 8192)], brain) as fake, running_proxy(fake, **EMULATED) as proxy:
        made = calls_of(proxy, stream=stream)[1]
        assert [call["arguments"] for call in made] == ['{"city": "Paris"}', '{"city": "Rome"}']


def test_a_call_without_its_result_gets_one_in_emulation_too() -> None:
    called = loop_turn([PARIS], "lost on the way")[:1]
    messages = [*ASK, *called, {"role": "user", "content": "Go on."}]
    with LlamaCppFake([FakeModel("m", 8192)], says("Hm.")) as fake, running_proxy(fake, **EMULATED) as proxy:
        calls_of(proxy, stream=False, messages=messages)
        assert "result of this tool call was lost" in str(fake.chats()[-1].json["messages"])
        assert 'kind="orphaned_call"' in proxy.client.get("/metrics").text


@pytest.mark.parametrize(
    "choice",
    ["required", "none", {"type": "function", "function": {"name": "get_weather"}}],
    ids=["required", "none", "named"],
)
def test_another_tool_choice_leaves_the_beginning_of_the_prompt_alone(choice: Any) -> None:
    """Agents force the first call, or forbid the last one: the backend's prompt cache has to survive that."""
    with LlamaCppFake([FakeModel("m", 8192)], says(CALL)) as fake, running_proxy(fake, **EMULATED) as proxy:
        for chosen in ("auto", choice):
            calls_of(proxy, stream=False, tools=[WEATHER, TIME], tool_choice=chosen)
        first, second = (request.json["messages"] for request in fake.chats())
        assert first[0] == second[0]


def test_a_tool_call_is_no_summary_in_emulation_either() -> None:
    asked = CALL.replace("Paris", "Paris, of which the user spoke at length, and of Rome. " * 5)

    def brain(question: Question) -> Reply:
        return Reply(text=asked if asks_summary(question) else "Fine.")

    with LlamaCppFake([FakeModel("m", 4096)], brain) as fake, running_proxy(fake, **EMULATED) as proxy:
        proxy.chat({"model": "m", "messages": history(240, 14), "tools": [WEATHER]})
        shown = [m for m in fake.chats()[-1].json["messages"] if "Summary" in str(m["content"])]
        assert shown
        assert "<tool_call>" not in str(shown)


@pytest.mark.parametrize("framed", [True, False], ids=["frame", "json"])
def test_a_refusal_with_status_200_is_retried_on_a_stream_too(framed: bool) -> None:
    """Gateways tell errors inside the stream, or as JSON with status 200; a whole answer is retried then."""
    error = b'{"error":{"message":"m does not support tools","code":400}}'
    body = b"data: " + error + b"\n\ndata: [DONE]\n\n" if framed else error
    kind = "text/event-stream" if framed else "application/json"
    with GenericFake([FakeModel("m", 8192)], says(CALL)) as fake, running_proxy(fake) as proxy:
        fake.fail_next(200, body, [("content-type", kind)])
        answer = proxy.chat({"model": "m", "messages": ASK, "tools": [WEATHER], "stream": True})
        assert joined_calls(answer.content) == [PARIS]

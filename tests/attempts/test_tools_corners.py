"""Corners of emulated tools: what must not become a call, and calls that must not be lost."""

from typing import Any

import pytest

from proxy.core.jsontext import dumps
from tests.attempts.test_resuming import history, joined_calls
from tests.attempts.test_tools import (
    ASK,
    BROKEN,
    CALL,
    EMULATED,
    NAMED,
    PARIS,
    TIME,
    WEATHER,
    calls_of,
    emulating,
    loop_turn,
    says,
)
from tests.fakes import Brain, FakeModel, GenericFake, LlamaCppFake, Question, Reply, ToolCall, asks_summary, summariser
from tests.proxying import read_stream, running_proxy

pytestmark = pytest.mark.slow


def goes_on(text: str) -> Brain:
    """Says a text, and goes on where a prefix ends in it."""

    def brain(question: Question) -> Reply:
        end = question.prefix[-60:]
        return Reply(text=text[text.find(end) + len(end) :] if end else text)

    return brain


LINES = "\n".join(f"line {n} = {n}" for n in range(170))


@pytest.mark.parametrize(
    ("text", "made", "finish"),
    [
        (f"Here:\n```python\n{LINES}\n```\nNow I ask.\n{CALL}", [PARIS], "tool_calls"),
        (f"<think>\n{LINES}\nI could write:\n{CALL}\nbut no.\n</think>\nIt is sunny.", [], "stop"),
    ],
    ids=["behind a code block", "in a thought"],
)
def test_a_pause_changes_nothing_of_what_is_a_call(text: str, made: list[Any], finish: str, stream: bool) -> None:
    with emulating(summariser(goes_on(text)), 2048) as (fake, proxy):
        assert calls_of(proxy, stream=stream, messages=history(140, 8))[1:] == (made, finish)
        assert len(fake.chats()) >= 3, "there was no pause"


def test_a_whole_call_survives_a_model_that_talks_on_until_the_window_is_full(stream: bool) -> None:
    """Small models write a call and then make up its result, and a conversation about that."""
    text = f"{CALL}\nThe result is: {' '.join(f'w{n}' for n in range(900))}"
    with emulating(summariser(goes_on(text)), 2048) as (_, proxy):
        assert calls_of(proxy, stream=stream, messages=history(20, 8))[1] == [PARIS]


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
@pytest.mark.parametrize("error", ["Context size has been exceeded.", "out of quota"])
def test_an_error_of_the_backend_in_mid_call_is_no_fault_of_the_models(error: str, native: bool) -> None:
    """Memory that fills up is made room in, as while text is written."""
    brain, settings = breaks_once(error, native=native), {} if native else EMULATED
    with LlamaCppFake([FakeModel("m", 2048)], brain) as fake, running_proxy(fake, **settings) as proxy:
        answer = proxy.chat({"model": "m", "messages": ASK, "tools": [WEATHER], "stream": True}).content
        if error == "out of quota":
            assert (len(read_stream(answer).errors), len(fake.chats())) == (1, 1)
            return
        assert len(joined_calls(answer)) == 1
        assert read_stream(answer).text.strip() == "Hi."
        assert "could not be made" not in str(fake.chats()[-1].json["messages"][-1])


def test_who_is_asked_to_mend_a_call_sees_the_calls_that_it_made(stream: bool) -> None:
    """What was delivered already must not be written again: it would be made twice."""

    def brain(question: Question) -> Reply:
        if "could not be made" not in question.last_user:
            return Reply(text=f"{CALL}\n{BROKEN.replace('Paris', 'Rome')}")
        mended = CALL.replace("Paris", "Rome")
        shown = "".join(str(m["content"]) for m in question.messages if m["role"] == "assistant")
        return Reply(text=mended if "Paris" in shown else f"{CALL}\n{mended}")

    with emulating(brain) as (_, proxy):
        made = calls_of(proxy, stream=stream)[1]
        assert [call["arguments"] for call in made] == ['{"city": "Paris"}', '{"city": "Rome"}']


def test_a_call_without_its_result_gets_one_in_emulation_too() -> None:
    called = loop_turn([PARIS], "lost on the way")[:1]
    messages = [*ASK, *called, {"role": "user", "content": "Go on."}]
    with emulating(says("Hm.")) as (fake, proxy):
        calls_of(proxy, stream=False, messages=messages)
        assert "result of this tool call was lost" in str(fake.chats()[-1].json["messages"])
        assert 'kind="orphaned_call"' in proxy.client.get("/metrics").text


@pytest.mark.parametrize("choice", ["required", "none", NAMED], ids=["required", "none", "named"])
def test_another_tool_choice_leaves_the_beginning_of_the_prompt_alone(choice: Any) -> None:
    """Agents force the first call, or forbid the last one: the backend's prompt cache has to survive that."""
    with emulating(says(CALL)) as (fake, proxy):
        for chosen in ("auto", choice):
            calls_of(proxy, stream=False, tools=[WEATHER, TIME], tool_choice=chosen)
        first, second = (request.json["messages"] for request in fake.chats())
        assert first[0] == second[0]


def test_a_tool_call_is_no_summary_in_emulation_either() -> None:
    asked = CALL.replace("Paris", "Paris, of which the user spoke at length, and of Rome. " * 5)

    def brain(question: Question) -> Reply:
        return Reply(text=asked if asks_summary(question) else "Fine.")

    with emulating(brain, 4096) as (fake, proxy):
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

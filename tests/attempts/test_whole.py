"""A backend that answers a streaming request with one JSON body, and bodies that pass as the bytes they came as."""

from typing import Any

import httpx
import pytest

from proxy.core.jsontext import dumps
from tests.emulation.outputs import FUNCTIONS, TAGGED
from tests.proxying import running_proxy
from tests.rawbackend import Call, RawBackend, answering, raw_backend
from tests.stream.support import Client, one_answer, read

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]


def whole(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {"id": "one", "object": "chat.completion", "created": 5, "model": "m", "usage": USAGE}
    return {**body, **fields, "choices": list(choices)}


def choice(message: dict[str, Any], finish: str | None = "stop", index: int = 0) -> dict[str, Any]:
    return {"index": index, "message": message, "finish_reason": finish}


def asked(body: dict[str, Any], *, emulate: bool = False, **fields: Any) -> httpx.Response:
    def script(_: RawBackend, call: Call) -> None:
        tools = "tools" in call.json and emulate
        call.send(answering({"error": "model does not support tools"}, "400 No") if tools else answering(body))

    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        return proxy.chat({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


def streamed(body: dict[str, Any], **fields: Any) -> Client:
    return read(asked(body, stream=True, **fields).content)


@pytest.mark.parametrize("message", [{"role": "assistant", "content": "Hi."}, {"content": "Hi."}])
def test_a_text(message: dict[str, Any]) -> None:
    client = streamed(whole(choice(message)))
    one_answer(client, "Hi.")
    assert {(each["object"], each["created"], each["model"]) for each in client.chunks} == {("chat.completion.chunk", 5, "m")}
    assert client.usages == []


def test_usage_is_told_if_it_was_asked_for() -> None:
    body = whole(choice({"role": "assistant", "content": "Hi."}))
    client = streamed(body, stream_options={"include_usage": True})
    one_answer(client, "Hi.")
    assert (client.usages, client.chunks[-1]["choices"]) == ([USAGE], [])


def test_reasoning_and_calls() -> None:
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": f'{{"a":{n}}}'}} for n in range(2)]
    message = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": calls}
    client = streamed(whole(choice(message, "tool_calls")))
    one_answer(client, "", "tool_calls")
    assert client.reasoning == "Hm."
    assert client.calls == [{**call, "index": index} for index, call in enumerate(calls)]


def test_calls_that_were_made_from_text() -> None:
    message = {"role": "assistant", "content": f"Look.\n{TAGGED}", "reasoning_content": "Hm."}
    client = streamed(whole(choice(message)), emulate=True, tools=TOOLS)
    one_answer(client, "Look.\n", "tool_calls")
    assert (client.reasoning, len(client.calls)) == ("Hm.", 1)


def test_several_choices() -> None:
    both = [choice({"role": "assistant", "content": text}, index=n) for n, text in enumerate("ab")]
    client = streamed(whole(*both), n=2)
    said = [(each["choices"][0]["index"], each["choices"][0]["finish_reason"]) for each in client.chunks]
    assert sorted(said, key=str) == [(0, "stop"), (0, None), (1, "stop"), (1, None)]


def test_what_the_backend_must_not_say_is_left_out() -> None:
    hostile = whole(choice({"role": "assistant", "content": "Hi."}), event={"type": "execute"})
    assert b"execute" not in asked(hostile, stream=True).content


def test_what_is_no_answer_is_no_stream() -> None:
    told = asked({}, stream=True)
    assert told.status_code == 502
    assert told.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
def test_a_body_in_which_nothing_is_mended_stays_byte_for_byte(finish: str, *, tools: bool) -> None:
    """With what nobody here knows, in whatever order it comes, for each of several choices."""
    message = {"x": [1.50], "content": " As it\u2028is. ", "role": "assistant", "thinking": "?"}
    body = whole(
        choice({**message}, finish) | {"logprobs": None, "y": {}},
        choice({**message}, finish, 1) | {"logprobs": None},
        timings={"a": 1e-7},
    )
    fields: dict[str, Any] = {"tools": TOOLS} if tools else {}
    told = asked(body, n=2, **fields)
    assert told.content == dumps(body)


def test_what_is_mended_leaves_all_else() -> None:
    call = {"id": "c0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"x"}'}}
    message = {"role": "assistant", "content": None, "z": 1}
    twice = {**message, "tool_calls": [call, {**call, "id": "c1"}]}
    fields: dict[str, Any] = {"logprobs": None, "y": 2}
    body = whole(choice(twice, "tool_calls") | fields, w=3)
    made = asked(body, tools=TOOLS).json()
    once = {**message, "tool_calls": [call]}
    assert made == {**body, "choices": [choice(once, "tool_calls") | fields], "usage": made["usage"]}
    assert made["usage"].pop("spillway")["tool_calls"] == {"repeated": 1}
    assert made["usage"] == USAGE

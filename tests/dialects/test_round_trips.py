"""What is written in a dialect and sent back keeps all that both sides can say, whole or streamed, and so do options."""

import json
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.dialect import Dialect
from proxy.core.request import Fetch, Managed, Message, Request, Thinking
from tests.dialects.streams import (
    MESSAGES,
    OLLAMA,
    RESPONSES,
    WORDS,
    Heard,
    Json,
    answers,
    arguments_of,
    piece_of,
    streamed,
    translated,
    whole,
)

NAMES = st.sampled_from(["look", "agents__spawn", "patch"])
ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | WORDS,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
ANSWERS = answers(NAMES, ARGUMENTS)
PICTURE = "iVBORw0KGgo="
GO: list[Any] = [{"role": "user", "content": "go"}]
TOOLS: list[Any] = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
    {"type": "custom", "name": "patch"},
]


def asked(dialect: Dialect, messages: Any = GO, **fields: Any) -> Request:
    own: Json = {"input": messages, "tools": TOOLS} if dialect is RESPONSES else {"messages": messages}
    return dialect.read(json.dumps({"model": "m", **own, **fields}).encode())


def answered(dialect: Dialect, said: Json, *, live: bool) -> Heard:
    form = {"tools": TOOLS} if dialect is RESPONSES else {}
    return streamed(dialect, piece_of(said), **form) if live else whole(dialect, piece_of(said), **form)


def check(message: Message, said: Json, ids: str = "call_") -> None:
    """Whether this is the neutral message of that answer."""
    assert message["role"] == "assistant"
    assert ((message["content"] or ""), message.get("reasoning_content", "")) == (said["text"], said["thought"])
    calls = message.get("tool_calls", [])
    assert [(call["id"], call["function"]["name"]) for call in calls] == [
        (f"{ids}{index}", name) for index, (name, _) in enumerate(said["calls"])
    ]
    for call, (name, arguments) in zip(calls, said["calls"], strict=True):
        assert json.loads(call["function"]["arguments"]) == arguments_of(name, arguments)


@translated
@given(ANSWERS)
def test_an_answer_that_is_sent_back_is_what_the_model_said(dialect: Dialect, said: Json) -> None:
    one, other = (answered(dialect, said, live=live) for live in (False, True))
    assert (one.text, one.thought, one.calls, one.resent) == (other.text, other.thought, other.calls, other.resent)
    question, answer = asked(dialect, [*GO, *one.resent]).messages
    assert question == GO[0]
    check(answer, said)


PICTURED = {
    MESSAGES.path: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
    RESPONSES.path: {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
}


@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES], ids=lambda dialect: dialect.path)
@given(words=st.lists(st.none() | WORDS, min_size=1, max_size=4), system=WORDS)
def test_what_a_user_says_and_shows_arrives_in_its_order(dialect: Dialect, words: list[str | None], system: str) -> None:
    kind = "text" if dialect is MESSAGES else "input_text"
    blocks = [PICTURED[dialect.path] if each is None else {"type": kind, "text": each} for each in words]
    lead = {"system": system} if dialect is MESSAGES else {"instructions": system}
    first, said = asked(dialect, [{"role": "user", "content": blocks}], **lead).messages
    assert first == {"role": "system", "content": system}
    if isinstance(said["content"], str):
        assert said["content"] == "\n".join(filter(None, words))
        return
    shown = [part["image_url"]["url"] if "image_url" in part else part["text"] for part in said["content"]]
    assert shown == [each or f"data:image/png;base64,{PICTURE}" for each in words]


SAMPLING = {"temperature": 0.5, "top_p": 0.25}
NEUTRAL: list[tuple[Dialect, Json, Json]] = [
    (MESSAGES, {**SAMPLING, "top_k": 4}, {**SAMPLING, "top_k": 4}),
    (MESSAGES, {"stop_sequences": ["x"], "stream": True}, {"stop": ["x"], "stream": True}),
    (MESSAGES, {"max_tokens": 7}, {"max_tokens": 7}),
    (RESPONSES, {**SAMPLING, "parallel_tool_calls": False}, {**SAMPLING, "parallel_tool_calls": False}),
    (RESPONSES, {"max_output_tokens": 99, "tool_choice": "none"}, {"max_tokens": 99, "tool_choice": "none"}),
    (OLLAMA, {"options": {**SAMPLING, "min_p": 0.1, "seed": 3}}, {**SAMPLING, "min_p": 0.1, "seed": 3}),
    (OLLAMA, {"options": {"num_predict": 9, "stop": ["x"]}}, {"max_tokens": 9, "stop": ["x"]}),
    (OLLAMA, {"options": {"repeat_penalty": 1.5}, "stream": True}, {"repeat_penalty": 1.5, "stream": True}),
]


@pytest.mark.parametrize(("dialect", "options", "neutral"), NEUTRAL)
def test_options_have_neutral_names(dialect: Dialect, options: Json, neutral: Json) -> None:
    body = asked(dialect, **options).body
    assert {name: body.get(name) for name in neutral} == neutral


def test_options_of_responses_are_told_again() -> None:
    options: Json = {
        **SAMPLING, "max_output_tokens": 16, "instructions": "x", "metadata": {"a": "b"}, "truncation": "auto",
        "prompt_cache_key": "k", "safety_identifier": "s", "tool_choice": "required", "store": False,
        "reasoning": {"effort": "high", "summary": "auto"}, "parallel_tool_calls": False,
    }  # fmt: skip
    assert asked(RESPONSES, **options).thinking == Thinking(effort="high", openai="high")
    response = whole(RESPONSES, piece_of({"text": "x", "thought": "", "calls": []}), **options).whole
    assert {name: response[name] for name in options} == options


@given(st.lists(st.tuples(NAMES, WORDS, ARGUMENTS), min_size=1, max_size=3, unique_by=lambda tool: tool[0]))
def test_tools_and_results_of_messages_are_those_of_the_model(tools: list[Any]) -> None:
    offered = [{"name": name, "description": told, "input_schema": schema} for name, told, schema in tools]
    made = [{"type": "tool_use", "id": f"c{n}", "name": tool[0], "input": tool[2]} for n, tool in enumerate(tools)]
    results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": tool[1]} for n, tool in enumerate(tools)]
    turns = [*GO, {"role": "assistant", "content": made}, {"role": "user", "content": results}]
    request = asked(MESSAGES, turns, tools=offered)
    functions = [tool["function"] for tool in request.body["tools"]]
    assert [(each["name"], each["description"], each["parameters"]) for each in functions] == tools
    _, called, *told = request.messages
    assert [json.loads(call["function"]["arguments"]) for call in called["tool_calls"]] == [t[2] for t in tools]
    assert [(each["tool_call_id"], each["content"]) for each in told] == [(f"c{n}", tool[1]) for n, tool in enumerate(tools)]


@pytest.mark.parametrize("named", [False, True], ids=["without ids", "with ids"])
@given(said=ANSWERS, results=st.lists(WORDS, min_size=3, max_size=3))
def test_results_of_ollamas_find_their_calls(named: bool, said: Json, results: list[str]) -> None:
    (made,) = answered(OLLAMA, said, live=False).resent
    calls = [call if named else {"function": call["function"]} for call in made["tool_calls"]]
    told = [
        {"role": "tool", "tool_name": call["function"]["name"], "content": result}
        for call, result in zip(calls, results, strict=False)
    ]
    _, answer, *heard = asked(OLLAMA, [*GO, {**made, "tool_calls": calls}, *told]).messages
    assert [each["content"] for each in heard] == results[: len(calls)]
    names = {call["id"]: call["function"]["name"] for call in answer.get("tool_calls", ())}
    assert [names[each["tool_call_id"]] for each in heard] == [each["tool_name"] for each in told]
    assert len({each["tool_call_id"] for each in heard}) == len(calls)


def drive(flow: Generator[Any, Any, Any], held: Json) -> Request:
    reply: Any = None
    try:
        while True:
            step = flow.send(reply)
            assert isinstance(step, Fetch)
            reply = held.get(step.name)
    except StopIteration as stop:
        request: Request = stop.value
        return request


@given(st.lists(st.tuples(WORDS, ANSWERS), min_size=1, max_size=4))
def test_going_on_by_id_is_the_same_as_sending_everything(turns: Sequence[tuple[str, Json]]) -> None:
    held: Json = {}
    sent: list[Any] = []
    previous, results = None, list[Any]()
    for number, (words, said) in enumerate(turns, 1):
        new = [*results, {"role": "user", "content": words}]
        sent += new
        stateful = asked(RESPONSES, new, **({"previous_response_id": previous} if previous else {}))
        if stateful.reading is not None:
            stateful = drive(stateful.reading(), held)
        assert stateful.messages == asked(RESPONSES, sent).messages
        writer = RESPONSES.writer(stateful, f"{number:08x}", Managed())
        writer.relay(piece_of(said), None, role_sent=False)
        writer.end()
        response = writer.final
        assert response is not None
        assert stateful.keeping is not None
        name, document = stateful.keeping(response)
        held[name] = json.loads(json.dumps(document))
        sent += response["output"]
        previous = response["id"]
        results = [
            {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
            for item in response["output"]
            if item["type"].endswith("_call")
        ]
    # By references to each of its items, too.
    named = [{"type": "item_reference", "id": item["id"]} for item in held[previous or ""]["output"]]
    referring = asked(RESPONSES, [*GO, *named])
    assert referring.reading is not None
    _, answer = drive(referring.reading(), held).messages
    check(answer, turns[-1][1])

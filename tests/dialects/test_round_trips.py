"""What is read from a dialect and written in it again, or written and sent back, keeps all that both sides can say: Messages and Ollama's own.

Those of Responses, which has a memory, stand beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.dialect import Completion, Dialect
from proxy.core.request import Managed, Message, Request
from proxy.dialects import DIALECTS
from tests.dialects.messages.test_writing import message_of
from tests.dialects.streams import WORDS, Said, answers, events, piece_of

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
MESSAGES, OLLAMA = DIALECTS["/v1/messages"], DIALECTS["/api/chat"]
PICTURE = "iVBORw0KGgo="


def message(said: Said) -> Message:
    """The neutral message that this answer is, as far as it is told the same in both dialects."""
    made: Message = {"role": "assistant", "content": said["text"]}
    if said["thought"]:
        made["reasoning_content"] = said["thought"]
    if said["calls"]:
        made["tool_calls"] = [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(said["calls"])
        ]
    return made


def parsed(told: Message) -> Message:
    """With the arguments of calls as what they say, and an empty content as none."""
    calls = [
        {**each, "function": {**each["function"], "arguments": json.loads(each["function"]["arguments"])}}
        for each in told.get("tool_calls", ())
    ]
    return {**told, "content": told["content"] or "", **({"tool_calls": calls} if calls else {})}


def whole(dialect: Dialect, request: Request, said: Said) -> dict[str, Any]:
    came = Completion(choices=(piece_of(said),))
    told: dict[str, Any] = json.loads(dialect.writer(request, "0a1b", Managed()).body(came, came.choices, {}))
    return told


def streamed(dialect: Dialect, request: Request, said: Said) -> bytes:
    writer = dialect.writer(request, "0a1b", Managed())
    return writer.relay(piece_of(said), None, role_sent=False) + writer.end()


# -- Messages


def anthropic(messages: list[Any], **fields: Any) -> Request:
    body = {"model": "m", "max_tokens": 9, "messages": messages, **fields}
    return MESSAGES.read(json.dumps(body).encode())


HELLO: list[Any] = [{"role": "user", "content": "go"}]


@given(ANSWERS, st.booleans())
def test_an_answer_of_messages_that_is_sent_back_is_what_the_model_said(said: Said, live: bool) -> None:
    request = anthropic(HELLO)
    one = whole(MESSAGES, request, said)
    other = message_of(events(streamed(MESSAGES, request, said)))
    assert (one["content"], one["stop_reason"]) == (other["content"], other["stop_reason"])
    told = (other if live else one)["content"]
    back = anthropic([*HELLO, {"role": "assistant", "content": told}])
    assert back.messages[0] == HELLO[0]
    assert parsed(back.messages[1]) == message(said)


BLOCKS = st.one_of(
    WORDS.map(lambda text: {"type": "text", "text": text}),
    st.just({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}),
    WORDS.map(lambda name: {"type": "image", "source": {"type": "url", "url": f"https://x/{name}"}}),
)


@given(st.lists(BLOCKS, min_size=1, max_size=4), WORDS)
def test_what_a_user_says_and_shows_reaches_the_model_in_its_order(blocks: list[Any], system: str) -> None:
    request = anthropic([{"role": "user", "content": blocks}], system=system)
    lead, said = request.messages
    assert lead == {"role": "system", "content": system}
    if isinstance(said["content"], str):
        assert said["content"] == "\n".join(block["text"] for block in blocks)
        return
    urls = [part["image_url"]["url"] if "image_url" in part else part["text"] for part in said["content"]]
    assert urls == [_shown(block) for block in blocks]


def _shown(block: dict[str, Any]) -> str:
    source = block.get("source", {})
    return str(block.get("text") or source.get("url") or f"data:image/png;base64,{source.get('data')}")


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(1, 99),
        "stop_sequences": st.lists(WORDS, min_size=1, max_size=3),
        "stream": st.booleans(),
        "max_tokens": st.integers(1, 9999),
    },
)


@given(OPTIONS)
def test_options_of_messages_have_neutral_names(options: dict[str, Any]) -> None:
    request = anthropic(HELLO, **options)
    for name in ("temperature", "top_p", "top_k"):
        assert request.body.get(name) == options.get(name)
    assert request.body.get("stop") == options.get("stop_sequences")
    assert (request.stream, request.max_tokens) == (options.get("stream", False), options.get("max_tokens", 9))


@given(st.lists(st.tuples(NAMES, WORDS, ARGUMENTS), min_size=1, max_size=3, unique_by=lambda tool: tool[0]))
def test_tools_and_results_of_messages_are_those_of_the_model(tools: list[Any]) -> None:
    offered = [{"name": name, "description": told, "input_schema": schema} for name, told, schema in tools]
    made = [{"type": "tool_use", "id": f"c{n}", "name": tool[0], "input": tool[2]} for n, tool in enumerate(tools)]
    results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": tool[1]} for n, tool in enumerate(tools)]
    turns = [*HELLO, {"role": "assistant", "content": made}, {"role": "user", "content": results}]
    request = anthropic(turns, tools=offered)
    functions = [tool["function"] for tool in request.body["tools"]]
    assert [(each["name"], each["description"], each["parameters"]) for each in functions] == tools
    _, called, *told = request.messages
    assert [json.loads(call["function"]["arguments"]) for call in called["tool_calls"]] == [t[2] for t in tools]
    assert [(each["tool_call_id"], each["content"]) for each in told] == [
        (f"c{n}", tool[1]) for n, tool in enumerate(tools)
    ]


# -- Ollama's own


def ollama(messages: list[Any], **fields: Any) -> Request:
    return OLLAMA.read(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def joined(stream: bytes) -> dict[str, Any]:
    """The message that a client puts together of the lines."""
    told: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in stream.splitlines():
        for name, value in json.loads(line)["message"].items():
            told[name] = value if name == "role" else told.get(name, type(value)()) + value
    return told


@given(ANSWERS, st.booleans())
def test_an_answer_of_ollamas_that_is_sent_back_is_what_the_model_said(said: Said, live: bool) -> None:
    request = ollama(HELLO)
    one = whole(OLLAMA, request, said)["message"]
    other = joined(streamed(OLLAMA, request, said))
    assert one == other
    back = ollama([*HELLO, other if live else one])
    assert back.messages[0] == HELLO[0]
    assert parsed(back.messages[1]) == message(said)


@pytest.mark.parametrize(
    "bare", [lambda call: {"function": call["function"]}, lambda call: call], ids=["without ids", "with ids"]
)
@given(said=ANSWERS, results=st.lists(WORDS, min_size=3, max_size=3))
def test_results_of_ollamas_find_their_calls(
    bare: Callable[[dict[str, Any]], dict[str, Any]], said: Said, results: list[str]
) -> None:
    made = whole(OLLAMA, ollama(HELLO), said)["message"]
    calls = [bare(call) for call in made.get("tool_calls", ())]
    told = [
        {"role": "tool", "tool_name": call["function"]["name"], "content": result}
        for call, result in zip(calls, results, strict=False)
    ]
    _, answer, *heard = ollama([*HELLO, {**made, **({"tool_calls": calls} if calls else {})}, *told]).messages
    assert [each["content"] for each in heard] == results[: len(calls)]
    named = {call["id"]: call["function"]["name"] for call in answer.get("tool_calls", ())}
    assert [named[each["tool_call_id"]] for each in heard] == [each["tool_name"] for each in told]
    assert len({each["tool_call_id"] for each in heard}) == len(calls)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 1),
            "top_p": st.floats(0, 1),
            "top_k": st.integers(1, 99),
            "min_p": st.floats(0, 1),
            "seed": st.integers(0, 99),
            "repeat_penalty": st.floats(0, 2),
            "presence_penalty": st.floats(0, 2),
            "frequency_penalty": st.floats(0, 2),
            "stop": st.lists(WORDS, min_size=1, max_size=3),
            "num_predict": st.integers(1, 9999),
        },
    ),
    WORDS,
)
def test_options_of_ollama_have_neutral_names(options: dict[str, Any], prompt: str) -> None:
    chat = ollama([{"role": "user", "content": prompt, "images": [PICTURE]}], options=options)
    for name, value in options.items():
        assert chat.body["max_tokens" if name == "num_predict" else name] == value
    text, picture = chat.messages[0]["content"]
    assert (text["text"], picture["image_url"]["url"]) == (prompt, f"data:image/png;base64,{PICTURE}")

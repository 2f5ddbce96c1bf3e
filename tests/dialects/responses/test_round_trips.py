"""What a response says comes back as it was said, whole or streamed, sent again by the client or gone on from by its id."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.dialect import Completion
from proxy.core.piece import Piece
from proxy.core.request import Fetch, Managed, Message, Request, Thinking
from proxy.dialects.responses.request import read
from proxy.dialects.responses.writing import ResponsesWriter
from tests.dialects.streams import WORDS, Said, answers, piece_of

NAMES = st.sampled_from(["look", "agents__spawn", "patch"])
ARGUMENTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(-9, 9), max_size=3)
ANSWERS = answers(NAMES, ARGUMENTS)
TOOLS: list[Any] = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
    {"type": "custom", "name": "patch"},
]


def as_sent(name: str, arguments: dict[str, Any]) -> str:
    """The arguments as a model writes them for a tool of that name."""
    if name == "patch":
        return json.dumps({"input": json.dumps(arguments)})
    return json.dumps(arguments)


def asked(**fields: Any) -> Request:
    return read(json.dumps({"model": "m", "tools": TOOLS, **fields}).encode())


def piece(said: Said, unique: str) -> Piece:
    return piece_of(said, call=f"call_{unique}", written=as_sent)


def answered(request: Request, said: Said, unique: str, *, streamed: bool) -> dict[str, Any]:
    """The response, as the client has it at its end."""
    writer = ResponsesWriter(request, unique, Managed())
    if not streamed:
        came = Completion(choices=(piece(said, unique),))
        whole: dict[str, Any] = json.loads(writer.body(came, came.choices, {}))
        return whole
    writer.relay(piece(said, unique), None, role_sent=False)
    writer.end()
    assert writer.final is not None
    told: dict[str, Any] = json.loads(json.dumps(writer.final))
    return told


def check(message: Message, said: Said, unique: str) -> None:
    assert message["role"] == "assistant"
    assert (message["content"] or "") == said["text"]
    assert message.get("reasoning_content", "") == said["thought"]
    calls = message.get("tool_calls", [])
    assert [call["id"] for call in calls] == [f"call_{unique}_{n}" for n in range(len(said["calls"]))]
    for call, (name, arguments) in zip(calls, said["calls"], strict=True):
        assert call["function"]["name"] == name
        sent = json.loads(as_sent(name, arguments))
        told = json.loads(call["function"]["arguments"])
        assert {field: told[field] for field in sent} == sent


@given(ANSWERS, st.booleans(), st.sampled_from([None, "auto"]))
def test_an_answer_that_is_sent_back_is_what_the_model_said(said: Said, streamed: bool, summary: str | None) -> None:
    request = asked(input="go", reasoning={"summary": summary, "effort": "low"})
    response = answered(request, said, "0a1b", streamed=streamed)
    again = asked(input=[{"role": "user", "content": "go"}, *response["output"]], store=False)
    question, answer = again.messages
    assert question == {"role": "user", "content": "go"}
    check(answer, said, "0a1b")


@given(ANSWERS)
def test_streamed_and_whole_are_the_same_response(said: Said) -> None:
    request = asked(input="go")
    assert answered(request, said, "0a1b", streamed=True) == answered(request, said, "0a1b", streamed=False)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 2),
            "top_p": st.floats(0, 1),
            "parallel_tool_calls": st.booleans(),
            "max_output_tokens": st.integers(16, 9999),
            "instructions": WORDS,
            "metadata": st.dictionaries(WORDS, WORDS, max_size=2),
            "truncation": st.sampled_from(["auto", "disabled"]),
            "prompt_cache_key": WORDS,
            "safety_identifier": WORDS,
            "tool_choice": st.sampled_from(["auto", "none", "required"]),
            "reasoning": st.just({"effort": "high", "summary": "auto"}),
            "store": st.booleans(),
        },
    )
)
def test_options_reach_the_model_by_their_neutral_names_and_are_told_again(options: dict[str, Any]) -> None:
    request = asked(input="go", **options)
    for name in ("temperature", "top_p", "parallel_tool_calls", "tool_choice"):
        if name in options:
            assert request.body[name] == options[name]
    assert request.max_tokens == options.get("max_output_tokens")
    wished = Thinking(effort="high", openai="high")
    assert request.thinking == (wished if "reasoning" in options else None)
    lead = [{"role": "system", "content": options["instructions"]}] if "instructions" in options else []
    assert request.messages == [*lead, {"role": "user", "content": "go"}]
    response = answered(request, {"text": "x", "thought": "", "calls": []}, "0a1b", streamed=False)
    assert {name: response[name] for name in options} == options


def drive(flow: Generator[Any, Any, Any], held: dict[str, Any]) -> Any:
    reply: Any = None
    try:
        while True:
            step = flow.send(reply)
            assert isinstance(step, Fetch)
            reply = held.get(step.name)
    except StopIteration as stop:
        return stop.value


def results(said: Said, unique: str) -> list[dict[str, Any]]:
    kinds = {"patch": "custom_tool_call_output"}
    return [
        {"type": kinds.get(name, "function_call_output"), "call_id": f"call_{unique}_{index}", "output": "done"}
        for index, (name, _) in enumerate(said["calls"])
    ]


@given(st.lists(st.tuples(WORDS, ANSWERS), min_size=1, max_size=4), st.booleans())
def test_going_on_by_id_is_the_same_as_sending_everything(
    turns: Sequence[tuple[str, dict[str, Any]]], streamed: bool
) -> None:
    held: dict[str, Any] = {}
    sent: list[Any] = []
    previous, given_, now = None, list[Any](), ""
    for number, (words, said) in enumerate(turns, 1):
        now, new = f"{number:08x}", [*given_, {"role": "user", "content": words}]
        sent += new
        stateful = asked(input=new, **({"previous_response_id": previous} if previous else {}))
        if stateful.reading is not None:
            stateful = drive(stateful.reading(), held)
        assert stateful.messages == asked(input=sent).messages
        response = answered(stateful, said, now, streamed=streamed)
        assert stateful.keeping is not None
        name, document = stateful.keeping(response)
        held[name] = json.loads(json.dumps(document))
        sent += response["output"]
        previous, given_ = response["id"], results(said, now)
    # By references to each of its items, too.
    named = [{"type": "item_reference", "id": item["id"]} for item in held[previous or ""]["output"]]
    referring = asked(input=[{"role": "user", "content": "go"}, *named])
    assert referring.reading is not None
    _, answer = drive(referring.reading(), held).messages
    check(answer, turns[-1][1], now)

"""A thread is the same as sending everything each time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.messages import Messages
from proxy.errors import BadRequest, NotFound
from proxy.neutral.piece import NOBODY, Piece
from proxy.neutral.remembering import Fetch, Keep
from proxy.neutral.request import Request
from tests.dialects.streams import WORDS, Said, piece_of
from tests.dialects.test_round_trips import ANSWERS, whole

DIALECT = Messages()
SYSTEM: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
TOOLS: Any = [{"name": "look", "input_schema": {"type": "object"}}]
FRONT: Any = {"system": SYSTEM, "tools": TOOLS}
CREATE: Any = {"thread": {"type": "create"}}


def asked(messages: list[Any], held: dict[str, Any], **fields: Any) -> Request:
    body = {"model": "m", "max_tokens": 9, "messages": messages, **fields}
    request = DIALECT.read(json.dumps(body).encode(), b"")
    return request if request.reading is None else drive(request.reading(), held)


def drive(flow: Any, held: dict[str, Any]) -> Any:
    """What the flow comes to, with what is held in place of a store."""
    reply: Any = None
    try:
        while True:
            step = flow.send(reply)
            if isinstance(step, Fetch):
                reply = held.get(step.name)
            elif isinstance(step, Keep):
                held[step.name], reply = json.loads(json.dumps(step.document)), True
    except StopIteration as stop:
        return stop.value


def streamed(request: Request, said: Said, unique: str) -> dict[str, Any]:
    """The message at the end of a stream in which the second half of the text came on the short way."""
    writer = DIALECT.writer(request, unique)
    half = len(said["text"]) // 2
    first = replace(piece_of(said), text=said["text"][:half], calls=(), finish=None)
    writer.relay(first, None, role_said=False)
    more = writer.more("content") if half else None
    if more is not None:
        more(said["text"][half:])
    else:
        writer.relay(Piece(form={}, choice=True, text=said["text"][half:]), None, role_said=True)
    writer.relay(replace(piece_of(said), text="", thought=""), NOBODY, role_said=True)
    writer.end()
    final: dict[str, Any] = json.loads(json.dumps(writer.final))
    return final


def results(said: Said) -> list[Any]:
    return [
        {"type": "tool_result", "tool_use_id": f"call_{index}", "content": "done"}
        for index in range(len(said["calls"]))
    ]


@given(st.lists(st.tuples(WORDS, ANSWERS), min_size=1, max_size=4), st.booleans())
def test_going_on_with_a_thread_is_the_same_as_sending_everything(
    turns: Sequence[tuple[str, Said]], live: bool
) -> None:
    held: dict[str, Any] = {}
    sent: list[Any] = []
    of_calls: list[Any] = []
    previous = ""
    for number, (words, said) in enumerate(turns, 1):
        new = {"role": "user", "content": [*of_calls, {"type": "text", "text": words}]}
        sent.append(new)
        on: Any = (
            {"thread": {"type": "continue", "previous_message_id": previous}} if previous else FRONT | CREATE
        )
        request = asked([new], held, **on)
        everything = asked(sent, held, **FRONT)
        assert request.messages == everything.messages
        assert request.body["tools"] == everything.body["tools"]
        unique = f"{number:08x}"
        answer = streamed(request, said, unique) if live else whole(DIALECT, request, said)
        answer["id"] = previous = DIALECT.answer_id(unique)
        assert request.keeping is not None
        assert drive(request.keeping(answer), held)
        sent.append({"role": "assistant", "content": answer["content"]})
        of_calls = results(said)


def test_what_was_only_read_is_kept_without_an_answer() -> None:
    held: dict[str, Any] = {}
    hello = {"role": "user", "content": "go"}
    request = asked([hello], held, **CREATE)
    assert request.keeping is not None
    drive(request.keeping({"id": "msg_1", "content": []}), held)
    on: Any = {"type": "continue", "previous_message_id": "msg_1"}
    assert asked([], held, thread=on).messages == [hello]


@pytest.mark.parametrize("name", ["", "msg_0", 7, None])
def test_a_thread_that_is_not_kept_is_said_so(name: Any) -> None:
    with pytest.raises(NotFound) as caught:
        asked([], {}, thread={"type": "continue", "previous_message_id": name})
    assert caught.value.code == "thread_not_found"


@pytest.mark.parametrize("thread", [{"type": "other"}, {}, [], "create", 7])
def test_a_malformed_thread_is_refused(thread: Any) -> None:
    with pytest.raises(BadRequest, match="`thread` must be"):
        asked([], {}, thread=thread)


def test_no_thread_is_none() -> None:
    assert asked([{"role": "user", "content": "go"}], {}, thread=None).keeping is None

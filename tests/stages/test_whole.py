"""A backend that answers a streaming request with one JSON body: the client gets a stream all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxy.dialects.chat import ChatReader, ChatWriter
from proxy.emulation import emulated_message
from proxy.neutral.piece import Identity
from proxy.stages.client_stream import Nobody
from proxy.stages.whole import Whole, as_stream
from proxy.wire.jsontext import dumps
from tests.answer.support import one_answer, read
from tests.emulation.outputs import TAGGED, offer

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def whole(*choices: dict[str, Any], status: int = 200, **fields: Any) -> Whole:
    body = {"id": "one", "object": "chat.completion", "created": 5, "model": "m", "usage": USAGE, **fields}
    came = ChatReader().read_body(dumps({**body, "choices": list(choices)}))
    assert came is not None
    return Whole(status, [], b"", pieces=came.pieces, usage=came.usage)


def choice(message: dict[str, Any], finish: str | None = "stop", index: int = 0) -> dict[str, Any]:
    return {"index": index, "message": message, "finish_reason": finish}


def streamed(came: Whole, *, show_usage: bool = False, known: Identity | None = None) -> bytes:
    to = Nobody(ChatWriter())
    to.identity = known
    frames = as_stream(came, to, show_usage=show_usage)
    assert frames is not None
    return frames


@pytest.mark.parametrize("message", [{"role": "assistant", "content": "Hi."}, {"content": "Hi."}])
def test_a_text(message: dict[str, Any]) -> None:
    client = read(streamed(whole(choice(message))))
    one_answer(client, "Hi.")
    assert {(each["object"], each["created"], each["model"]) for each in client.chunks} == {
        ("chat.completion.chunk", 5, "m")
    }
    assert [each["choices"][0]["finish_reason"] for each in client.chunks][:-1] == [None] * (
        len(client.chunks) - 1
    )
    assert client.usages == []


def test_usage_is_told_if_it_was_asked_for() -> None:
    client = read(streamed(whole(choice({"role": "assistant", "content": "Hi."})), show_usage=True))
    one_answer(client, "Hi.")
    assert client.usages == [USAGE]
    assert client.chunks[-1]["choices"] == []


def test_reasoning_and_calls() -> None:
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": f'{{"a":{n}}}'}}
        for n in range(2)
    ]
    message = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": calls}
    client = read(streamed(whole(choice(message, "tool_calls"))))
    one_answer(client, "", "tool_calls")
    assert client.reasoning == "Hm."
    assert client.calls == [{**call, "index": index} for index, call in enumerate(calls)]


def test_calls_that_were_madefrom_text() -> None:
    message = {"role": "assistant", "content": f"Look.\n{TAGGED}", "reasoning_content": "Hm."}
    came = whole(choice(message))
    (made,) = [emulated_message(piece, offer(), lambda: "c1") for piece in came.pieces]
    client = read(streamed(replace(came, pieces=(made.piece,))))
    one_answer(client, "Look.", "tool_calls")
    assert (client.reasoning, [call["id"] for call in client.calls]) == ("Hm.", ["c1"])


def test_several_choices() -> None:
    both = [choice({"role": "assistant", "content": text}, index=n) for n, text in enumerate("ab")]
    client = read(streamed(whole(*both)))
    assert [(each["choices"][0]["index"], each["choices"][0]["finish_reason"]) for each in client.chunks] == [
        (0, None),
        (0, "stop"),
        (1, None),
        (1, "stop"),
    ]


def test_after_a_notice_it_is_the_same_answer() -> None:
    own = Identity("own", 7, "asked")
    client = read(streamed(whole(choice({"role": "assistant", "content": "Hi."})), known=own))
    assert (client.text, client.ids, client.roles, client.finishes) == ("Hi.", {"own"}, 0, ["stop"])


def test_what_the_backend_must_not_say_is_left_out() -> None:
    hostile = whole(choice({"role": "assistant", "content": "Hi."}), event={"type": "execute"})
    assert b"execute" not in streamed(hostile)


@pytest.mark.parametrize(
    "came", [Whole(200, [], b"{}"), whole(), whole(choice({"content": "x"}), status=500)]
)
def test_what_is_no_answer_is_no_stream(came: Whole) -> None:
    assert as_stream(came, Nobody(ChatWriter()), show_usage=True) is None

from __future__ import annotations

from typing import Any

import pytest

from proxy.errors import BadRequest
from proxy.neutral.request import ChatRequest, leading_system, parse_chat, text_of
from proxy.wire.jsontext import dumps, loads
from tests.histories import assistant, user


def request(**fields: Any) -> ChatRequest:
    return parse_chat(dumps({"model": "m", "messages": [user("a")], **fields}))


def test_a_request_keeps_its_bytes_and_its_unknown_fields() -> None:
    raw = b' {"x": {"y": [1]}, "messages" : [] }'
    made = parse_chat(raw, b"compressed")
    assert made.raw is raw
    assert made.wire == b"compressed"
    assert parse_chat(raw).wire is raw
    assert loads(made.rewritten([user("b")])) == {"x": {"y": [1]}, "messages": [user("b")]}


def test_fields_are_set_and_removed() -> None:
    made = request(stream=True, x=1)
    assert loads(made.rewritten(stream=None, max_tokens=5)) == {
        "model": "m", "messages": [user("a")], "x": 1, "max_tokens": 5,
    }  # fmt: skip
    assert made.body["stream"] is True, "the request itself stays as it was"


@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b'"text"', None, "JSON object"),
        (b"[1]", None, "JSON object"),
        (b"{}", "messages", "list of message objects"),
        (b'{"messages":{}}', "messages", "list of message objects"),
        (b'{"messages":[5]}', "messages[0]", "must be an object"),
        (b'{"messages":[{"role":"user"},{}]}', "messages[1].role", "must be a string"),
        (b'{"messages":[{"role":5}]}', "messages[0].role", "must be a string"),
        ('{"messages":[]}'.encode("utf-16"), None, "not valid JSON"),
        (b'{"messages":' + b"[" * 5000, None, "not valid JSON"),
    ],
)
def test_what_is_no_request_is_refused_by_name(raw: bytes, param: str | None, says: str) -> None:
    with pytest.raises(BadRequest, match=says.replace("[", r"\[")) as caught:
        parse_chat(raw)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5"}, None),
    ],
)
def test_the_bound_of_an_answer(fields: dict[str, Any], bound: int | None) -> None:
    assert request(**fields).max_tokens == bound


@pytest.mark.parametrize(
    ("options", "wish"),
    [
        (None, None),
        ({}, None),
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ({"include_usage": None}, False),
        ("odd", None),
    ],
)
def test_what_was_said_about_usage(options: Any, wish: bool | None) -> None:
    assert request(stream_options=options).usage_wish is wish


@pytest.mark.parametrize(
    ("fields", "structured"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "text"}, "grammar": "root ::= x"}, True),
        ({"response_format": None, "guided_json": {}}, True),
        ({"guided_regex": "a+"}, True),
        ({"grammar": None}, False),
        ({"response_format": "odd"}, False),
    ],
)
def test_answers_that_have_to_follow_a_format(fields: dict[str, Any], structured: bool) -> None:
    assert request(**fields).structured is structured


def test_small_views() -> None:
    made = request(stream=True, n=3)
    assert (made.model, made.stream, made.choices) == ("m", True, 3)
    assert (request(model=5).model, request(n="x").choices, request(stream="yes").stream) == ("", 1, False)


@pytest.mark.parametrize(
    ("fields", "chore"),
    [
        ({"messages": [user("### Task:\nGenerate a title")]}, True),
        ({"messages": [user("### Task:\nGenerate a title")], "stream": True}, False),
        ({"messages": [user("### Task:"), assistant("x")]}, False),
        ({"messages": [user("What is ### Task:?")]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "### Task:"}]}]}, False),
        ({"messages": [user("### Task:")], "tools": [{}]}, False),
    ],
)
def test_a_clients_own_chores(fields: dict[str, Any], chore: bool) -> None:
    assert request(**fields).background_task is chore


def test_leading_system_messages_are_counted() -> None:
    system, developer = {"role": "system", "content": "s"}, {"role": "developer", "content": "d"}
    assert leading_system([]) == 0
    assert leading_system([system, developer, user("a"), system]) == 2
    assert leading_system([system]) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, ""),
        (5, ""),
        ([{"type": "text", "text": "a"}, {"type": "image_url"}, "odd", {"text": 5}, {"text": "b"}], "a\nb"),
        ([], ""),
    ],
)
def test_the_text_of_a_message(content: Any, text: str) -> None:
    assert text_of({"role": "user", "content": content}) == text


def test_a_changed_request_is_as_if_the_client_had_sent_it() -> None:
    made = request(stream=True, x=1).changed(stream=None, max_tokens=5)
    assert made.wire is made.raw
    assert loads(made.raw) == made.body == {"model": "m", "messages": [user("a")], "x": 1, "max_tokens": 5}

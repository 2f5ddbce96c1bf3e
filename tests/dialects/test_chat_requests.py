from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest, NotManaged
from proxy.core.jsontext import dumps, loads
from proxy.core.request import Request
from proxy.dialects.chat.request import going_on, may_ask_usage, read, summarising, written
from tests.histories import user


def request(**fields: Any) -> Request:
    return read(dumps({"model": "m", "messages": [user("a")], **fields}))


def test_a_request_keeps_its_bytes_and_its_unknown_fields() -> None:
    raw = b' {"x": {"y": [1]}, "messages" : [] }'
    made = read(raw)
    assert made.raw is raw
    assert written(made, None, {}, ask_usage=False) is raw, "nothing is changed"
    again = written(made, [user("b")], {}, ask_usage=False)
    assert loads(again) == {"x": {"y": [1]}, "messages": [user("b")]}


def test_options_go_upstream_with_other_values() -> None:
    made = request(stream=True, x=1)
    assert loads(written(made, None, {"max_tokens": 5}, ask_usage=False)) == {
        "model": "m", "messages": [user("a")], "stream": True, "x": 1, "max_tokens": 5,
    }  # fmt: skip
    assert "max_tokens" not in made.body, "the request itself stays as it was"


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
        read(raw)
    assert caught.value.param == param


READ: list[tuple[str, Any, list[dict[str, Any]]]] = [
    ("max_tokens", 5, [{"max_tokens": 5}]),
    ("max_tokens", 7, [{"max_tokens": 5, "max_completion_tokens": 7}]),
    ("max_tokens", None, [{}, *({"max_tokens": odd} for odd in (-1, 0, None, True, "5"))]),
    ("wants_usage", None, [{}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": "odd"}]),
    ("wants_usage", True, [{"stream_options": {"include_usage": True}}]),
    ("wants_usage", False, [{"stream_options": {"include_usage": odd}} for odd in (False, None)]),
    ("structured", True, [{"response_format": {"type": "json_object"}}, {"guided_regex": "a+"}]),
    ("structured", True, [{"response_format": each, "grammar": "x"} for each in ({"type": "text"}, None)]),
    ("structured", False, [{}, {"grammar": None}, *({"response_format": odd} for odd in ({"type": "text"}, "odd"))]),
    ("model", "", [{"model": None}]),
    ("choices", 3, [{"n": 3}]),
    ("choices", 1, [{}, {"n": "x"}]),
    ("stream", True, [{"stream": True}]),
    ("stream", False, [{}, {"stream": "yes"}]),
]


@pytest.mark.parametrize(("name", "value", "bodies"), READ)
def test_what_is_read_of_a_body(name: str, value: Any, bodies: list[dict[str, Any]]) -> None:
    assert [getattr(request(**fields), name) for fields in bodies] == [value] * len(bodies)


@pytest.mark.parametrize(
    "said",
    [
        {"stream": True}, {"stream_options": {"include_usage": True}}, {"n": 2}, {"continue_final_message": True},
        {"max_tokens": 5}, {"max_completion_tokens": 5}, {"n_predict": 5}, {"prompt_cache_key": "talk"},
        {"response_format": {"type": "json_object"}}, {"grammar": "root ::= x"}, {"guided_regex": "x+"},
    ],
    ids=lambda said: next(iter(said)),
)  # fmt: skip
def test_a_field_says_the_same_alone_as_beside_others(said: dict[str, Any]) -> None:
    def told(**fields: Any) -> Request:
        return replace(request(**fields), body={}, raw=None, wire=None)

    assert told(**said) == told(**{"n": 1, "stream": False, **said})
    assert told(**said) != told(temperature=0.5) == told()


@pytest.mark.parametrize(
    ("fields", "asked"), [({}, False), ({"stream": True}, True), ({"stream": True, "stream_options": {}}, False)]
)
def test_usage_may_be_asked_for_where_nothing_was_said_of_it(fields: dict[str, Any], asked: bool) -> None:
    assert may_ask_usage(request(**fields), reported=False) is asked


ASKED = b'"stream_options":{"include_usage":true}'
space = st.text(st.sampled_from(" \t\r\n"), max_size=3).map(str.encode)
bodies = st.dictionaries(st.text(), st.none() | st.integers(-9, 9) | st.text() | st.lists(st.text()), max_size=4)


@given(st.sampled_from([b"", b"\xef\xbb\xbf"]), space, bodies, space, space)
def test_every_other_byte_stays(mark: bytes, before: bytes, body: dict[str, Any], inside: bytes, after: bytes) -> None:
    body = {**body, "messages": []}
    for name in ("stream_options", "functions", "function_call"):
        body.pop(name, None)
    raw = mark + before + b"{" + inside + dumps(body)[1:] + after
    asked = written(read(raw), None, {}, ask_usage=True)
    at = asked.index(ASKED)
    comma = 1
    assert asked[:at] + asked[at + len(ASKED) + comma :] == raw
    assert loads(asked) == {**body, "stream_options": {"include_usage": True}}


# -- what else goes upstream


def test_a_request_to_go_on_is_the_first_one_without_what_held_for_its_stream() -> None:
    first = {
        "model": "m", "messages": [user("a")], "temperature": 0.5, "max_tokens": 9, "n_predict": 9, "stream_options": {"x": 1},
        "continue_final_message": False,
    }  # fmt: skip
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    counts = {"timings_per_token": True, "stream_options": {"continuous_usage_stats": True}}
    assert going_on(first, [user("b")], flags, counts) == {
        "model": "m",
        "messages": [user("b")],
        "temperature": 0.5,
        "stream": True,
        **flags,
        "timings_per_token": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_a_summary_that_is_appended_keeps_the_prompt_and_the_tools_which_must_not_be_called() -> None:
    client = {
        "model": "x", "messages": [], "tools": [{}], "tool_choice": "required", "n": 2, "response_format": {},
        "temperature": 0.1, "think": False,
    }  # fmt: skip
    appended = loads(summarising(client, "m", [user("a")], append=True, max_tokens=5))
    assert appended == {
        "model": "m", "messages": [user("a")], "max_tokens": 5, "stream": True, "tools": [{}], "tool_choice": "none",
        "temperature": 0.1, "think": False,
    }  # fmt: skip
    alone = loads(summarising(client, "m", [user("a")], append=False, max_tokens=5))
    expected = {"model": "m", "messages": [user("a")], "max_tokens": 5, "stream": True, "think": False}
    assert alone == expected


@pytest.mark.parametrize(
    "older",
    [
        {"functions": [{"name": "f"}]},
        {"function_call": "auto"},
        {"messages": [{"role": "function", "name": "f", "content": "x"}]},
        {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]},
    ],
)
def test_the_older_form_of_tools_is_not_managed(older: dict[str, Any]) -> None:
    with pytest.raises(NotManaged, match="tool_calls"):
        request(**older)

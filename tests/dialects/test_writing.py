"""Answers in the dialects that no backend speaks: whatever comes in whatever order is told once, and in order."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.dialect import Completion, Dialect
from proxy.core.piece import CallPart, Piece
from proxy.core.request import Managed
from proxy.dialects.messages import writing as messages
from proxy.dialects.responses import writing as responses
from tests.dialects.streams import (
    MESSAGES,
    OLLAMA,
    RESPONSES,
    SAID,
    WHO,
    Json,
    all_of,
    called,
    calling,
    chunk,
    events,
    failure,
    hear,
    streamed,
    translated,
    usage,
    whole,
    writer_of,
)

ENDS = {
    MESSAGES.path: ("stop_reason", "tool_use", "end_turn", "max_tokens"),
    RESPONSES.path: ("status", "completed", "completed", "incomplete"),
    OLLAMA.path: ("done_reason", "stop", "stop", "length"),
}


@translated
@given(SAID, st.integers(0, 3))
def test_whatever_is_said_in_whatever_order_is_said_once_and_in_order(dialect: Dialect, said: list[Json], calls: int) -> None:
    pieces = [chunk(delta) for delta in (*said, *calling(calls))]
    heard = streamed(dialect, *pieces, chunk({}, "tool_calls" if calls else "stop"))
    assert (heard.text, heard.thought) == (all_of(said, "content"), all_of(said, "reasoning_content"))
    assert heard.calls == [(f"call_{index}", "f", {"a": index}) for index in range(calls)]
    name, *ends = ENDS[dialect.path]
    assert heard.whole[name] == ends[0 if calls else 1]


WELL, HM, YES = ({"content": "Well."}, {"reasoning_content": "Hm."}, {"content": " Yes."})


@translated
@pytest.mark.parametrize(
    "deltas",
    [
        [*(called(0, "f", '{"a"', "c1"), called(1, "g", '{"b"', "c2")), *(called(0, "f", ":1}", "c1"), called(1, "g", ":2}", "c2"))],
        [called(7, "f", '{"a":1}', "c1"), called(3, "g", '{"b":2}', "c2")],
        [called(0, "f", '{"a"', "c1"), WELL, HM, called(0, arguments=":1}"), YES, called(1, "g", '{"b":2}', "c2")],
        [called(0, "f", "", "c1"), WELL, called(0, arguments='{"a":1}'), called(1, "g", '{"b":2}', "c2"), YES],
    ],
    ids=["said again", "numbered anyhow", "a word amid", "arguments after a word"],
)  # fmt: skip
def test_pieces_of_calls_find_each_other(dialect: Dialect, deltas: list[Json]) -> None:
    heard = streamed(dialect, *map(chunk, deltas))
    assert heard.calls == [("c1", "f", {"a": 1}), ("c2", "g", {"b": 2})]
    assert heard.text in ("", "Well. Yes.")


@translated
def test_calls_that_come_whole_and_unnumbered_are_apart(dialect: Dialect) -> None:
    writer, calls = writer_of(dialect), (CallPart("f", '{"a":1}', id="c1"), CallPart("g", "{}"))
    heard = hear(dialect, writer.insert(Piece(calls=calls, choice=True), WHO) + writer.end())
    assert [call[1:] for call in heard.calls] == [("f", {"a": 1}), ("g", {})]
    assert heard.calls[0][0] == "c1"
    assert heard.calls[1][0], "who sends it back has to name it"


@translated
def test_an_id_that_comes_late_begins_no_other_call(dialect: Dialect) -> None:
    (call,) = streamed(dialect, chunk(called(0, "f", '{"a":')), chunk(called(0, arguments="1}", call_id="c"))).calls
    assert call[1:] == ("f", {"a": 1})


@translated
def test_what_spillway_says_itself_fits_in(dialect: Dialect) -> None:
    writer = writer_of(dialect)
    comment = writer.insert(Piece(comment="spillway"), WHO)
    said = [
        writer.insert(Piece(role=True), WHO),
        writer.relay(chunk({"content": "one"}), WHO, role_sent=True),
        writer.part(chunk({"content": " two"}, "length"), WHO, role_sent=True),
        writer.insert(Piece(finish="stop"), WHO),
        writer.insert(Piece(usage={"prompt_tokens": 5, "spillway": {"a": 1}}), WHO),
        writer.end(),
    ]
    heard = hear(dialect, b"".join(said))
    assert heard.text == "one two"
    name, _, end, _ = ENDS[dialect.path]
    assert heard.whole[name] == end
    assert heard.whole.get("usage", heard.whole)["spillway"] == {"a": 1}
    assert comment == b": spillway\n\n" or json.loads(comment)["message"]["content"] == ""
    assert writer_of(dialect).insert(Piece(event={"type": "status"}), WHO) == b""


@translated
def test_the_end_waits_for_the_usage(dialect: Dialect) -> None:
    counts = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    told = streamed(dialect, chunk({"content": "Well."}), chunk({}, "length"), usage(**counts)).whole
    name, *_, cut = ENDS[dialect.path]
    assert told[name] == cut
    if dialect is OLLAMA:
        assert (told["prompt_eval_count"], told["eval_count"], told["created_at"]) == (12, 3, "1970-01-01T00:00:07Z")
        return
    used = told["usage"]
    cached = used["cache_read_input_tokens"] if dialect is MESSAGES else used["input_tokens_details"]["cached_tokens"]
    assert (used["input_tokens"], used["output_tokens"], cached) == (4 if dialect is MESSAGES else 12, 3, 8)
    if dialect is RESPONSES:
        assert told["incomplete_details"] == {"reason": "max_output_tokens"}
        assert told["output"][0]["status"] == "incomplete"


@translated
def test_nothing_comes_after_an_error_or_an_end(dialect: Dialect) -> None:
    for ends in ([failure(message="broken", code=500)], []):
        writer = writer_of(dialect)
        said = writer.relay(chunk({"content": "one"}), None, role_sent=False)
        said += b"".join(writer.relay(piece, None, role_sent=True) for piece in ends) or writer.end()
        assert (b"broken" in said) is bool(ends)
        assert writer.end() == writer.error({"error": {"message": "again"}}) == writer.insert(Piece(text="x"), WHO) == b""


def _last(dialect: Dialect, **error: Any) -> Any:
    return events(writer_of(dialect).relay(failure(**error), None, role_sent=True))[-1]


def test_errors_in_a_stream() -> None:
    told = _last(MESSAGES, message="broken", code=500)
    assert told == {"type": "error", "error": {"type": "api_error", "message": "broken"}}
    for code, known in (("context_length_exceeded",) * 2, (500, "server_error")):
        failed = _last(RESPONSES, message="broken", code=code)["response"]
        assert (failed["status"], failed["error"]) == ("failed", {"code": known, "message": "broken"})
    line = writer_of(OLLAMA).relay(failure(message="broken"), None, role_sent=True)
    assert json.loads(line) == {"error": "broken"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "x", "type": "server_error"}, "api_error"), ({"message": "x", "code": 429}, "rate_limit_error"),
        ({"message": "x", "code": 401}, "authentication_error"), ({"message": "x", "code": 418}, "invalid_request_error"),
        ("broken", "api_error"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_types(error: Any, kind: str) -> None:
    assert messages.error_body(error)["error"]["type"] == kind


def test_counts_that_make_no_sense_are_none() -> None:
    told = messages.usage_of({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}, "completion_tokens": "x"})
    assert (told["input_tokens"], told["cache_read_input_tokens"], told["output_tokens"]) == (0, 3, 0)
    assert responses.usage_of({"prompt_tokens": "x"})["total_tokens"] == 0
    counted = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    assert messages.usage_of(counted)["output_tokens_details"] == {"thinking_tokens": 4}
    assert messages.usage_of({**counted, "completion_tokens_details": 3})["output_tokens_details"] is None


@pytest.mark.parametrize(
    ("stopped", "told"), [("END", ("stop_sequence", "END")), ("", ("end_turn", None))], ids=["a sequence", "a token"]
)
def test_a_stop_sequence_is_told_where_the_backend_tells_it(stopped: str, told: tuple[str, str | None]) -> None:
    end = Piece(form={}, choice=True, text="Hi.", finish="stop", stopped=stopped)
    for message in (streamed(MESSAGES, end).whole, whole(MESSAGES, end).whole):
        assert (message["stop_reason"], message["stop_sequence"]) == told


def test_a_response_repeats_its_request() -> None:
    asked: Json = {"instructions": "x", "temperature": 0.5, "metadata": {"a": "b"}, "tools": [{"type": "local_shell"}]}
    response = streamed(RESPONSES, chunk({"content": "Well."}), **asked).whole
    assert {name: response[name] for name in asked} == asked
    assert (response["truncation"], response["text"]) == ("disabled", {"format": {"type": "text"}})
    assert (response["id"], response["model"]) == ("resp_0a1b", "m")


@pytest.mark.parametrize(("arguments", "told"), [('{"input": "a\\nb"}', "a\nb"), ("bare words", "bare words")])
def test_calls_of_custom_tools_are_texts(arguments: str, told: str) -> None:
    writer = writer_of(RESPONSES, tools=[{"type": "custom", "name": "p"}])
    said = writer.insert(Piece(calls=(CallPart("p", arguments, id="c"),), choice=True), WHO) + writer.end()
    (call,) = events(said)[-1]["response"]["output"]
    assert (call["type"], call["input"], call["call_id"]) == ("custom_tool_call", told, "c")


def test_an_answer_without_any_choice_is_one() -> None:
    for dialect in (MESSAGES, RESPONSES, OLLAMA):
        body = writer_of(dialect, Managed()).body(Completion(), (), None)
        assert hear(dialect, body, streamed=False).text == ""

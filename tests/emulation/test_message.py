from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proxy.dialects.chat import ChatReader, ChatWriter
from proxy.emulation import CallScanner, FormCount, Malformed, Offer, complaint, emulated_message, offer_of
from proxy.neutral.piece import Piece
from proxy.wire.jsontext import dumps, loads
from tests.emulation.outputs import FUNCTIONS, TAGGED, P, offer

OFFER = offer()
REQUIRED: dict[str, Any] = {"refusal": None, "annotations": []}
"""What each message of a whole answer has, though there is nothing in it."""


def whole(
    message: dict[str, Any], finish: Any, of: Offer, make_id: Callable[[], str]
) -> tuple[Any, Any, list[Malformed], dict[str, FormCount]]:
    """Message and finish reason of an answer with only this choice, read and written again."""
    lacking = {name: value for name, value in REQUIRED.items() if name not in message}
    came = ChatReader().read_body(
        dumps({"choices": [{"message": {**message, **lacking}, "finish_reason": finish}]})
    )
    assert came is not None
    read = emulated_message(came.pieces[0], of, make_id)
    (choice,) = loads(ChatWriter().body(came, [read.piece], None))["choices"]
    made = {name: value for name, value in choice["message"].items() if name not in lacking}
    return made, choice["finish_reason"], read.reader.malformed, read.reader.stats


FUNCTION = {"name": "get_weather", "arguments": '{"city": "Paris"}'}


def test_calls_of_a_whole_answer() -> None:
    message = {"role": "assistant", "content": TAGGED, "reasoning_content": "hm"}
    made, finish, malformed, stats = whole(message, "stop", OFFER, lambda: "id")
    assert made == {
        **message,
        "content": None,
        "tool_calls": [{"id": "id", "type": "function", "function": FUNCTION}],
    }
    assert (finish, malformed, stats["tool_call"].called) == ("tool_calls", [], 1)
    assert whole(message, "length", OFFER, lambda: "id")[1] == "length"


@pytest.mark.parametrize(
    ("finish", "told"),
    [
        ("eos_token", "tool_calls"),
        ("tool_calls", "tool_calls"),
        ("content_filter", "content_filter"),
        ("error", "error"),
        (None, None),
    ],
)
def test_finish_reasons_beside_calls(finish: Any, told: Any) -> None:
    assert whole({"content": TAGGED}, finish, OFFER, str)[1] == told
    assert whole({"content": "Hi."}, finish, OFFER, str)[1] == finish


@pytest.mark.parametrize(("finish", "wrong"), [("stop", 0), ("length", 1), ("content_filter", 1), (None, 0)])
def test_what_the_model_did_not_end_is_not_completed(finish: Any, wrong: int) -> None:
    assert len(whole({"content": P[:-1]}, finish, OFFER, str)[2]) == wrong


def test_a_call_that_is_required_is_missed_whatever_the_end_is_called() -> None:
    required = offer(tool_choice="required")
    assert len(whole({"content": "Hi."}, "eos_token", required, str)[2]) == 1
    assert whole({"content": "Hi."}, "content_filter", required, str)[2] == []


def test_a_call_of_the_older_api() -> None:
    old = offer_of({"functions": FUNCTIONS})
    assert old is not None
    made, finish, _, _ = whole({"content": f"A {P}\n{TAGGED}\n{TAGGED}"}, "stop", old, str)
    assert (made, finish) == ({"content": f"A {P}", "function_call": FUNCTION}, "function_call")


@pytest.mark.parametrize("content", ["Hello.", "", None, [{"type": "text", "text": TAGGED}]])
def test_an_answer_without_calls_stays(content: Any) -> None:
    message = {"role": "assistant", "content": content}
    assert whole(message, "stop", OFFER, str) == (message, "stop", [], {})


def test_what_is_malformed_stays_in_the_content() -> None:
    text = '{"name": "get_weather"}'
    made, finish, malformed, stats = whole({"content": text}, "stop", OFFER, str)
    assert (made, finish) == ({"content": text}, "stop")
    assert [m.text for m in malformed] == [text]
    assert stats["bare"].malformed == 1


def test_what_comes_before_a_malformed_call_may_quote_it() -> None:
    wrong = '{"name": "get_weather"}'
    read = emulated_message(
        Piece(text=f"Like `{wrong}`:\n{wrong}\nB", finish="stop", choice=True), OFFER, str
    )
    assert (read.before, read.instead) == (f"Like `{wrong}`:", f"\n{wrong}\nB")


def test_the_complaint_says_each_reason_once_and_shows_the_form() -> None:
    wrong = [Malformed("x", "bare", "a"), Malformed("y", "bare", "a"), Malformed("z", "bare", "cut")]
    text = complaint(wrong)
    assert "made: a; it was cut off before its end. Write it again" in text
    assert "<tool_call>" in text
    assert len(complaint([Malformed("x", "bare", "y" * 5000)] * 9)) < 1000
    scanner = CallScanner(OFFER)
    assert all(not isinstance(piece, Malformed) for piece in [*scanner.feed(text), *scanner.close()])

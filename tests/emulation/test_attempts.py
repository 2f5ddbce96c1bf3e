"""Streams that go on after another, break off, or end in the words of a backend of its own."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.dialects.chat.reading import DONE
from proxy.emulation import Malformed, offer_of
from tests.emulation.outputs import FENCED, FUNCTIONS, TAGGED, P, offer
from tests.emulation.test_stream import PARIS, STOP, WRONG, called, chunk, deltas, joined, said, stream

ERROR = b'data: {"error": {"message": "out of memory"}}\n\n'
BESIDE = chunk({"content": ""}, "error", error={"message": "out of memory"})
"""As OpenRouter tells of one."""
errors = pytest.mark.parametrize("error", [ERROR, BESIDE], ids=["alone", "beside a choice"])
HALF = TAGGED[:-20]


@errors
def test_an_error_in_mid_call_drops_the_half_call(error: bytes) -> None:
    one = stream()
    assert one.take(said("Hi.", "\n", HALF)) == said("Hi.")
    assert one.take(error) == error
    assert one.take(DONE) + one.end() == DONE
    assert (one.malformed, one.held, one.held_size, one.rest(), one.calls) == ([], "", 0, b"", 0)


@errors
@pytest.mark.parametrize("held", ["\n", " <tool", "\n```json\n{", '\n{"name": "get_'])
def test_an_error_lets_out_other_text_that_was_held(held: str, error: bytes) -> None:
    one = stream()
    out = one.take(said("Hi.", held) + error) + one.end()
    assert out == said("Hi.", held) + error
    assert one.malformed == []


@errors
def test_an_error_lets_out_a_call_that_was_whole(error: bytes) -> None:
    one = stream()
    out = one.take(said("Hi.\n", P) + error)
    assert deltas(out)[:2] == [({"content": "Hi."}, None), (PARIS, None)]
    assert out.endswith(error)


@errors
def test_an_error_behind_a_whole_call_that_can_not_be_made(error: bytes) -> None:
    one = stream()
    assert one.take(said(WRONG) + error) == said(WRONG) + error
    assert one.malformed == []


@errors
def test_an_error_does_not_wait_for_a_correction(error: bytes) -> None:
    one = stream()
    assert one.take(said(WRONG, "\nB") + error + DONE) == error + DONE
    assert len(one.malformed) == 1
    assert deltas(one.rest()) == [({"content": WRONG}, None), ({"content": "\nB"}, None)]


def test_an_error_where_a_call_is_required_asks_for_none() -> None:
    one = stream(offer(tool_choice="required"))
    assert one.take(said("Hm.") + BESIDE) == said("Hm.") + BESIDE
    assert one.malformed == []


def test_what_comes_with_an_error_passes() -> None:
    whole = chunk({"content": TAGGED}, error={"message": "x"}) + STOP
    assert stream().take(whole) == whole


def test_no_error_is_none() -> None:
    one = stream()
    out = one.take(b"".join(chunk({"content": text}, error=None) for text in (TAGGED[:20], TAGGED[20:])))
    assert deltas(out) == [(PARIS, None)]


# -- behind an earlier attempt


def test_reading_goes_on_behind_what_was_said() -> None:
    one = stream(said="Here:\n```python\nx = 1")
    body = said("\n", P, "\n```\n")
    assert joined(deltas(one.take(body)))[:2] == (f"\n{P}\n```", [])
    assert deltas(one.take(said(TAGGED) + STOP)) == [(PARIS, None), ({}, "tool_calls")]


def test_what_was_held_is_not_sent_twice() -> None:
    one = stream(said="So. <tool")
    assert one.held == ""
    assert one.take(said("box")) == said("box")
    one = stream(said="So. <tool", calls_before=1)
    assert deltas(one.take(said(f"{TAGGED[5:]}\nB"))) == [
        (called(1, "get_weather", '{"city": "Paris"}', 1), None),
        ({"content": "B"}, None),
    ]


def test_what_was_said_is_that_of_the_first_choice() -> None:
    one = stream(said="```python")
    both = chunk({"content": P}) + chunk({"content": P}, index=1) + STOP + chunk({}, "stop", index=1)
    found = deltas(one.take(both))
    assert found == [({"content": P}, None), ({}, "stop"), (PARIS, None), ({}, "tool_calls")]


def test_where_one_call_is_allowed_earlier_attempts_count() -> None:
    one = stream(offer(parallel_tool_calls=False), said="A", calls_before=1)
    assert deltas(one.take(said(TAGGED) + STOP)) == [({}, "tool_calls")]


def test_calls_that_were_sent_can_be_shown_to_the_model() -> None:
    one = stream()
    one.take(said(f"A\n{FENCED}\n{TAGGED}\n"))
    assert one.written_calls == f"{TAGGED}\n{TAGGED}"
    one.take(said(f"{WRONG}\n{TAGGED}") + STOP)
    assert (one.written_calls, one.calls) == (f"{TAGGED}\n{TAGGED}", 2)
    one.rest()
    assert (one.written_calls, one.calls) == ("\n".join([TAGGED] * 3), 3)


# -- finish reasons


@pytest.mark.parametrize("finish", ["stop", "eos_token", "end_turn", "tool_calls", "stop_sequence"])
def test_beside_calls_every_end_of_the_models_own_is_told_as_calls(finish: str) -> None:
    end = chunk({}, finish)
    assert deltas(stream().take(said(TAGGED) + end))[-1] == ({}, "tool_calls")
    assert stream().take(said("Hi.") + end) == said("Hi.") + end
    old = offer_of({"functions": FUNCTIONS})
    assert old is not None
    assert deltas(stream(old).take(said(TAGGED) + end))[-1] == ({}, "function_call")
    missing = stream(offer(tool_choice="required"))
    assert missing.take(said("Hi.") + end) == said("Hi.")
    assert missing.malformed[0].reason.startswith("no tool was called")


@pytest.mark.parametrize("finish", ["length", "content_filter", "error"])
def test_other_ends_stay_and_complete_nothing(finish: str) -> None:
    end: Any = chunk({}, finish)
    assert deltas(stream().take(said(TAGGED) + end))[-1] == ({}, finish)
    one = stream()
    assert one.take(said(P[:-1]) + end) == b""
    assert one.malformed == [Malformed(P[:-1], "bare", "cut")]

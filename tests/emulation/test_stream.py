from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.piece import Piece
from proxy.dialects.chat import ChatReader, ChatWriter
from proxy.dialects.chat.reading import DONE, object_of
from proxy.emulation import Call, EmulatedStream, FormCount, Malformed, Offer, Text, offer_of
from tests.emulation.broken import MALFORMED, REPAIRED
from tests.emulation.outputs import CLEAN, FENCED, FUNCTIONS, TAGGED, Output, P, offer

OFFER = offer()
WRONG = '{"name": "get_weather", "arguments": {}}'
ROLE = {"role": "assistant", "content": ""}


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return sse.encode({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more})


def said(*texts: str) -> bytes:
    return b"".join(chunk({"content": text}) for text in texts)


STOP, LENGTH = chunk({}, "stop"), chunk({}, "length")


class Stream(EmulatedStream):
    """Bytes in, bytes out."""

    def __init__(self, of: Offer, said: str, calls_before: int) -> None:
        numbers = count(1)
        super().__init__(of, lambda: f"call_{next(numbers)}", len, calls_before=calls_before, text_before=said)
        self._splitter = sse.FrameSplitter()

    def take(self, data: bytes) -> bytes:
        return self._take(self._splitter.feed(data))

    def end(self) -> bytes:
        return self._take(self._splitter.flush()) + written(self.close())

    def rest(self) -> bytes:
        return written(self.give_up())

    def _take(self, block: bytes) -> bytes:
        return b"".join(written(self.feed(ChatReader().read(frame))) for frame in sse.frames(block))


def written(pieces: Iterable[Piece]) -> bytes:
    return b"".join(ChatWriter().relay(piece, None, role_sent=True) for piece in pieces)


def stream(of: Offer = OFFER, *, said: str = "", calls_before: int = 0) -> Stream:
    return Stream(of, said, calls_before)


def objects(data: bytes) -> list[Any]:
    return [object_of(sse.data_of(frame)) for frame in sse.frames(data)]


def deltas(data: bytes) -> list[Any]:
    """What the chunks say: delta and finish reason of their only choice."""
    found = [o["choices"][0] for o in objects(data) if o is not None and o.get("choices")]
    return [(choice["delta"], choice["finish_reason"]) for choice in found]


def called(index: int, name: str, arguments: str, number: int | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "tool_calls": [{"index": index, "id": f"call_{number or index + 1}", "type": "function", "function": function}]
    }


PARIS = called(0, "get_weather", '{"city": "Paris"}')


def test_text_passes_byte_for_byte() -> None:
    body = (
        b": hello\n\n"
        + chunk(ROLE)
        + chunk({"reasoning_content": "hm"})
        + said("Hel", "lo, wor", "ld")
        + STOP
        + sse.encode({"choices": [], "usage": {"total_tokens": 1}})
        + DONE
    )
    one = stream()
    assert one.take(body) + one.end() == body
    assert (one.calls, one.malformed, one.stats, one.held) == (0, [], {}, "")


def test_a_call_becomes_a_delta_and_the_finish_reason_tells() -> None:
    one = stream()
    assert one.take(chunk(ROLE) + said("I look.")) == chunk(ROLE) + said("I look.")
    assert one.take(said("\n\n<tool", "_call>\n")) == b""
    assert one.held == "\n\n<tool_call>\n"
    assert one.take(said(P, "\n")) == b""
    out = one.take(said("</tool_call>"))
    assert deltas(out) == [(PARIS, None)]
    assert objects(out)[0]["id"] == "c"
    assert deltas(one.take(STOP)) == [({}, "tool_calls")]
    assert one.take(DONE) == DONE
    assert (one.calls, one.held) == (1, "")
    assert one.stats == {"tool_call": FormCount(called=1)}


def test_text_around_calls_in_one_chunk() -> None:
    one = stream()
    out = one.take(chunk({"role": "assistant", "content": f"A.\n{TAGGED}\n{FENCED}\nB."}, "stop"))
    assert deltas(out) == [
        ({"role": "assistant", "content": "A."}, None),
        (PARIS, None),
        (called(1, "get_weather", '{"city": "Paris"}'), None),
        ({"content": "\nB."}, "tool_calls"),
    ]


def test_a_call_that_ends_with_the_answer() -> None:
    one = stream()
    out = one.take(said(P) + chunk({"content": " "}, "stop", usage={"total_tokens": 9}) + DONE)
    assert deltas(out) == [(PARIS, None), ({}, "tool_calls")]
    assert [o and o.get("usage") for o in objects(out)] == [None, {"total_tokens": 9}, None]


def test_length_stays_length() -> None:
    one = stream()
    assert deltas(one.take(said(TAGGED) + LENGTH)) == [(PARIS, None), ({}, "length")]


def test_what_is_cut_is_held_and_never_half_sent() -> None:
    one = stream()
    assert one.take(said("<tool_call>", P[:-4]) + LENGTH + DONE) + one.end() == b""
    assert one.malformed == [Malformed("<tool_call>" + P[:-4], "tool_call", "cut")]
    assert one.held == "<tool_call>" + P[:-4]
    assert one.calls == 0


def test_from_a_malformed_call_on_everything_waits_for_the_owner() -> None:
    one = stream()
    out = one.take(said("A.\n", WRONG, "\nB.\n", TAGGED, "\nC") + b": ping\n\n" + STOP + DONE) + one.end()
    assert out == said("A.") + b": ping\n\n", "and so does the white space before it"
    assert [wrong.reason for wrong in one.malformed] == ['get_weather: "city" is missing']
    assert one.held.startswith("\n" + WRONG + "\nB.")
    assert one.held_size == len(one.held)
    assert one.calls == 0
    tail = one.rest()
    assert deltas(tail) == [
        ({"content": "\n"}, None),
        ({"content": WRONG}, None),
        ({"content": "\nB."}, None),
        (PARIS, None),
        ({"content": "\nC"}, None),
        ({}, "tool_calls"),
    ]
    assert tail.endswith(DONE)
    assert (one.calls, one.held, one.rest()) == (1, "", b"")
    assert one.stats == {"bare": FormCount(malformed=1), "tool_call": FormCount(called=1)}


def test_giving_up_without_any_call_stays_an_ordinary_answer() -> None:
    one = stream()
    assert one.take(said(WRONG) + STOP + DONE) == b""
    assert deltas(one.rest()) == [({"content": WRONG}, None), ({}, "stop")]


def test_repairs_are_counted() -> None:
    one = stream()
    one.take(said(P[:-1]) + STOP)
    assert one.stats == {"bare": FormCount(called=1, repaired=1)}


def test_functions_of_the_older_api() -> None:
    old = offer_of({"functions": FUNCTIONS})
    assert old is not None
    one = stream(old)
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert deltas(one.take(said(TAGGED) + STOP)) == [({"function_call": function}, None), ({}, "function_call")]


def test_calls_go_on_counting_after_an_earlier_attempt() -> None:
    one = stream(calls_before=2)
    assert deltas(one.take(said(TAGGED) + STOP)) == [
        (called(2, "get_weather", '{"city": "Paris"}', 1), None),
        ({}, "tool_calls"),
    ]


def test_choices_are_read_apart() -> None:
    one = stream()
    half = len(TAGGED) // 2
    out = one.take(
        chunk({"content": TAGGED[:half]})
        + chunk({"content": "plain"}, index=1)
        + chunk({"content": TAGGED[half:]})
        + STOP
        + chunk({}, "stop", index=1)
    )
    found = [o["choices"][0] for o in objects(out)]
    assert [(c["index"], c["delta"], c["finish_reason"]) for c in found] == [
        (1, {"content": "plain"}, None),
        (0, PARIS, None),
        (0, {}, "tool_calls"),
        (1, {}, "stop"),
    ]
    both = {"choices": [{"index": i, "delta": {"content": "{"}, "finish_reason": None} for i in (2, 3)]}
    assert one.take(sse.encode(both)) == b""
    assert one.held == "{{"


@pytest.mark.parametrize("end", [b"", DONE, b'data: {"error": {"message": "x"}}\n\n', b"data: [DONE]"])
def test_held_text_goes_out_before_the_end(end: bytes) -> None:
    one = stream()
    assert one.take(said('{"na')) == b""
    out = one.take(end) + one.end()
    assert out == chunk({"content": '{"na'}) + end


def test_an_end_without_a_finish_reason_completes_nothing() -> None:
    one = stream()
    assert one.take(said(P[:-1])) + one.end() == b""
    assert one.malformed == [Malformed(P[:-1], "bare", "cut")]


def test_other_fields_of_a_delta_pass_when_its_text_is_held() -> None:
    one = stream()
    out = one.take(chunk({"role": "assistant", "content": "{"}) + chunk({"reasoning": "r", "content": '"na'}))
    assert deltas(out) == [({"role": "assistant"}, None), ({"reasoning": "r"}, None)]
    counted = one.take(chunk({"content": "me"}, usage={"total_tokens": 3}))
    assert [(o["choices"][0]["delta"], o["usage"]) for o in objects(counted)] == [({}, {"total_tokens": 3})]


@pytest.mark.parametrize(
    "frame",
    [
        b"data: []\n\n",
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": [5, {"index": "a"}, {"delta": 1}]}\n\n',
        b'data: {"choices": [{"delta": {"content": [1]}}]}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}\n\n',
        b"event: x\n\n",
    ],
)
def test_frames_of_other_kinds_pass(frame: bytes) -> None:
    one = stream()
    assert one.take(frame) == frame
    after = one.take(STOP + frame)
    assert after == STOP + frame


def test_what_comes_after_the_finish_passes() -> None:
    one = stream()
    assert one.take(STOP + said(P)) == STOP + said(P)
    assert one.calls == 0


def joined(parts: Iterable[tuple[Any, Any]]) -> tuple[str, list[Any], Any]:
    """Content, calls and finish reason that a client puts together from deltas."""
    content, calls, finish = "", [], None
    for delta, reason in parts:
        content += delta.get("content") or ""
        calls += [call["function"] for call in delta.get("tool_calls", ())]
        finish = reason or finish
    return content, calls, finish


@pytest.mark.parametrize("row", [*CLEAN, *REPAIRED, *MALFORMED], ids=lambda row: row.name)
def test_every_output_is_read_in_any_chunks(row: Output) -> None:
    """After giving up, too, where there are malformed calls."""
    finish = "length" if row.cut else "stop"
    calls = [{"name": p.name, "arguments": p.arguments} for p in row.pieces if isinstance(p, Call)]
    malformed = [p for p in row.pieces if isinstance(p, Malformed)]
    text = "".join(p.text for p in row.pieces if isinstance(p, Text | Malformed))
    ended = "tool_calls" if calls and not row.cut else finish
    for size in (1, 7, 10_000):
        one = stream()
        pieces = [row.text[at : at + size] for at in range(0, len(row.text), size)]
        out = one.take(said(*pieces) + chunk({}, finish) + DONE) + one.end() + one.rest()
        assert joined(deltas(out)) == (text, calls, ended)
        assert (one.malformed, one.calls) == (malformed, len(calls))


BODY = b": c\r\n\r\n" + chunk(ROLE) + said("A ", f"\n{TAGGED[:30]}", TAGGED[30:], "`{", WRONG) + STOP + DONE


@given(st.sets(st.integers(0, len(BODY)), max_size=9))
def test_no_chunking_of_the_bytes_changes_anything(cuts: set[int]) -> None:
    whole, cut = stream(), stream()
    expected = whole.take(BODY) + whole.end() + whole.rest()
    edges = [0, *sorted(cuts), len(BODY)]
    out = b"".join(cut.take(BODY[a:b]) for a, b in pairwise(edges))
    assert out + cut.end() + cut.rest() == expected


def test_arguments_are_json_text() -> None:
    one = stream()
    (first, _) = deltas(one.take(said(TAGGED) + STOP))
    assert json.loads(first[0]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}

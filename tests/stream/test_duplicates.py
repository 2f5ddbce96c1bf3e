"""An answer that asks for the same twice, in pieces of any size: the client is told once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.jsontext import dumps
from proxy.core.piece import CallPart, Piece
from proxy.stream.duplicates import RepeatedCalls
from tests.stream.support import DONE, FAR, chunk, cut, ending, frame, opening, relayed

PARIS = ("get_weather", '{"city": "Paris"}')
TIGHT = ("get_weather", '{"city":"Paris"}')
LISBON = ("get_weather", '{"city": "Lisbon"}')
SPACED = ("get_weather", '{"city": "Pa ris"}')
NOW = ("now", "{}")


def parts(calls: Iterable[tuple[str, str]], size: int) -> list[CallPart]:
    """The calls as a backend streams them, so many characters of arguments at a time."""
    made: list[CallPart] = []
    for index, (name, arguments) in enumerate(calls):
        made.append(CallPart(name, id=f"c{index}", index=index))
        made += [CallPart("", arguments[at : at + size], index=index) for at in range(0, len(arguments), size)]
    return made


def said(pieces: Iterable[Piece]) -> list[tuple[str, str, str]]:
    """The calls as a client puts them together, each with its id, in a list without gaps."""
    calls: list[list[str]] = []
    for part in (part for piece in pieces for part in piece.calls):
        assert part.index is not None
        assert part.index <= len(calls)
        if part.index == len(calls):
            calls.append(["", "", ""])
        for at, text in enumerate((part.id, part.name, part.arguments)):
            calls[part.index][at] += text
    return [(call[0], call[1], call[2]) for call in calls]


def streamed(calls: Sequence[tuple[str, str]], size: int, *, finish: bool = True) -> tuple[list[Piece], RepeatedCalls]:
    of = RepeatedCalls()
    sent = [each for part in parts(calls, size) for each in of.feed(Piece(calls=(part,), form={}, choice=True))]
    sent += of.feed(Piece(finish="tool_calls", form={}, choice=True)) if finish else of.close()
    return sent, of


def once(calls: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    kept = {
        (name, arguments.replace(": ", ":")): (f"c{n}", name, arguments)
        for n, (name, arguments) in reversed(list(enumerate(calls)))
    }
    return sorted(kept.values(), key=lambda call: int(call[0][1:]))


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    "calls",
    [
        [PARIS, PARIS],
        [PARIS, PARIS, PARIS, NOW],
        [PARIS, LISBON, PARIS, LISBON],
        [NOW, NOW, PARIS],
        [PARIS, TIGHT, NOW],
        [PARIS, SPACED],
        [PARIS, NOW],
    ],
)
def test_what_is_asked_twice_is_told_once(calls: list[tuple[str, str]], size: int, finish: bool) -> None:
    sent, of = streamed(calls, size, finish=finish)
    assert said(sent) == once(calls)
    assert len(of.dropped) == len(calls) - len(once(calls))


@given(st.lists(st.sampled_from([PARIS, TIGHT, LISBON, SPACED, NOW]), max_size=8), st.integers(1, 30))
def test_however_the_calls_come(calls: list[tuple[str, str]], size: int) -> None:
    assert said(streamed(calls, size)[0]) == once(calls)


def test_a_call_is_held_only_while_it_repeats_another() -> None:
    of = RepeatedCalls()
    sent = [of.feed(Piece(calls=(part,), form={}, choice=True)) for part in parts([PARIS, LISBON], 4)]
    later = [any(piece.calls for piece in each) for each in sent[6:]]
    assert later[:3] == [False, False, False]
    assert all(later[3:])
    assert said(each for some in sent for each in some) == once([PARIS, LISBON])


def test_calls_that_all_come_under_one_index_are_told_apart_by_their_ids() -> None:
    """Ollama's way."""
    of = RepeatedCalls()
    calls = [CallPart(*call, id=f"c{n}", index=0) for n, call in enumerate([PARIS, PARIS, NOW])]
    sent = [each for call in calls for each in of.feed(Piece(calls=(call,), form={}, choice=True))]
    assert [(part.id, part.index) for each in sent for part in each.calls] == [("c0", 0), ("c2", 0)]


def test_calls_that_have_no_name_that_is_known_are_left_alone() -> None:
    custom = tuple(CallPart(kind="custom", id=f"c{n}", index=n) for n in range(2))
    of = RepeatedCalls()
    piece = Piece(calls=custom, finish="tool_calls", form={}, choice=True)
    assert of.feed(piece) == [piece]


def test_half_a_call_is_told_though_it_began_like_another() -> None:
    made = parts([PARIS, PARIS], 4)[:-1]
    of = RepeatedCalls()
    sent = [each for part in made for each in of.feed(Piece(calls=(part,), form={}, choice=True))]
    sent += of.feed(Piece(finish="length", form={}, choice=True))
    assert said(sent)[1][2] == '{"city": "Paris"'


def delta(part: CallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": ""} if part.name else {"arguments": part.arguments}
    label = {"id": part.id, "type": "function"} if part.id else {}
    return {"tool_calls": [{"index": part.index, **label, "function": function}]}


@pytest.mark.parametrize("sizes", [(), (1,), (7,), (300, 1)])
def test_a_stream_without_a_repetition_keeps_its_bytes(sizes: tuple[int, ...]) -> None:
    data = opening() + b"".join(frame(chunk(delta(p))) for p in parts([PARIS, NOW], 5)) + ending("tool_calls") + DONE
    assert relayed(FAR, data, sizes) == data


@pytest.mark.parametrize("sizes", [(), (1,), (7,), (300, 1)])
def test_a_stream_with_one_is_the_same_however_its_bytes_are_cut(sizes: tuple[int, ...]) -> None:
    data = (
        opening()
        + b"".join(frame(chunk(delta(p))) for p in parts([PARIS, PARIS, NOW], 5))
        + ending("tool_calls")
        + DONE
    )
    assert b"".join(cut(data, sizes)) == data
    got = relayed(FAR, data, sizes)
    assert got == relayed(FAR, data)
    assert got.count(b"get_weather") == 1
    assert b'"id":"c1"' not in got
    assert b'"id":"c2"' in got.replace(b": ", b":")
    assert dumps({"index": 2})[1:-1] not in got

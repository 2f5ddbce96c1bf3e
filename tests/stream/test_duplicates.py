"""An answer that asks for the same twice, in pieces of any size: the client is told once."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.piece import CallPart, Piece
from proxy.stream.inlet import RepeatedCalls
from tests.stream.support import DONE, FAR, chunk, ending, frame, opening, relayed

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


def fed(of: RepeatedCalls, calls: Iterable[CallPart], finish: str = "") -> list[Piece]:
    sent = [each for part in calls for each in of.feed(Piece(calls=(part,), form={}, choice=True))]
    return sent + (of.feed(Piece(finish=finish, form={}, choice=True)) if finish else of.close())


def once(calls: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    kept = {
        (name, arguments.replace(": ", ":")): (f"c{n}", name, arguments)
        for n, (name, arguments) in reversed(list(enumerate(calls)))
    }
    return sorted(kept.values(), key=lambda call: int(call[0][1:]))


@given(
    st.lists(st.sampled_from([PARIS, TIGHT, LISBON, SPACED, NOW]), max_size=8),
    st.integers(1, 30),
    st.sampled_from(["tool_calls", ""]),
)
@example([PARIS, PARIS, PARIS, NOW], 1, "tool_calls")
@example([PARIS, LISBON, PARIS, LISBON], 3, "")
@example([NOW, NOW, PARIS], 100, "")
@example([PARIS, TIGHT, NOW], 1, "")
@example([PARIS, SPACED], 3, "tool_calls")
def test_a_call_that_is_made_twice_is_passed_on_once(calls: list[tuple[str, str]], size: int, finish: str) -> None:
    dropped: list[str] = []
    assert said(fed(RepeatedCalls(dropped.append), parts(calls, size), finish)) == once(calls)
    assert len(dropped) == len(calls) - len(once(calls))


def test_calls_that_have_no_name_that_is_known_are_left_alone() -> None:
    custom = tuple(CallPart(kind="custom", id=f"c{n}", index=n) for n in range(2))
    piece = Piece(calls=custom, finish="tool_calls", form={}, choice=True)
    assert RepeatedCalls(list[str]().append).feed(piece) == [piece]


def test_half_a_call_is_passed_on_though_it_began_like_another() -> None:
    sent = fed(RepeatedCalls(list[str]().append), parts([PARIS, PARIS], 4)[:-1], "length")
    assert said(sent)[1][2] == '{"city": "Paris"'


def delta(part: CallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": ""} if part.name else {"arguments": part.arguments}
    label = {"id": part.id, "type": "function"} if part.id else {}
    return {"tool_calls": [{"index": part.index, **label, "function": function}]}


@pytest.mark.parametrize("sizes", [(), (1,), (7,), (300, 1)])
@pytest.mark.parametrize("calls", [[PARIS, NOW], [PARIS, PARIS, NOW]])
def test_a_stream_is_the_same_however_its_bytes_are_cut(calls: list[tuple[str, str]], sizes: tuple[int, ...]) -> None:
    deltas = b"".join(frame(chunk(delta(part))) for part in parts(calls, 5))
    data = opening() + deltas + ending("tool_calls") + DONE
    got = relayed(FAR, data, sizes)
    assert got == (data if len(calls) == 2 else relayed(FAR, data))
    assert got.count(b"get_weather") == 1
    assert (b'"c1"' in got) == (len(calls) == 2)

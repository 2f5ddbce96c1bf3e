"""A whole stream in every dialect: the same events however it was cut, and a word that is not parsed like one that is."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.dialect import Dialect
from proxy.stream.events import ChunkReceived, CutOff, Pause, Reopened, ResumeFailed, State, StreamEvent
from proxy.stream.session import StreamSession
from proxy.stream.watch import Watch
from tests.dialects.asking import read
from tests.dialects.streams import SAID, calling, every, writer_of
from tests.stream.support import (
    DONE,
    FAR,
    Attempt,
    answer,
    chunk,
    conversation,
    ending,
    fed,
    frame,
    opening,
    said,
    sent,
    sizes,
    usage,
)
from tests.stream.test_withholding import WATCH as WITHHELD
from tests.stream.test_withholding import call


def session(dialect: Dialect, watch: Watch = FAR) -> StreamSession:
    return StreamSession(watch, answer(), writer_of(dialect))


def text_in(dialect: Dialect, data: bytes) -> str:
    return read(dialect.path.removesuffix("/compact"), data, stream=True).text


_WORDS = st.lists(st.text(min_size=1, max_size=4), max_size=20)


@pytest.mark.no_cover
@every
@given(deltas=SAID, words=_WORDS, calls=st.integers(0, 2), cuts=sizes)
def test_however_a_stream_is_cut_it_is_written_alike(
    dialect: Dialect, deltas: list[dict[str, Any]], words: list[str], calls: int, cuts: list[int]
) -> None:
    body = opening() + b"".join(frame(chunk(delta)) for delta in deltas)
    body += b"".join(map(said, words)) + b"".join(frame(chunk(delta)) for delta in calling(calls))
    body += b"".join(map(said, words)) + ending("tool_calls" if calls else "stop") + usage(9, 9) + DONE
    written = conversation(session(dialect), body, sizes=cuts)
    assert written == conversation(session(dialect), body)
    expected = "".join(delta.get("content", "") for delta in deltas) + "".join(words) * 2
    assert text_in(dialect, written) == expected


@pytest.mark.no_cover
@every
@given(at=st.integers(1, 17), cuts=sizes)
def test_an_answer_that_is_resumed_is_one(dialect: Dialect, at: int, cuts: list[int]) -> None:
    words = [f" word{number}" for number in range(30)]
    first = opening() + b"".join(map(said, words)) + ending() + DONE
    rest = opening(name="two") + b"".join(said(word, name="two") for word in words[at:]) + ending(name="two") + DONE
    watch = Watch(window=1000, pause_point=100 + at, resumable=True)
    data = conversation(session(dialect, watch), first, Attempt(rest, Reopened(40)), sizes=cuts)
    assert text_in(dialect, data) == "".join(words)


@every
def test_a_call_that_is_taken_back_was_never_written(dialect: Dialect) -> None:
    """It does not fit, so it is withheld and asked for again; where frames are numbered, none is missing."""
    first = opening() + said("Well.") + call("x" * 120, pieces=4)
    again = call('{"b": 2}', name="two") + ending("tool_calls", name="two") + DONE
    data = conversation(session(dialect, WITHHELD), first, Attempt(again, Reopened(40)))
    assert text_in(dialect, data) == "Well."
    assert b"xx" not in data
    assert b'"b' in data.replace(b"\\", b"")
    numbers = [int(number) for number in re.findall(rb'"sequence_number": ?(\d+)', data)]
    assert numbers == [*range(len(numbers))]


@every
@pytest.mark.parametrize("event", [ResumeFailed(), CutOff("gone")], ids=lambda event: type(event).__name__)
def test_an_end_of_spillways_own_is_written_in_the_clients_dialect(dialect: Dialect, event: StreamEvent) -> None:
    of = session(dialect, Watch(window=1000, pause_point=105, resumable=True))
    words = [f" word{number}" for number in range(30)]
    out = fed(of, ChunkReceived(opening() + b"".join(map(said, words))))
    assert isinstance(out[-1], Pause)
    data = sent([*out, *fed(of, event)])
    assert of.state is State.DONE
    assert text_in(dialect, data) == "".join(words[:5])
    assert (b"gone" in data) is isinstance(event, CutOff)

"""A client that is answered in another dialect than the backend speaks: one whose frames are numbered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.dialect import Completion
from proxy.core.jsontext import loads
from proxy.core.managing import Managed
from proxy.core.piece import Identity, Piece
from proxy.stream.events import ChunkReceived, Pause, Reopened, ResumeFailed, UpstreamFailed
from proxy.stream.session import State, StreamSession, Watch
from tests.stream.support import (
    DONE,
    FAR,
    Attempt,
    answer,
    conversation,
    ending,
    opening,
    said,
    sizes,
    stream,
    usage,
    words,
)
from tests.stream.test_withholding import WATCH, call

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. Winston Smith slipped in."


class NumberedWriter:
    """Every frame has the next number, and says of what kind it is."""

    media_type = "text/event-stream"
    native = False
    final: dict[str, Any] | None = None

    def __init__(self) -> None:
        self._number = 0

    def manage(self, managed: Managed) -> None:
        del managed

    def more(self, name: str) -> Callable[[str], bytes] | None:
        del name
        return lambda text: self._frame(text=text)

    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        if piece.form is None:
            return self._frame(end=True) if piece.done else b""
        return self._said(piece) + (self._frame(finish=piece.finish) if piece.finish else b"")

    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        return self._said(piece)

    def insert(self, piece: Piece, identity: Identity) -> bytes:
        return self.relay(replace(piece, form=()), identity, role_sent=True)

    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        return finish

    def error(self, body: Mapping[str, Any]) -> bytes:
        return self._frame(error=body["error"]["message"]) + self.end()

    def end(self) -> bytes:
        return self._frame(end=True)

    def body(self, completion: Completion, choices: Sequence[Piece], usage: Mapping[str, Any] | None) -> bytes:
        raise NotImplementedError

    def _said(self, piece: Piece) -> bytes:
        out = self._frame(text=piece.text) if piece.text else b""
        return out + b"".join(self._frame(arguments=part.arguments) for part in piece.calls)

    def _frame(self, **says: Any) -> bytes:
        self._number += 1
        return sse.encode({"number": self._number, **says})


def session(watch: Watch = FAR) -> StreamSession:
    return StreamSession(watch, answer(), NumberedWriter())


def frames(data: bytes) -> list[dict[str, Any]]:
    """What a client reads; the numbers have no gaps."""
    found = [loads(sse.data_of(frame) or b"null") for frame in sse.frames(data)]
    assert [each.pop("number") for each in found] == list(range(1, len(found) + 1))
    return found


@given(sizes)
def test_every_piece_is_written_once_and_in_order(cuts: list[int]) -> None:
    body = b": ping\n\n" + stream(words(TEXT))
    told = [{"text": word} for word in words(TEXT)]
    assert frames(conversation(session(), body, sizes=cuts)) == [*told, {"finish": "stop"}, {"end": True}]


@given(st.integers(1, 17), sizes)
def test_an_answer_that_is_resumed_is_numbered_through(at: int, cuts: list[int]) -> None:
    watch = Watch(window=1000, pause_point=100 + at, resumable=True, vain_resumes=1)
    rest = words(TEXT)[at:]
    data = conversation(session(watch), stream(words(TEXT)), Attempt(stream(rest, name="two")), sizes=cuts)
    found = frames(data)
    assert "".join(each.get("text", "") for each in found) == TEXT
    assert found[-2:] == [{"finish": "stop"}, {"end": True}]


def test_what_is_taken_back_was_never_written() -> None:
    """A call that does not fit is withheld, and asked for again."""
    of = session(WATCH)
    first = opening() + said("Well.") + call("x" * 120, pieces=4)
    again = call('{"b": 2}', name="two") + ending("tool_calls", name="two") + DONE
    found = frames(conversation(of, first, Attempt(again, Reopened(40))))
    assert found[0] == {"text": "Well."}
    assert "".join(each.get("arguments", "") for each in found) == '{"b": 2}'
    assert found[-2:] == [{"finish": "tool_calls"}, {"end": True}]


def test_an_end_that_was_the_windows_is_not_told() -> None:
    of = session(Watch(window=200, pause_point=10_000, resumable=True))
    full = stream(words(TEXT[:40]), "length", more=usage(190, 10))
    found = frames(conversation(of, full, Attempt(stream(words(TEXT[40:]), name="two"), Reopened(50))))
    assert [each["finish"] for each in found if "finish" in each] == ["stop"]


@pytest.mark.parametrize("event", [ResumeFailed(), UpstreamFailed("gone")])
def test_an_end_of_spillways_own_is_written_in_the_clients_dialect(event: Any) -> None:
    of = session(Watch(window=1000, pause_point=105, resumable=True))
    commands = of.handle(ChunkReceived(stream(words(TEXT))))
    assert isinstance(commands[-1], Pause)
    commands += of.handle(event)
    assert of.state is State.DONE
    told = frames(b"".join(getattr(command, "data", b"") for command in commands))
    assert told[-1] == {"end": True}
    assert told[-2] in ({"finish": "length"}, {"error": "gone"})

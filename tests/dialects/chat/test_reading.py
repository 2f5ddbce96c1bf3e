from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.core.piece import Identity
from proxy.core.sse import is_open
from proxy.dialects.chat import ChatReader, ChatWriter
from proxy.dialects.chat.reading import encoded, is_done, object_of
from tests.stream.support import DONE, chunk, ending, frame, said, usage


def test_objects_of_data() -> None:
    assert object_of(b'{"a":1}') == {"a": 1}
    for data in (None, b"", b"[1]", b"[DONE]", b'"x"', b'{"a"', b"\xff"):
        assert object_of(data) is None


def test_the_end_mark() -> None:
    assert DONE == b"data: [DONE]\n\n"
    assert is_done(b"[DONE]")
    assert is_done(b" [DONE] ")
    assert not is_done(b'"[DONE]"')
    assert not is_done(None)


@pytest.mark.parametrize(
    "frame", [said("a"), b"data: [DONE]", b": comm", b"", b'data: {"a":1}', b"event: x", b"data: x\n\n"]
)
def test_whole_frames_are_not_torn(frame: bytes) -> None:
    assert not ChatReader().torn(frame)


@pytest.mark.parametrize("frame", [b'data: {"a', b"data: {", b"data: ", b"data: x\n", b"data: [DO"])
def test_torn_frames(frame: bytes) -> None:
    assert ChatReader().torn(frame)


def test_open_is_what_lacks_its_blank_line() -> None:
    for out in ([], [b""], [DONE], [said("a"), b"\n"], [said("a"), b""], [b"data: x\r\n\r\n"]):
        assert not is_open(out)
    for out in ([b"data: x"], [b"data: x\n"], [DONE, b": c", b""]):
        assert is_open(out)


def test_clean_frames_stay_as_they_came() -> None:
    odd = b'data:{ "choices" : [] }\r\n\r\n'
    assert ChatReader().read(odd).frame is odd
    assert ChatReader().read(frame(chunk({"content": "a"}, event=1))).frame == said("a")
    assert ChatReader().read(frame({"event": 1})).frame == b""


def test_what_can_not_be_written_is_left_out() -> None:
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]
    assert encoded({"choices": nested}) == b""
    while nested:
        nested = nested[0]  # type: ignore[assignment] # freed one by one


def with_timings(finish: bytes, used: bytes) -> bytes:
    read = ChatReader().read
    return ChatWriter().with_usage(read(finish), read(used)).frame


TIMED = frame({**chunk(), "choices": [], "usage": {"prompt_tokens": 1}, "timings": {"cache_n": 1}})


def test_timings_move_back_to_the_finish() -> None:
    assert with_timings(ending(), TIMED) == frame(chunk({}, "stop", timings={"cache_n": 1}))
    assert with_timings(ending(), usage(1, 2)) == ending()
    timed = frame(chunk({}, "stop", timings={"cache_n": 2}))
    assert with_timings(timed, TIMED) == timed


def test_nothing_else_moves_with_them() -> None:
    hostile = TIMED.replace(b"}\n\n", b',"event":{"type":"execute"}}\n\n')
    assert with_timings(ending(), hostile) == with_timings(ending(), TIMED)
    assert with_timings(ending(), b'data: ,"timings":x\n\n') == ending()


def test_they_move_with_a_finish_that_is_written_anew() -> None:
    read, writer = ChatReader().read, ChatWriter()
    moved = writer.with_usage(replace(read(ending()), frame=b"", finish="tool_calls"), read(TIMED))
    expected = chunk({}, "tool_calls", timings={"cache_n": 1})
    assert writer.relay(moved, None, role_sent=True) == frame(expected)
    renamed = writer.relay(moved, Identity("own", 7, "asked"), role_sent=True)
    assert renamed == frame({**expected, "id": "own", "created": 7, "model": "asked"})

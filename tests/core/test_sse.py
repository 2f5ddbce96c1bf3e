from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.jsontext import loads
from proxy.core.sse import FrameSplitter, FrameTooLong, comment, data_of, encode, frames

ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
texts = ("data: x", "data:", "data: y\u2028z", ": c", "event: e", "", "data: \x85", "data: 字", "id")
lines = st.sampled_from([text.encode() for text in texts])
streams = st.lists(st.tuples(lines, ends), max_size=20).map(lambda made: b"".join(a + b for a, b in made))


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    """Blocks as a splitter gives them, read in pieces of these sizes, the last one over and over."""
    splitter = FrameSplitter()
    blocks, at, number = [], 0, 0
    while at < len(data):
        size = sizes[min(number, len(sizes) - 1)]
        blocks.append(splitter.feed(data[at : at + size]))
        at, number = at + size, number + 1
    return [*blocks, splitter.flush()]


def events(data: bytes) -> list[str]:
    """The data of every event, by the letter of the standard, line by line."""
    text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    found: list[str] = []
    pending: list[str] = []
    for line in text.split("\n")[:-1]:
        if line.startswith("data:"):
            pending.append(line[5:].removeprefix(" "))
        elif line == "" and pending:
            found.append("\n".join(pending))
            pending = []
    return found


def test_an_end_at_the_end_of_a_read_is_seen_at_once() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(b"data: a\n\n") == b"data: a\n\n"
    assert splitter.feed(b"data: b\n\ndata: c") == b"data: b\n\n"
    assert splitter.feed(b"\n") == b""
    assert splitter.feed(b"\n") == b"data: c\n\n"
    assert splitter.feed(b"data: d\r\n\r\n") == b"data: d\r\n\r\n"
    assert splitter.flush() == b""


def test_a_last_cr_may_be_half_of_a_crlf() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(b"data: a\r\n\r") == b""
    assert splitter.feed(b"\ndata: b\r\r") == b"data: a\r\n\r\n"
    assert splitter.feed(b"data: c") == b"data: b\r\r"
    assert splitter.flush() == b"data: c"


@given(streams, st.lists(st.integers(1, 12), min_size=1, max_size=12))
@example(data=b"\n\n\n", sizes=[1])
def test_no_byte_is_lost_and_reads_do_not_matter(data: bytes, sizes: list[int]) -> None:
    whole = split(data, [max(1, len(data))])
    pieces = split(data, sizes)
    assert b"".join(whole) == b"".join(pieces) == data
    # Further blank lines mean nothing, so it is no matter how they are cut.
    assert [f for block in whole for f in frames(block) if f.strip()] == [
        f for block in pieces for f in frames(block) if f.strip()
    ]


@given(streams)
def test_frames_are_the_events_of_the_standard(data: bytes) -> None:
    whole, rest = b"".join(split(data, [max(1, len(data))])[:-1]), split(data, [max(1, len(data))])[-1]
    found = [sse_data.decode() for frame in frames(whole) if (sse_data := data_of(frame)) is not None]
    assert b"".join(frames(whole)) == whole
    assert found == events(whole)
    if b"\r" not in data:
        assert found == events(data)
    assert events(rest) == [] or rest.endswith(b"\r")


def test_bytes_fed_one_by_one_take_linear_time() -> None:
    splitter = FrameSplitter()
    frame = b"data: " + b"x" * 500_000 + b"\n\n"
    out = [block for at in range(len(frame)) if (block := splitter.feed(frame[at : at + 1]))]
    assert out == [frame]


@pytest.mark.parametrize("size", [1, 30, 1000])
def test_a_frame_without_end_is_an_error(size: int) -> None:
    splitter = FrameSplitter(limit=100)
    assert splitter.feed(b"data: a\n\ndata: b") == b"data: a\n\n"
    assert FrameSplitter(limit=9).feed(b"data: 1234567890\n\n"), "a long one that ends is one"
    with pytest.raises(FrameTooLong, match="more than 100 bytes"):
        any(splitter.feed(b"x" * size) for _ in range(101))


def test_further_blank_lines_are_pieces_of_their_own() -> None:
    assert frames(b"data: a\n\n\n\ndata: b\n\n") == [b"data: a\n\n", b"\n\n", b"data: b\n\n"]
    assert frames(b"\ndata: a\r\n\r\n\r\ndata: b") == [b"\n", b"data: a\r\n\r\n", b"\r\n", b"data: b"]
    assert frames(b"") == []


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        *((b"data: x\n\n", b"x"), (b"data:x\n\n", b"x"), (b"data:  x\r\n\r\n", b" x"), (b"data: a\ndata: b\n\n", b"a\nb")),
        (b"data: a\rid: 1\ndata:b\n\n", b"a\nb"),
        *((b"event: error\ndata: x\n\n", b"x"), (b"data: x", b"x"), (b"data: x\n", b"x"), (b"data:\n\n", b"")),
        *((b": comment\n\n", None), (b"event: ping\n\n", None), (b"database: x\n\n", None), (b"\n\n", None)),
        ("data: a\u2028b\u0085c\n\n".encode(), "a\u2028b\u0085c".encode()),
    ],
)
def test_data_of_a_frame(frame: bytes, data: bytes | None) -> None:
    assert data_of(frame) == data


values = st.recursive(
    st.none() | st.integers(-(2**53), 2**53) | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=9
)


@given(values)
def test_encoded_values_are_one_line_and_come_back(value: Any) -> None:
    frame = encode(value)
    assert frame.count(b"\n") == 2
    assert b"\r" not in frame
    data = data_of(frame)
    assert data is not None
    assert loads(data) == value


def test_a_comment_can_not_end_early() -> None:
    assert comment("a\r\nb\n\ndata: x") == b": a  b  data: x\n\n"
    assert comment() == b": \n\n"
    assert data_of(comment("\ud83d")) is None

"""What is fuzzed, and what holds for every input: a target raises nothing, unless one of these is broken.

No exception but the declared ones; the same result wherever the input was cut; no more out than may come out. That it
takes linear time and bounded memory is seen by whoever runs it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from proxy.core import sse
from proxy.core.piece import Piece
from proxy.dialects.chat.answers import is_torn, read_completion, read_frame
from proxy.emulation.reader import WrittenCallReader
from proxy.stream.answer import Answer
from proxy.stream.events import ChunkReceived, CutOff, Finish, State, UpstreamEnded
from tests.emulation.outputs import offer, scanned
from tests.stream.support import Command, Send, fed, session
from tests.stream.support import joined as joined_commands

Target: TypeAlias = Callable[[bytes], None]

CUTS = 8
"""Bytes at the front of an input that say where the rest is cut."""
SINGLY = 300
"""Bytes that come one by one, where they do; the rest comes in one piece, which is much faster."""
MOST_GROWTH = 64
"""Bytes that a session may write for each byte it reads, and so many more: it writes whole frames about less."""
_OFFER = offer()


def cut(data: bytes) -> tuple[bytes, list[bytes]]:
    """An input without the bytes that say how it is cut, and in pieces."""
    places, rest = data[:CUTS], data[CUTS:]
    if places[:1] == b"\xff":
        singly = [rest[at : at + 1] for at in range(min(len(rest), SINGLY))]
        return rest, [*singly, rest[SINGLY:]] if len(rest) > SINGLY else singly
    at = sorted({256 * a + b for a, b in zip(places[::2], places[1::2], strict=False)} | {0})
    at = [*(place for place in at if place < len(rest)), len(rest)]
    return rest, [rest[a:b] for a, b in pairwise(at)]


# -- event streams


def events(data: bytes) -> None:
    """Frames are cut where the standard has it, wherever reads end; nothing is lost, added or moved."""
    data, pieces = cut(data)
    splitter = sse.FrameSplitter()
    blocks = [*(splitter.feed(piece) for piece in pieces), splitter.flush()]
    assert b"".join(blocks) == data
    found = [frame for block in blocks for frame in sse.frames(block)]
    assert b"".join(found) == data
    whole = sse.FrameSplitter()
    closed, rest = whole.feed(data), whole.flush()
    assert said(found) == said([*sse.frames(closed), *sse.frames(rest)])
    # A frame that is an object, or an error of llama-server's, counts as data too; to the standard it is nothing.
    bare = (b"{", sse.ERROR_FIELD)
    heard = [frame for frame in sse.frames(closed) if dispatched(frame) or not frame.startswith(bare)]
    told = [body for frame in heard if (body := sse.data_of(frame)) is not None]
    assert told == dispatched(closed), "not what the standard says"


def said(frames: Iterable[bytes]) -> list[bytes]:
    """The frames without blank lines between them, which mean nothing."""
    return [frame for frame in frames if frame.strip(b"\r\n")]


def dispatched(data: bytes) -> list[bytes]:
    """The data of every event, by the letter of the standard (WHATWG HTML, 9.2.6), but for the byte order mark."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    found, pending = list[bytes](), list[bytes]()
    for line in lines:
        if line.startswith(b"data:"):
            pending.append(line[5:].removeprefix(b" "))
        elif not line and pending:
            found.append(b"\n".join(pending))
            pending = []
    return found


# -- chunks of chat completions


def chunks(data: bytes) -> None:
    """Whatever a frame or a body holds, it is read."""
    answer = Answer(0, len)
    for frame in sse.frames(data):
        answer.add(read_frame(frame))
        is_torn(frame)
    if (came := read_completion(data)) is not None:
        for piece in came.choices:
            answer.add(piece)


def streams(data: bytes) -> None:
    """An answer ends, and is the same, wherever it is cut; broken off, it ends as well."""
    data, pieces = cut(data)
    out = driven(pieces)
    assert out == driven([data] if data else [])
    sent = sum(len(command.data) for command in out if isinstance(command, Send))
    assert sent <= MOST_GROWTH * (len(data) + MOST_GROWTH)
    broken = driven(pieces, CutOff("It broke off."))
    assert isinstance(broken[-1], Finish) or broken == out


def driven(pieces: Sequence[bytes], end: UpstreamEnded | CutOff | None = None) -> list[Command]:
    of, out = session(), list[Command]()
    for piece in pieces:
        if of.state is not State.RELAYING:
            break
        out += fed(of, ChunkReceived(piece))
    if of.state is State.RELAYING:
        out += fed(of, end or UpstreamEnded())
    return joined_commands(out)


# -- tool calls that were written as text


def calls(data: bytes) -> None:
    """Calls are found wherever the text was cut; what is none is handed out, all of it, or held."""
    data, pieces = cut(data)
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    for short in (False, True):
        assert scanned(texts, cut=short) == scanned(["".join(texts)], cut=short)
    text, made = leaked(texts)
    assert (text, made) == leaked(["".join(texts)])
    assert "".join(texts).startswith(text) if made else "".join(texts) == text


def leaked(texts: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    """What is left of a text, and the calls that leaked into it."""
    reader = WrittenCallReader(_OFFER, lambda: "id", emulated=False)
    out = [each for text in texts for each in reader.feed(Piece(text=text, form={}, choice=True))]
    out += reader.feed(Piece(finish="stop", form={}, choice=True))
    made = [(call.name, call.arguments) for piece in out for call in piece.calls]
    return "".join(piece.text for piece in out), made


TARGETS: dict[str, Target] = {target.__name__: target for target in (events, chunks, streams, calls)}

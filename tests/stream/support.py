"""Streams as backends send them, and a driver that reads what a client would get."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hypothesis import strategies as st

from proxy.core.jsontext import dumps, loads
from proxy.dialects.chat.answers import DONE as DONE  # noqa: PLC0414 - the tests take it from here
from proxy.dialects.chat.answers import ChatWriter
from proxy.stream.answer import Answer
from proxy.stream.events import (
    LEGAL,
    ChunkReceived,
    Finish,
    Pause,
    Reopened,
    ResumeFailed,
    Retry,
    Stop,
    StreamEvent,
    UpstreamEnded,
)
from proxy.stream.session import StreamSession
from proxy.stream.watch import Watch


@dataclass(frozen=True, slots=True)
class Send:
    data: bytes


Command: TypeAlias = Send | Stop

FAR = Watch(window=100_000, pause_point=90_000, resumable=True)


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, *, name: str = "one", **more: Any) -> dict[str, Any]:
    """A chunk, in llama.cpp's order of fields."""
    choice = {"finish_reason": finish, "index": 0, "delta": {} if delta is None else delta}
    return {"choices": [choice], "created": 5, "id": name, "model": "m", "object": "chat.completion.chunk", **more}


def frame(value: Any) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"


def said(text: str, **fields: Any) -> bytes:
    return frame(chunk({"content": text}, **fields))


def opening(**fields: Any) -> bytes:
    return frame(chunk({"role": "assistant", "content": None}, **fields))


def ending(finish: str = "stop", **fields: Any) -> bytes:
    return frame(chunk({}, finish, **fields))


def usage(prompt: int, completion: int, **fields: Any) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return frame({**chunk(**fields), "choices": [], "usage": counts})


def stream(pieces: Iterable[str], finish: str = "stop", *, name: str = "one", more: bytes = b"") -> bytes:
    """A whole answer, one delta per piece."""
    body = b"".join(said(piece, name=name) for piece in pieces)
    return opening(name=name) + body + ending(finish, name=name) + more + DONE


def words(text: str) -> list[str]:
    """A token for each word, with the space before it."""
    return re.findall(r"\s*\S+|\s+$", text)


def answer(prompt: int = 100, count: Callable[[str], int] = len) -> Answer:
    return Answer(prompt, count)


def session(watch: Watch = FAR, prompt: int = 100, count: Callable[[str], int] = len) -> StreamSession:
    return session_of(watch, answer(prompt, count))


def session_of(watch: Watch, of: Answer) -> StreamSession:
    return StreamSession(watch, of, ChatWriter())


def fed(of: StreamSession, event: StreamEvent) -> list[Command]:
    data, stop = of.handle(event)
    return [*([Send(data)] if data else ()), *([] if stop is None else [stop])]


def commands(of: StreamSession, data: bytes, sizes: Sequence[int] = ()) -> list[Command]:
    """What comes of a body in pieces of these sizes, the last one over and over; neighbouring sends as one."""
    out: list[Command] = []
    for piece in cut(data, sizes):
        if (of.state, ChunkReceived) not in LEGAL:
            break
        out += fed(of, ChunkReceived(piece))
    if (of.state, UpstreamEnded) in LEGAL:
        out += fed(of, UpstreamEnded())
    return joined(out)


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    pieces, at, number = [], 0, 0
    while at < len(data):
        size = sizes[min(number, len(sizes) - 1)] if sizes else len(data)
        pieces.append(data[at : at + size])
        at, number = at + size, number + 1
    return pieces


def joined(out: Iterable[Command]) -> list[Command]:
    merged: list[Command] = []
    for command in out:
        if isinstance(command, Send) and merged and isinstance(merged[-1], Send):
            merged[-1] = Send(merged[-1].data + command.data)
        else:
            merged.append(command)
    return merged


def sent(out: Iterable[Command]) -> bytes:
    return b"".join(command.data for command in out if isinstance(command, Send))


def relayed(watch: Watch, data: bytes, sizes: Sequence[int] = ()) -> bytes:
    """The client's bytes of an answer that is not paused."""
    out = commands(session(watch), data, sizes)
    assert isinstance(out[-1], Finish), out
    return sent(out)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A further attempt: its stream, and how it was asked for."""

    data: bytes
    event: Reopened = field(default_factory=lambda: Reopened(100))


def conversation(of: StreamSession, first: bytes, *others: Attempt, sizes: Sequence[int] = ()) -> bytes:
    """Drive a session through several attempts; a pause without a next one is refused."""
    out = commands(of, first, sizes)
    for other in others:
        assert isinstance(out[-1], Pause | Retry), out
        out += fed(of, other.event)
        out += commands(of, other.data, sizes)
    if isinstance(out[-1], Pause | Retry):
        out += fed(of, ResumeFailed())
    assert isinstance(out[-1], Finish), out
    return sent(out)


@dataclass(slots=True)
class Client:
    """What a strict client makes of a stream."""

    text: str = ""
    reasoning: str = ""
    ids: set[str | None] = field(default_factory=set)
    roles: int = 0
    finishes: list[str] = field(default_factory=list)
    done: int = 0
    usages: list[dict[str, Any]] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)


def read(data: bytes) -> Client:
    """Read a stream; everything in it must be a well-formed frame, and nothing may follow the end."""
    client = Client()
    assert data.endswith(b"\n\n") or not data
    for block in data.split(b"\n\n"):
        for line in block.split(b"\n"):
            if not line or line.startswith(b":"):
                continue
            assert line.startswith(b"data: "), line
            assert client.done == 0, "nothing comes after [DONE]"
            if line == b"data: [DONE]":
                client.done += 1
            else:
                _take(client, loads(line[6:]))
    return client


def _take(client: Client, value: dict[str, Any]) -> None:
    client.chunks.append(value)
    if "error" in value:
        client.errors.append(value["error"])
        return
    client.ids.add(value.get("id"))
    if value.get("usage"):
        client.usages.append(value["usage"])
    for choice in value["choices"]:
        delta = choice["delta"]
        client.text += delta.get("content") or ""
        client.reasoning += delta.get("reasoning_content") or ""
        client.roles += "role" in delta
        client.calls += delta.get("tool_calls") or []
        if choice["finish_reason"]:
            client.finishes.append(choice["finish_reason"])


def one_answer(client: Client, text: str, finish: str = "stop") -> None:
    """One id, one role, one finish, one end, and this text."""
    assert client.text == text
    assert (len(client.ids), client.roles, client.finishes, client.done) == (1, 1, [finish], 1)
    assert client.errors == []


# -- random streams

ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "choices", "delta", "content", "error", "usage", "created", "event", "type", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@st.composite
def odd_chunks(draw: st.DrawFn) -> dict[str, Any]:
    """Chunks with any field replaced by anything."""
    value = chunk({"content": draw(st.text(max_size=6))}, draw(st.sampled_from([None, "stop", "length", ""])))
    for name in draw(st.sets(st.sampled_from([*value, "usage", "error", "timings", "event", "type"]), max_size=2)):
        value[name] = draw(anything)
    if draw(st.booleans()):
        value["choices"] = [
            {
                "index": draw(st.just(0) | anything),
                "delta": draw(
                    anything | st.dictionaries(st.sampled_from(["content", "tool_calls", "role", "reasoning"]), anything)
                ),
                "finish_reason": draw(anything),
            }
        ]
    return value


@st.composite
def lines(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> bytes:
    """One frame in any of the forms that SSE allows."""
    end = draw(ends)
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return b": ping" + end + end
    data = dumps(draw(values))
    if kind == 1:
        at = draw(st.sampled_from([0, 1, len(data) - 1, len(data)]))  # no line end in a string
        return b"data: " + data[:at] + end + b"data:" + data[at:] + end + end
    if kind == 2:
        return b"event: error" + end + b"data: " + data + end + end
    if kind == 3:
        return b"id: 7" + end + b"retry: 10" + end + b"data: " + data + end + end + end
    if kind == 4:
        blank = draw(ends)
        blank = end if end + blank == b"\r\n" else blank  # else it is one line end, and the frame goes on
        return b"data:" + data + end + blank + draw(st.sampled_from([b"", b"\n", b"\r\n\n"]))
    return b"data: " + data + b"\n\n"


def bodies(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    tail = st.sampled_from([b"", DONE, b"data: [DONE]", b'data: {"choi', b"data: [DONE]\r\n\r\n"])
    return st.tuples(st.lists(lines(values), max_size=12), tail).map(lambda made: b"".join(made[0]) + made[1])


sizes = st.lists(st.integers(1, 40), max_size=20)

"""What backends send, as pieces, for the tests of those who write them in other dialects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.piece import CallPart, Identity, Piece
from proxy.dialects.chat.reading import read_frame

WORDS = st.text(min_size=1, max_size=30)

Said = dict[str, Any]
"""An answer: its `thought` and `text`, and its `calls`, each a name and arguments."""


def answers(names: st.SearchStrategy[str], arguments: st.SearchStrategy[Said]) -> st.SearchStrategy[Said]:
    """Answers that say something, or call something."""
    calls = st.lists(st.tuples(names, arguments), max_size=3)
    said = {"thought": st.just("") | WORDS, "text": st.just("") | WORDS, "calls": calls}
    return st.fixed_dictionaries(said).filter(lambda each: each["text"] or each["calls"])


def _as_json(_: str, arguments: Said) -> str:
    return json.dumps(arguments)


def piece_of(said: Said, *, call: str = "call", written: Callable[[str, Said], str] = _as_json) -> Piece:
    """An answer in one piece; `call`: how the ids of calls begin, `written`: a tool's arguments as a model writes them."""
    calls = tuple(
        CallPart(name, written(name, arguments), id=f"{call}_{index}", index=index)
        for index, (name, arguments) in enumerate(said["calls"])
    )
    return Piece(
        form={},
        choice=True,
        text=said["text"],
        thought=said["thought"],
        calls=calls,
        finish="tool_calls" if calls else "stop",
        identity=Identity("chatcmpl-1", 1_700_000_000, "m"),
    )


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> Piece:
    """A chunk with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "created": 7, "model": "m", "choices": [choice], **more}
    return read_frame(sse.encode(body))


def events(stream: bytes) -> list[dict[str, Any]]:
    """Named events, less the comments between them; the name is that in the data."""
    found = []
    for frame in sse.frames(stream):
        if not frame.startswith(b":"):
            named, data = frame.decode().strip().split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert named == f"event: {found[-1]['type']}"
    return found


def called(index: int, name: str = "", arguments: str = "", call_id: str = "") -> dict[str, Any]:
    """A piece of a tool call."""
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return {"tool_calls": [{"index": index, **({"id": call_id} if call_id else {}), "function": function}]}


def usage(**counts: Any) -> Piece:
    """The chunk at the end that counts."""
    return read_frame(sse.encode({"id": "chatcmpl-1", "choices": [], "usage": counts}))


def failure(**error: Any) -> Piece:
    """A frame that reports an error."""
    return read_frame(sse.encode({"error": error}))


SAID = st.lists(
    st.one_of(
        st.text(min_size=1).map(lambda text: {"content": text}),
        st.text(min_size=1).map(lambda text: {"reasoning_content": text}),
        st.just({"role": "assistant", "content": ""}),
    ),
    max_size=12,
)
"""Deltas of an answer that calls nothing."""


def calling(count: int) -> list[dict[str, Any]]:
    """Deltas of as many calls of `f`, which come interleaved."""
    begun = [called(index, "f", '{"a":', f"call_{index}") for index in range(count)]
    return [*begun, *(called(index, arguments=f"{index}}}") for index in range(count))]


def all_of(said: list[dict[str, Any]], field: str) -> str:
    """What these deltas say in a field."""
    return "".join(delta.get(field, "") for delta in said)

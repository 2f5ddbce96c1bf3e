"""Reading an answer in chunks of chat completions, or one that came in one body.

Fields: OpenAI API reference, "The chat completion chunk object" (2026), and what llama-server, vLLM, Ollama and
OpenRouter add to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy.core import sse
from proxy.core.dialect import Completion
from proxy.core.errors import STREAM_FAILED, UpstreamUnavailable
from proxy.core.jsontext import dumps, loads, loads_object, omit
from proxy.core.piece import CallPart, Identity, Piece, as_count
from proxy.core.request import THOUGHT_FIELDS
from proxy.dialects.bodies import dict_in, dicts_in, text_in

DONE = b"data: [DONE]\n\n"
"""The frame that ends a stream of chunks (OpenAI API reference, "Streaming")."""
_GARBLED = UpstreamUnavailable(
    "The backend sent data that can't be read, in which a part of the answer may be lost.", code=STREAM_FAILED
).body()
"""What takes the place of data that is no JSON: no client could read it either."""
_PRIVILEGED = {"event", "selected_model_id"}
"""Keys that are Spillway's to send, as a type of `response.…` is: Open WebUI 0.12 obeys them, and one runs code in its page."""
_SUSPECT = re.compile(rb'"(?:event|selected_model_id|type)"|\\u00[2567]')
"""What such a key looks like, or may: letters can be escaped."""
_MEANINGFUL = {"choices", "error", "usage"}
_EMPTY: tuple[Any, ...] = (None, "", [])
"""Values of fields of a delta that are there for its form only."""


def read_frame(frame: bytes) -> Piece:
    """Read a complete frame of a stream."""
    data = sse.data_of(frame)
    if not data:
        return Piece(frame=frame, aside=data is None)
    if data.strip() == b"[DONE]":
        return Piece(frame=frame, done=True)
    # Open WebUI reads line by line, and would obey one of several lines that is privileged by itself.
    rewritten = b"\n" in data and _SUSPECT.search(data) is not None
    try:
        chunk = loads(data)
    except ValueError:
        return piece_of(_GARBLED, sse.encode(_GARBLED))
    if not isinstance(chunk, dict):
        return Piece(frame=b"" if rewritten else frame)
    suspect = "type" in chunk or not _PRIVILEGED.isdisjoint(chunk)
    if suspect and (allowed := _unprivileged(chunk)) is not chunk:
        chunk, rewritten = allowed, True
        if not _MEANINGFUL & chunk.keys():
            return Piece()
    return piece_of(chunk, sse.encode(chunk) if rewritten else frame)


def _unprivileged(chunk: dict[str, Any]) -> dict[str, Any]:
    """A chunk without what a backend must not send; the same object if there is nothing of that."""
    gone = _PRIVILEGED & chunk.keys()
    if "type" in chunk and str(chunk["type"]).startswith("response."):
        gone.add("type")
    return omit(chunk, *gone) if gone else chunk


def is_torn(frame: bytes) -> bool:
    """Return whether the last frame of a stream was cut off in the middle of its JSON, or before it."""
    if sse.is_closed(frame):
        return False
    data = sse.data_of(frame)
    if data is None:
        return bool(frame.strip()) and b":" not in frame
    return data.strip() != b"[DONE]" and loads_object(data) is None


def piece_of(chunk: dict[str, Any], frame: bytes) -> Piece:
    """The piece in a parsed chunk. Any JSON object may be handed in."""
    choices = chunk.get("choices")
    listed = choices if isinstance(choices, list) else []
    piece = _choice_piece(chunk, listed[0] if listed else None, frame)
    if piece.choice or "id" in chunk:
        piece.identity = identity_of(chunk)
    if len(listed) > 1:
        piece.alone = ""
        piece.other_choices = tuple(_choice_piece(chunk, choice, b"") for choice in listed[1:])
    piece.error = chunk.get("error") or None
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        piece.usage = usage
        piece.prompt_tokens = as_count(usage.get("prompt_tokens"))
        piece.completion_tokens = as_count(usage.get("completion_tokens"))
        piece.alone = ""  # vLLM counts while it generates (`continuous_usage_stats`)
    elif isinstance(timings := chunk.get("timings"), dict):
        if "cache_n" in timings:  # older ones do not tell the cached part of the prompt
            piece.prompt_tokens = as_count(timings["cache_n"]) + as_count(timings.get("prompt_n"))
        piece.completion_tokens = as_count(timings.get("predicted_n"))
        piece.alone = ""  # so does llama-server (`timings_per_token`)
    piece.trailer = bool(usage) and not choices
    return piece


def identity_of(chunk: dict[str, Any]) -> Identity:
    """Read the identity off a chunk."""
    extra = {"system_fingerprint": chunk["system_fingerprint"]} if "system_fingerprint" in chunk else {}
    return Identity(text_in(chunk, "id"), as_count(chunk.get("created")), text_in(chunk, "model"), extra)


def _choice_piece(chunk: dict[str, Any], choice: Any, frame: bytes) -> Piece:
    if not isinstance(choice, dict):
        return Piece(frame=frame, form=(chunk, None))
    finish, index, delta = choice.get("finish_reason"), choice.get("index"), choice.get("delta")
    piece = Piece(frame=frame, form=(chunk, choice), choice=True)
    if index:
        piece.index = index if isinstance(index, int) else -1
    if finish and isinstance(finish, str):
        piece.finish = finish
        piece.stopped = text_in(choice, "stop_reason")  # vLLM's
    if isinstance(delta, dict):
        content = {name: value for name, value in delta.items() if name != "role" and value not in _EMPTY}
        piece.role = bool(delta.get("role"))
        piece.text, piece.thought = text_in(content, "content"), thought_of(content)
        piece.more = piece.role or len(content) > ("content" in content)
        if len(content) == 1 and not finish and (piece.text or piece.thought):
            (piece.alone,) = content
        if "tool_calls" in content:
            piece.calls = tuple(map(_call, dicts_in(content, "tool_calls")))
    return piece


def thought_of(delta: dict[str, Any]) -> str:
    """The reasoning of a delta or message; empty if it has none."""
    for name in THOUGHT_FIELDS:
        if name in delta and (thought := text_in(delta, name)):
            return thought
    return ""


def _call(call: dict[str, Any]) -> CallPart:
    function, index = dict_in(call, "function"), call.get("index")
    return CallPart(
        text_in(function, "name"),
        text_in(function, "arguments"),
        id=text_in(call, "id"),
        index=index if isinstance(index, int) else None,
        kind=text_in(call, "type") or "function",
    )


# -- bodies


def read_completion(body: bytes) -> Completion | None:
    """Read a body that is no stream; None for what is no JSON object."""
    if (parsed := loads_object(body)) is None:
        return None
    head = {**_unprivileged(parsed), "object": "chat.completion.chunk"}
    return Completion(
        body=body,
        form=parsed,
        choices=tuple(
            piece_of({**head, "choices": [_as_delta(choice)]}, b"") for choice in dicts_in(parsed, "choices")
        ),
        usage=parsed["usage"] if isinstance(parsed.get("usage"), dict) else None,
        is_error="error" in parsed and not parsed.get("choices"),
    )


def completion_of(text: str, identity: Identity, finish: str | None = "stop") -> Completion:
    """Build an answer that says this; without a finish reason it is one that is still to be written."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    head = {"id": identity.id, "object": "chat.completion", "created": identity.created, "model": identity.model}
    completion = read_completion(dumps({**head, "choices": [choice]}))
    assert completion is not None  # it is JSON
    return completion


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    delta = {"role": "assistant", **dict_in(choice, "message")}
    if isinstance(delta.get("tool_calls"), list):
        delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(dicts_in(delta, "tool_calls"))]
    rest: dict[str, Any] = {name: choice[name] for name in ("index", "finish_reason", "stop_reason") if name in choice}
    return {**rest, "delta": delta}


def pieces_of(body: bytes) -> Sequence[Piece]:
    """The pieces in which a stream would hold the first choice of a body; empty: there is none."""
    completion = read_completion(body)
    return () if completion is None or not completion.choices else as_stream(completion, completion.choices[:1])


def as_stream(completion: Completion, choices: Sequence[Piece]) -> list[Piece]:
    """The pieces in which a stream would hold these choices of a body, with its usage and the end mark."""
    pieces = [part for piece in choices for part in _parts(piece)]
    if completion.usage is not None:
        chunk = {**_unprivileged(completion.form), "object": "chat.completion.chunk", "choices": []}
        pieces.append(piece_of(chunk, sse.encode(chunk)))
    return [*pieces, Piece(frame=DONE, done=True)]


def _parts(piece: Piece) -> list[Piece]:
    """Return the pieces of one choice: text and reasoning, calls, end. A body that tells no reason is complete."""
    calls, blank = piece.calls, piece.blank()
    finish = piece.finish or ("tool_calls" if calls else "stop")
    content = replace(piece.uncounted(), calls=(), finish=None)
    return [content, *([replace(blank, calls=calls)] if calls else []), replace(blank, finish=finish)]

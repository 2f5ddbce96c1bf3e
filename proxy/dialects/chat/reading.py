"""Reading an answer in chunks of chat completions, or one that came whole.

Fields: OpenAI API reference, "The chat completion chunk object" (2026), and what llama-server, vLLM, Ollama and
OpenRouter add to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.core import sse
from proxy.core.dialect import WholeAnswer
from proxy.core.jsontext import loads
from proxy.core.piece import CallPart, Identity, Piece, calls_finish, whole_number
from proxy.core.request import THOUGHT_FIELDS
from proxy.dialects.bodies import text_in

DONE = b"data: [DONE]\n\n"
"""The frame that ends a stream of chunks (OpenAI API reference, "Streaming")."""
_GARBLED = {
    "error": {
        "message": "The backend sent data that can't be read, in which a part of the answer may be lost.",
        "type": "upstream_error",
        "code": "upstream_failed",
        "param": None,
    }
}
"""What takes the place of data that is no JSON: no client could read it either."""
_TEXT_FIELDS = ("content", *THOUGHT_FIELDS)
_TALLIES = {"usage": (b'"usage":', b'"completion_tokens":'), "timings": (b'"timings":', b'"predicted_n":')}
"""Where vLLM (`continuous_usage_stats`) and llama-server (`timings_per_token`) count while they generate."""


_PRIVILEGED, _PRIVILEGED_TYPE = ("event", "selected_model_id"), "response."
"""Keys, and how a type begins, that are Spillway's to send: Open WebUI 0.12 obeys them, and one of them runs code in its page."""
_MEANINGFUL = {"choices", "error", "usage"}


class ChatReader:
    """Reads chunks."""

    def read(self, frame: bytes) -> Piece:
        """Read a frame."""
        data = sse.data_of(frame)
        if data is None:
            return Piece(frame=frame, aside=True)
        chunk = object_of(data)
        if _smuggles(frame):
            return Piece()
        if chunk is None:
            done = is_done(data)
            lost = data and not done and _is_garbled(data)
            return piece_of(_GARBLED, sse.encode(_GARBLED)) if lost else Piece(frame=frame, done=done)
        rest = unprivileged(chunk)
        return piece_of(rest, frame if rest is chunk else encoded(rest))

    def torn(self, frame: bytes) -> bool:
        """Return whether the last frame of a stream was cut off in the middle of its JSON, or before it."""
        data = sse.data_of(frame)
        if sse.is_closed(frame) or is_done(data):
            return False
        if data is None:
            return bool(frame.strip()) and b":" not in frame
        return _is_garbled(data)

    def read_body(self, body: bytes) -> WholeAnswer | None:
        """Read a body: each choice as the chunk that would say it."""
        parsed = object_of(body)
        if parsed is None:
            return None
        choices, usage = parsed.get("choices"), parsed.get("usage")
        listed = [choice for choice in (choices if isinstance(choices, list) else ()) if isinstance(choice, dict)]
        return WholeAnswer(
            form=parsed,
            body=body,
            read=partial(_pieces, parsed, listed),
            finish=(text_in(listed[0], "finish_reason") or None) if listed else None,
            usage=usage if isinstance(usage, dict) else None,
            model=text_in(parsed, "model"),
            refused="error" in parsed and not choices,
        )

    def chunks(self, answer: WholeAnswer, choices: Sequence[Piece]) -> list[Piece]:
        """The pieces in which a stream would say these choices of a body."""
        pieces = [part for piece in choices for part in _parts(piece)]
        if answer.usage is not None:
            chunk = unprivileged({**answer.form, "object": "chat.completion.chunk", "choices": []})
            pieces.append(piece_of(chunk, encoded(chunk)))
        return [*pieces, Piece(frame=DONE, done=True)]


def _parts(piece: Piece) -> list[Piece]:
    """Return the pieces of one choice: text and reasoning, calls, end. A body that tells no reason is complete."""
    calls, blank = piece.calls, piece.blank()
    finish = piece.finish or (calls_finish(legacy=calls[0].legacy) if calls else "stop")
    begun = replace(piece.uncounted(), calls=(), finish=None)
    return [begun, *([replace(blank, calls=calls)] if calls else []), replace(blank, finish=finish)]


def _pieces(parsed: dict[str, Any], choices: Sequence[dict[str, Any]]) -> tuple[Piece, ...]:
    head = {**unprivileged(parsed), "object": "chat.completion.chunk"}
    return tuple(piece_of({**head, "choices": [_as_delta(choice)]}, b"") for choice in choices)


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
        piece.prompt_tokens = whole_number(usage.get("prompt_tokens"))
        piece.completion_tokens = whole_number(usage.get("completion_tokens"))
        piece.tally = _TALLIES["usage"]
    elif isinstance(timings := chunk.get("timings"), dict):
        if "cache_n" in timings:  # older ones do not tell the cached part of the prompt
            piece.prompt_tokens = whole_number(timings["cache_n"]) + whole_number(timings.get("prompt_n"))
        piece.completion_tokens = whole_number(timings.get("predicted_n"))
        piece.tally = _TALLIES["timings"]
    if piece.tally is not None and not piece.completion_tokens:
        piece.alone = ""
    piece.trailer = bool(usage) and not choices
    return piece


def _is_garbled(data: bytes) -> bool:
    """Return whether it is no JSON."""
    try:
        loads(data)
    except ValueError:
        return True
    return False


def identity_of(chunk: dict[str, Any]) -> Identity:
    """Read off a chunk."""
    extra = {"system_fingerprint": chunk["system_fingerprint"]} if "system_fingerprint" in chunk else {}
    return Identity(text_in(chunk, "id"), whole_number(chunk.get("created")), text_in(chunk, "model"), extra)


def _choice_piece(chunk: dict[str, Any], choice: Any, frame: bytes) -> Piece:
    if not isinstance(choice, dict):
        return Piece(frame=frame, form=(chunk, None))
    finish, index = choice.get("finish_reason"), choice.get("index")
    piece = Piece(frame=frame, form=(chunk, choice), choice=True)
    if index:
        piece.index = index if isinstance(index, int) else -1
    if finish and isinstance(finish, str):
        piece.finish = finish
        piece.stopped = text_in(choice, "stop_reason")  # vLLM's
    delta = choice.get("delta")
    if isinstance(delta, dict):
        piece.text, piece.thought = text_in(delta, "content"), thought_of(delta)
        piece.role = bool(delta.get("role"))
        piece.calls = _calls(delta)
        names = [name for name, value in delta.items() if name != "role" and not says_nothing(value)]
        piece.more = piece.role or any(name != "content" for name in names)
        if len(names) == 1 and not finish and names[0] in _TEXT_FIELDS and isinstance(delta[names[0]], str):
            piece.alone = names[0]
    return piece


def says_nothing(value: Any) -> bool:
    """Return whether a field of a delta is there for its form only."""
    return value in (None, "", [])


def thought_of(delta: dict[str, Any]) -> str:
    """The reasoning of a delta; empty if it has none."""
    for name in THOUGHT_FIELDS:
        if thought := text_in(delta, name):
            return thought
    return ""


def _calls(delta: dict[str, Any]) -> tuple[CallPart, ...]:
    calls, legacy = delta.get("tool_calls"), delta.get("function_call")
    if not (calls or legacy):
        return ()
    parts = [_call(call) for call in (calls if isinstance(calls, list) else ()) if isinstance(call, dict)]
    if isinstance(legacy, dict):
        parts.append(CallPart(text_in(legacy, "name"), text_in(legacy, "arguments"), legacy=True))
    return tuple(parts)


def _call(call: dict[str, Any]) -> CallPart:
    function, index = call.get("function"), call.get("index")
    function = function if isinstance(function, dict) else {}
    return CallPart(
        text_in(function, "name"),
        text_in(function, "arguments"),
        id=text_in(call, "id"),
        index=index if isinstance(index, int) else None,
        kind=text_in(call, "type") or "function",
    )


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice.get("message")
    delta = {"role": "assistant", **(message if isinstance(message, dict) else {})}
    if isinstance(calls := delta.get("tool_calls"), list):
        delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(calls) if isinstance(call, dict)]
    rest: dict[str, Any] = {name: choice[name] for name in ("index", "finish_reason", "stop_reason") if name in choice}
    return {**rest, "delta": delta}


def object_of(data: bytes | None) -> dict[str, Any] | None:
    """The JSON object in the data of a frame; None for anything else."""
    try:
        value = None if data is None else loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_done(data: bytes | None) -> bool:
    """Return whether it is the mark that ends a stream."""
    return data is not None and data.strip() == b"[DONE]"


def encoded(chunk: dict[str, Any]) -> bytes:
    """A frame; nothing for a chunk that is empty, or nested too deeply to be written."""
    try:
        return sse.encode(chunk) if chunk else b""
    except ValueError:
        return b""


def unprivileged(chunk: dict[str, Any]) -> dict[str, Any]:
    """The chunk without what is privileged; the same object if nothing is, empty if nothing else is in it."""
    if not is_privileged(chunk):
        return chunk
    clean = {key: value for key, value in chunk.items() if key not in _PRIVILEGED}
    if str(clean.get("type", "")).startswith(_PRIVILEGED_TYPE):
        del clean["type"]
    return clean if _MEANINGFUL & clean.keys() else {}


def is_privileged(chunk: dict[str, Any]) -> bool:
    """Return whether anything in it is privileged."""
    return (
        _PRIVILEGED[0] in chunk
        or _PRIVILEGED[1] in chunk
        or ("type" in chunk and str(chunk["type"]).startswith(_PRIVILEGED_TYPE))
    )


def _smuggles(frame: bytes) -> bool:
    """Return whether one of several lines of data is privileged by itself: Open WebUI reads line by line."""
    lines = sse.data_lines(frame) if frame.count(b"data:") > 1 else ()
    return len(lines) > 1 and any(is_privileged(object_of(line) or {}) for line in lines)

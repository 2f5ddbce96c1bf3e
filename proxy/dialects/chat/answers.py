"""Answers as chunks of chat completions, or as one body: read, and written again.

Fields: OpenAI API reference, "The chat completion chunk object" (2026), and the additions of llama-server, vLLM, Ollama and
OpenRouter.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from proxy.core import sse
from proxy.core.dialect import Completion, Writer
from proxy.core.jsontext import dumps, loads, loads_object, loads_or_none, omit
from proxy.core.piece import CallPart, Identity, Piece, as_count
from proxy.core.request import REASONING, THOUGHT_FIELDS
from proxy.dialects.bodies import dict_in, dicts_in, text_in
from proxy.dialects.chat.reading import CHUNK, FINISHES, mended

DONE = b"data: [DONE]\n\n"
"""Frame that ends a stream of chunks (OpenAI API reference, "Streaming")."""
_PRIVILEGED = {"event", "selected_model_id"}
"""Keys that only Spillway may send, like a `type` of `response.…`: Open WebUI 0.12 obeys them, and one runs code in its page."""
_SUSPECT = re.compile(rb'"(?:event|selected_model_id|type)"|\\u00[2567]')
"""Bytes that may be such a key, also with escaped letters."""
_EMPTY: tuple[Any, ...] = (None, "", [])
"""Values of a delta's fields that carry nothing."""
_OF_CALL = frozenset({"index", "id", "type", "function"})
_COUNTS = ("usage", "timings")
"""Fields that describe the chunk as a whole, so only one part keeps them when a chunk is split."""


def read_frame(frame: bytes) -> Piece:
    """Read a complete frame of a stream.

    A frame that is neither part of an answer nor an error becomes an empty piece.
    """
    data = sse.data_of(frame)
    if not data:
        # Drop a frame with a name or an id but no data: OpenAI's SDK takes it for an event, and fails to parse its JSON.
        silent = data is None and frame.startswith((b":", b"\r", b"\n"))
        return Piece(frame=frame if silent else b"", aside=data is None)
    if data.strip() == b"[DONE]":
        return Piece(frame=frame, done=True)
    # Open WebUI reads line by line. It would obey a privileged line among several data lines, so such frames are rewritten; so is
    # JSON without `data:`.
    rewritten = frame.startswith((b"{", sse.ERROR_FIELD)) or (b"\n" in data and _SUSPECT.search(data) is not None)
    try:
        chunk = loads(data)
    except ValueError:
        chunk, rewritten = _as_text(data), True
    if not isinstance(chunk, dict) or _is_odd(chunk):
        known = mended(chunk, status=500 if frame.startswith((b"event: error", sse.ERROR_FIELD)) else 200)
        if known is None:
            return Piece(comment=chunk if isinstance(chunk, str) else "")
        chunk, rewritten = known, rewritten or known is not chunk
    suspect = "type" in chunk or not _PRIVILEGED.isdisjoint(chunk)
    if suspect and (allowed := _unprivileged(chunk)) is not chunk:
        chunk, rewritten = allowed, True
    return piece_of(chunk, sse.encode(chunk) if rewritten else frame)


def _as_text(data: bytes) -> Any:
    """Parse data with invalid UTF-8, whose bad bytes are replaced; returns the text itself if it is not JSON."""
    text = data.decode("utf-8", "replace")
    value = loads_or_none(text)
    return text if value is None else value


def _is_odd(chunk: dict[str, Any]) -> bool:
    """Return whether a chunk may not be in OpenAI's form; a quick check that spares most chunks the full one."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or chunk.get("error") or not (choices or "usage" in chunk):
        return True
    if chunk.get("object", CHUNK) != CHUNK:
        return True
    for choice in choices:
        delta, finish = (choice.get("delta"), choice.get("finish_reason")) if isinstance(choice, dict) else (None, None)
        if not isinstance(delta, dict) or "tool_calls" in delta or (not delta and "message" in choice):
            return True
        if not isinstance(delta.get("content", ""), str | None) or not (
            isinstance(finish, str | None) and finish in FINISHES
        ):
            return True
    return False


def _unprivileged(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return a chunk without keys that a backend must not send; the same object if it has none."""
    gone = _PRIVILEGED & chunk.keys()
    if "type" in chunk and str(chunk["type"]).startswith("response."):
        gone.add("type")
    return omit(chunk, *gone) if gone else chunk


def is_torn(frame: bytes) -> bool:
    """Return whether a stream's last frame was cut off in the middle of its JSON, or before its data."""
    if sse.is_closed(frame):
        return False
    data = sse.data_of(frame)
    if data is None:
        return bool(frame.strip()) and b":" not in frame
    return data.strip() != b"[DONE]" and loads_object(data) is None


def piece_of(chunk: dict[str, Any], frame: bytes) -> Piece:
    """Return the piece in a parsed chunk, which may be any JSON object."""
    choices = chunk.get("choices")
    listed = choices if isinstance(choices, list) else []
    piece = _choice_piece(chunk, listed[0] if listed else None, frame)
    if piece.choice or "id" in chunk:
        extra = {"system_fingerprint": chunk["system_fingerprint"]} if "system_fingerprint" in chunk else {}
        created = as_count(chunk.get("created"))
        piece.identity = Identity(text_in(chunk, "id"), created, text_in(chunk, "model"), extra)
    if len(listed) > 1:
        piece.alone = ""
        piece.other_choices = tuple(_choice_piece(chunk, choice, b"") for choice in listed[1:])
    piece.error = chunk.get("error") or None
    usage, timings = chunk.get("usage"), chunk.get("timings")
    if isinstance(timings, dict):
        piece.timings = timings
    if isinstance(usage, dict):
        piece.usage = usage
        piece.prompt_tokens = as_count(usage.get("prompt_tokens"))
        piece.completion_tokens = as_count(usage.get("completion_tokens"))
        piece.alone = ""  # vLLM counts while it generates (`continuous_usage_stats`)
    elif isinstance(timings, dict):
        if "cache_n" in timings:  # older servers do not report the cached part of the prompt
            piece.prompt_tokens = as_count(timings["cache_n"]) + as_count(timings.get("prompt_n"))
        piece.completion_tokens = as_count(timings.get("predicted_n"))
        piece.alone = ""  # llama-server counts while it generates too (`timings_per_token`)
    return piece


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
        if len(content) > ("content" in content):
            piece.extras = omit(content, "content", "tool_calls")
        if "tool_calls" in content:
            piece.calls = tuple(map(_call_part, dicts_in(content, "tool_calls")))
    return piece


def thought_of(delta: dict[str, Any]) -> str:
    """Return the reasoning of a delta or message; empty if it has none."""
    for name in THOUGHT_FIELDS:
        if name in delta and (thought := text_in(delta, name)):
            return thought
    return ""


def _call_part(call: dict[str, Any]) -> CallPart:
    function, index = dict_in(call, "function"), call.get("index")
    return CallPart(
        text_in(function, "name"),
        text_in(function, "arguments"),
        id=text_in(call, "id"),
        index=index if isinstance(index, int) else None,
        kind=text_in(call, "type") or "function",
        extras=omit(call, *_OF_CALL) if call.keys() - _OF_CALL else {},
    )


# -- bodies


def read_completion(body: bytes) -> Completion | None:
    """Read an unstreamed body; None if it is neither a JSON object nor an error."""
    try:
        value = loads(body)
    except ValueError:
        value = _as_text(body)
    if (parsed := mended(value, "message")) is None:
        return None
    head = {**_unprivileged(parsed), "object": CHUNK}
    return Completion(
        body=body if parsed is value else dumps(parsed),
        form=parsed,
        choices=tuple(
            piece_of({**head, "choices": [_as_delta(choice)]}, b"") for choice in dicts_in(parsed, "choices")
        ),
        usage=parsed["usage"] if isinstance(parsed.get("usage"), dict) else None,
        is_error="error" in parsed and not parsed.get("choices"),
    )


def completion_of(text: str, identity: Identity, finish: str | None = "stop") -> Completion:
    """Build an answer with this text. Without a finish reason, the answer is one that is still being written."""
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
    """Return the first choice of a body as the pieces of a stream; empty if there is none."""
    completion = read_completion(body)
    return () if completion is None or not completion.choices else as_stream(completion, completion.choices[:1])


def as_stream(completion: Completion, choices: Sequence[Piece]) -> list[Piece]:
    """Return these choices of a body as the pieces of a stream, with usage and end mark."""
    pieces = [part for piece in choices for part in _parts(piece)]
    if completion.usage is not None:
        chunk = {**_unprivileged(completion.form), "object": CHUNK, "choices": []}
        pieces.append(piece_of(chunk, sse.encode(chunk)))
    return [*pieces, Piece(frame=DONE, done=True)]


def _parts(piece: Piece) -> list[Piece]:
    """Return the pieces of one choice: text and reasoning, calls, end. A choice without finish reason counts as complete."""
    calls, blank = piece.calls, piece.blank()
    finish = piece.finish or ("tool_calls" if calls else "stop")
    content = replace(piece.uncounted(), calls=(), finish=None)
    return [content, *([replace(blank, calls=calls)] if calls else []), replace(blank, finish=finish)]


# -- writing: pieces as they came, under another identity, as part of one answer, or made by Spillway


class ChatWriter(Writer):
    """Writer of chunks. It has no state: a chunk depends neither on earlier ones nor on the request."""

    media_type = "text/event-stream; charset=utf-8"
    native = True

    @override
    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        """Write a piece unchanged, or under an identity; the role of the first choice is left out if it was sent already."""
        if piece.form is None or (identity is None and piece.frame):
            return piece.frame
        chunk = piece.form[0] if piece.frame else _chunk(piece)
        if identity is not None and "choices" in chunk:
            if role_sent and piece.role and not piece.index:
                first, *rest = chunk["choices"]
                chunk = {**chunk, "choices": [{**first, "delta": omit(first["delta"], "role")}, *rest]}
            chunk = _stamped(chunk, identity)
        return sse.encode(chunk)

    @override
    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        """Write the first choice without finish reason and usage; empty if nothing is left of it."""
        if not piece.choice:
            return b""
        chunk, choice = piece.form
        delta = {name: value for name, value in _delta(piece).items() if value or value not in (None, "", [])}
        if role_sent:
            delta.pop("role", None)
        if not delta:
            return b""
        part = {**omit(chunk, *_COUNTS), "choices": [{**choice, "delta": delta, "finish_reason": None}]}
        return sse.encode(_stamped(part, identity))

    @override
    def insert(self, piece: Piece, identity: Identity) -> bytes:
        if piece.comment:
            return sse.comment(piece.comment)
        delta: dict[str, Any] = {"role": "assistant", "content": ""} if piece.role else {}
        if piece.text or piece.event is not None:
            delta["content"] = piece.text
        if piece.thought:
            delta[THOUGHT_FIELDS[0]] = piece.thought
        choice = {"index": 0, "delta": delta, "finish_reason": piece.finish}
        chunk = _stamped({"id": identity.id, "object": CHUNK}, identity)
        chunk["choices"] = [] if piece.usage and not (piece.choice or piece.finish) else [choice]
        if piece.usage is not None:
            chunk["usage"] = piece.usage
        if piece.event is not None:
            chunk["event"] = piece.event
        return sse.encode(chunk)

    @override
    def heartbeat(self, identity: Identity | None, fallback: Identity) -> bytes:
        """Write a comment before the first chunk, and after it a chunk with an empty delta."""
        return super().heartbeat(identity, fallback) if identity is None else self.insert(Piece(), identity)

    @override
    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """Return the finish with the `timings` of the usage chunk after it.

        llama-server (b11549) puts them on the last chunk. That is a separate one if Spillway asked for usage, so this restores
        the chunk that the client would have got otherwise.
        """
        # Without this, a stream below the trigger would not be the backend's own byte for byte, and some clients show
        # tokens per second from `timings`.
        timings = usage.form[0].get("timings") if usage.form else None
        if timings is None or finish.form is None or "timings" in finish.form[0]:
            return finish
        chunk = {**(finish.form[0] if finish.frame else _chunk(finish)), "timings": timings}
        return replace(finish, frame=sse.encode(chunk), form=(chunk, finish.form[1]))

    @override
    def error(self, body: Mapping[str, Any]) -> bytes:
        return sse.encode(body) + DONE

    @override
    def end(self) -> bytes:
        return DONE

    @override
    def body(self, completion: Completion, choices: Sequence[Piece], usage: dict[str, Any] | None) -> bytes:
        body = dict(completion.form)
        if isinstance(body.get("choices"), list):
            pairs = iter(zip(completion.choices, choices or completion.choices, strict=True))
            listed = body["choices"]
            body["choices"] = [_choice(each, *next(pairs)) if isinstance(each, dict) else each for each in listed]
        if usage is not None:
            body["usage"] = usage
        return completion.body if body == completion.form else dumps(body)


def _chunk(piece: Piece) -> dict[str, Any]:
    """Build the chunk of a changed piece, with all other fields of its frame."""
    chunk, choice = piece.form
    counted = piece.usage is not None or piece.prompt_tokens or piece.completion_tokens
    rewritten = {name: value for name, value in chunk.items() if counted or name not in _COUNTS}
    if piece.usage is not None:
        rewritten["usage"] = piece.usage
    if choice is None:
        return rewritten
    rewritten["choices"] = [{**choice, "delta": _delta(piece), "finish_reason": piece.finish}]
    return rewritten


def _delta(piece: Piece) -> dict[str, Any]:
    """Return the delta as received, but with the piece's text, reasoning and calls."""
    delta = dict_in(piece.form[1], "delta")
    if piece.frame:
        return delta
    if piece.bare:
        delta = {"role": "assistant"} if piece.role else {}
    if piece.text != text_in(delta, "content"):
        delta = omit(delta, "content") if not piece.text else {**delta, "content": piece.text}
    if piece.thought != thought_of(delta):
        named = [name for name in THOUGHT_FIELDS if name in delta] or THOUGHT_FIELDS[:1]
        delta = omit(delta, *REASONING) | dict.fromkeys(named if piece.thought else (), piece.thought)
    if not piece.calls:
        return omit(delta, "tool_calls")
    return {**delta, "tool_calls": list(map(_call, piece.calls))} if piece.bare else delta


def _call(call: CallPart) -> dict[str, Any]:
    """Write a whole call, or a piece of one if it has an index."""
    if call.index is None:
        return {
            "id": call.id,
            "type": call.kind,
            "function": {"name": call.name, "arguments": call.arguments},
            **call.extras,
        }
    head = {"id": call.id, "type": call.kind} if call.id else {}
    name = {"name": call.name} if call.name else {}
    return {"index": call.index, **head, "function": {**name, "arguments": call.arguments}, **call.extras}


def _choice(choice: dict[str, Any], original: Piece, piece: Piece) -> dict[str, Any]:
    """Return a choice of a body with the piece's content in its message; the same object if the piece is unchanged."""
    if piece is original:
        return choice
    fields = {**piece.extras, **omit(dict_in(choice, "message"), "tool_calls")}
    if piece.text or isinstance(fields.get("content"), str):
        fields["content"] = piece.text or (None if piece.calls else "")
    if piece.thought:
        fields[next((name for name in THOUGHT_FIELDS if fields.get(name)), THOUGHT_FIELDS[0])] = piece.thought
    if piece.calls:
        fields["tool_calls"] = [_call(replace(call, index=None)) for call in piece.calls]
    return {**choice, "message": fields, "finish_reason": piece.finish}


def _stamped(chunk: dict[str, Any], identity: Identity) -> dict[str, Any]:
    stamp = {"id": identity.id, "created": identity.created, "model": identity.model}
    return {**chunk, **stamp, **identity.extra}

"""Writing an answer as chunks: as they came, under another identity, as part of one answer, or of Spillway's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from proxy.core import sse
from proxy.core.dialect import WholeAnswer, Writer
from proxy.core.jsontext import dumps
from proxy.core.piece import CallPart, Identity, Piece
from proxy.core.request import THOUGHT_FIELDS
from proxy.dialects.bodies import text_in
from proxy.dialects.chat.reading import DONE, encoded, says_nothing, thought_of

_ALL_THOUGHTS = (*THOUGHT_FIELDS, "reasoning_details")
_COUNTS = ("usage", "timings")
"""Fields of a chunk that are about all of it."""
_CALLS = ("tool_calls", "function_call")
_OF_CHOICE: Mapping[str, Any] = {"logprobs": None}
_OF_MESSAGE: Mapping[str, Any] = {"refusal": None, "annotations": []}
"""What a choice and its message say where a backend leaves it out."""


class ChatWriter(Writer):
    """Writes chunks. It keeps nothing: a chunk does not depend on those before it."""

    media_type = "text/event-stream; charset=utf-8"
    native = True

    @override
    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        """A piece as it came, or under an identity; the first choice's role is left out where it was said already."""
        if piece.form is None or (identity is None and piece.frame):
            return piece.frame
        chunk = piece.form[0] if piece.frame else _chunk(piece)
        return encoded(chunk if identity is None else _renamed(chunk, identity, role_sent=role_sent))

    @override
    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        """Write the first choice without finish reason and usage; empty if it says nothing."""
        if not piece.choice:
            return b""
        chunk, choice = piece.form
        delta = {name: value for name, value in _delta(piece).items() if not says_nothing(value)}
        if role_sent:
            delta.pop("role", None)
        if not delta:
            return b""
        part = {**chunk, "choices": [{**choice, "delta": delta, "finish_reason": None}]}
        for count in _COUNTS:
            part.pop(count, None)
        return encoded(_stamped(part, identity))

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
        chunk = _stamped({"id": identity.id, "object": "chat.completion.chunk"}, identity)
        chunk["choices"] = [] if piece.trailer else [choice]
        if piece.usage is not None:
            chunk["usage"] = piece.usage
        if piece.event is not None:
            chunk["event"] = piece.event
        return sse.encode(chunk)

    @override
    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """Return the finish with the `timings` of the usage chunk behind it.

        llama-server (b11549) puts them on the last chunk, which is another one when usage is asked for: the client gets the
        chunk that it would have got unasked.
        """
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
    def filled(self, answer: WholeAnswer) -> bytes:
        completed = _completed(answer.form)
        return answer.body if completed is answer.form else dumps(completed)

    @override
    def body(self, answer: WholeAnswer, pieces: Sequence[Piece], usage: Mapping[str, Any] | None) -> bytes:
        body = dict(_completed(answer.form))
        if pieces:
            pairs = iter(zip(answer.pieces, pieces, strict=True))
            body["choices"] = [
                _choice(choice, *next(pairs)) if isinstance(choice, dict) else choice for choice in body["choices"]
            ]
        if usage is not None:
            body["usage"] = usage
        return dumps(body)


def completion(text: str, answer_id: str, model: str, created: int) -> bytes:
    """The body in which a backend would say this; `created` in seconds since the epoch."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": answer_id, "object": "chat.completion", "created": created, "model": model}
    return dumps({**head, "choices": [choice]})


def _chunk(piece: Piece) -> dict[str, Any]:
    """A piece that was changed: what it says, and what else its frame held."""
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
    """The delta as it came, with the text, reasoning and calls that the piece says instead."""
    original = piece.form[1].get("delta")
    delta = original if isinstance(original, dict) else {}
    if piece.frame:
        return delta
    if piece.bare:
        delta = {"role": "assistant"} if piece.role else {}
    if piece.text != text_in(delta, "content"):
        delta = _without(delta, ("content",)) if not piece.text else {**delta, "content": piece.text}
    if piece.thought != thought_of(delta):
        named = [name for name in THOUGHT_FIELDS if name in delta] or THOUGHT_FIELDS[:1]
        delta = _without(delta, _ALL_THOUGHTS) | dict.fromkeys(named if piece.thought else (), piece.thought)
    if not piece.calls:
        return _without(delta, _CALLS)
    return {**delta, **_calls(piece.calls)} if piece.bare else delta


def _without(delta: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in delta.items() if name not in names}


def _calls(calls: Sequence[CallPart]) -> dict[str, Any]:
    """Fields of a delta that say whole calls."""
    if calls and calls[0].legacy:
        return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}
    listed = [{**({} if call.index is None else {"index": call.index}), **_call(call)} for call in calls]
    return {"tool_calls": listed} if listed else {}


def _call(call: CallPart) -> dict[str, Any]:
    return {"id": call.id, "type": call.kind, "function": {"name": call.name, "arguments": call.arguments}}


def _choice(choice: dict[str, Any], original: Piece, piece: Piece) -> dict[str, Any]:
    """A choice of a whole answer, with what the piece says in its message."""
    if piece is original:
        return choice
    message = choice.get("message")
    fields = _without(message if isinstance(message, dict) else {}, _CALLS)
    calls = _calls([replace(call, index=None) for call in piece.calls])
    if piece.text or isinstance(fields.get("content"), str):
        fields["content"] = piece.text or (None if calls else "")
    if piece.thought:
        fields[next((name for name in THOUGHT_FIELDS if fields.get(name)), THOUGHT_FIELDS[0])] = piece.thought
    return {**choice, "message": {**fields, **calls}, "finish_reason": piece.finish}


def _renamed(chunk: dict[str, Any], identity: Identity, *, role_sent: bool) -> dict[str, Any]:
    if "choices" not in chunk:
        return chunk
    if role_sent and isinstance(chunk["choices"], list):
        chunk = {**chunk, "choices": list(map(_without_role, chunk["choices"]))}
    return _stamped(chunk, identity)


def _stamped(chunk: dict[str, Any], identity: Identity) -> dict[str, Any]:
    stamp = {"id": identity.id, "created": identity.created, "model": identity.model}
    return {**chunk, **stamp, **identity.extra}


def _without_role(choice: Any) -> Any:
    if not isinstance(choice, dict) or choice.get("index") or not isinstance(choice.get("delta"), dict):
        return choice
    return {**choice, "delta": _without(choice["delta"], ("role",))}


def _completed(form: dict[str, Any]) -> dict[str, Any]:
    """A whole answer with the fields that OpenAI's schema demands, and that backends leave out where there is nothing in them.

    `logprobs` of a choice and `refusal` of a message are required, though they may be null, and OpenAI never leaves out
    `annotations` (API reference, "The chat completion object", 2026); llama-server (b11549) has none of the three. The same
    object where nothing is missing.
    """
    choices = form.get("choices")
    if not isinstance(choices, list) or not any(map(_is_incomplete, choices)):
        return form
    return {
        **form,
        "choices": [
            {
                **_missing(_OF_CHOICE, choice),
                **choice,
                "message": {**_missing(_OF_MESSAGE, choice["message"]), **choice["message"]},
            }
            if _is_incomplete(choice)
            else choice
            for choice in choices
        ],
    }


def _is_incomplete(choice: Any) -> bool:
    message = choice.get("message") if isinstance(choice, dict) else None
    return isinstance(message, dict) and bool(_missing(_OF_CHOICE, choice) or _missing(_OF_MESSAGE, message))


def _missing(required: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in required.items() if name not in fields}

"""Writing an answer as chunks: as they came, under another identity, as part of one answer, or of Spillway's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from proxy.core import sse
from proxy.core.dialect import Completion, Writer
from proxy.core.jsontext import dumps, omit
from proxy.core.piece import CallPart, Identity, Piece
from proxy.core.request import THOUGHT_FIELDS
from proxy.dialects.bodies import dict_in, text_in
from proxy.dialects.chat.reading import DONE, thought_of

_ALL_THOUGHTS = (*THOUGHT_FIELDS, "reasoning_details")
_COUNTS = ("usage", "timings")
"""Fields of a chunk that are about all of it."""


class ChatWriter(Writer):
    """Writes chunks. It keeps nothing: a chunk does not depend on those before it, nor on the request."""

    media_type = "text/event-stream; charset=utf-8"
    native = True

    @override
    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        """A piece as it came, or under an identity; the first choice's role is left out where it was sent already."""
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
        """Write the first choice without finish reason and usage; empty if it says nothing."""
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
        chunk = _stamped({"id": identity.id, "object": "chat.completion.chunk"}, identity)
        chunk["choices"] = [] if piece.trailer else [choice]
        if piece.usage is not None:
            chunk["usage"] = piece.usage
        if piece.event is not None:
            chunk["event"] = piece.event
        return sse.encode(chunk)

    @override
    def heartbeat(self, identity: Identity | None, fallback: Identity) -> bytes:
        """Write a comment, which keeps the backend's chunks as they are; behind the first chunk one with an empty delta."""
        return super().heartbeat(identity, fallback) if identity is None else self.insert(Piece(), identity)

    @override
    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """Return the finish with the `timings` of the usage chunk behind it.

        llama-server (b11549) puts them on the last chunk, which is another one when usage is asked for: the client gets
        the chunk that it would have got unasked.
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
    def body(self, completion: Completion, choices: Sequence[Piece], usage: dict[str, Any] | None) -> bytes:
        body = dict(completion.form)
        if isinstance(body.get("choices"), list):
            pairs = iter(zip(completion.choices, choices or completion.choices, strict=True))
            body["choices"] = [
                _choice(choice, *next(pairs)) if isinstance(choice, dict) else choice for choice in body["choices"]
            ]
        if usage is not None:
            body["usage"] = usage
        return completion.body if body == completion.form else dumps(body)


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
    delta = dict_in(piece.form[1], "delta")
    if piece.frame:
        return delta
    if piece.bare:
        delta = {"role": "assistant"} if piece.role else {}
    if piece.text != text_in(delta, "content"):
        delta = omit(delta, "content") if not piece.text else {**delta, "content": piece.text}
    if piece.thought != thought_of(delta):
        named = [name for name in THOUGHT_FIELDS if name in delta] or THOUGHT_FIELDS[:1]
        delta = omit(delta, *_ALL_THOUGHTS) | dict.fromkeys(named if piece.thought else (), piece.thought)
    if not piece.calls:
        return omit(delta, "tool_calls")
    return {**delta, "tool_calls": list(map(_call, piece.calls))} if piece.bare else delta


def _call(call: CallPart) -> dict[str, Any]:
    index = {} if call.index is None else {"index": call.index}
    function = {"name": call.name, "arguments": call.arguments}
    return {**index, "id": call.id, "type": call.kind, "function": function}


def _choice(choice: dict[str, Any], original: Piece, piece: Piece) -> dict[str, Any]:
    """A choice of a body, with what the piece says in its message."""
    if piece is original:
        return choice
    fields = omit(dict_in(choice, "message"), "tool_calls")
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

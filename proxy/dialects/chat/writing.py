"""Writing an answer as chunks: as they came, under another identity, as part of one answer, or of Spillway's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.dialects.bodies import text_in
from proxy.dialects.chat.privileged import is_privileged
from proxy.dialects.chat.reading import (
    DONE,
    encoded,
    object_of,
    says_nothing,
    thought_of,
)
from proxy.dialects.chat.required import complete, completed
from proxy.neutral.dialect import WholeAnswer
from proxy.neutral.managing import Managed
from proxy.neutral.piece import CallPart, Identity, Piece
from proxy.neutral.request import THOUGHT_FIELDS
from proxy.wire import sse
from proxy.wire.jsontext import dumps

_ALL_THOUGHTS = (*THOUGHT_FIELDS, "reasoning_details")
_COUNTS = ("usage", "timings")
"""Fields of a chunk that are about all of it."""
_CALLS = ("tool_calls", "function_call")


class ChatWriter:
    """Writes chunks. It keeps nothing: a chunk does not depend on those before it."""

    media_type = "text/event-stream; charset=utf-8"
    native = True
    final: dict[str, Any] | None = None

    def manage(self, managed: Managed) -> None:
        """Nothing: chat completions has no words for it."""

    def more(self, name: str) -> Callable[[str], bytes] | None:
        """None: what else is in the frame stays as it came."""
        del name
        return None

    def relay(self, piece: Piece, identity: Identity | None, *, role_said: bool) -> bytes:
        """A piece as it came, or under an identity; the first choice's role is left out where it was said already."""
        if piece.form is None or (identity is None and piece.frame):
            return piece.frame
        chunk = piece.form[0] if piece.frame else _chunk(piece)
        return encoded(chunk if identity is None else _renamed(chunk, identity, role_said=role_said))

    def part(self, piece: Piece, identity: Identity, *, role_said: bool) -> bytes:
        """What the first choice says, without finish reason and usage; empty if it says nothing."""
        if not piece.choice:
            return b""
        chunk, choice = piece.form
        said = {name: value for name, value in _delta(piece).items() if not says_nothing(value)}
        if role_said:
            said.pop("role", None)
        if not said:
            return b""
        part = {**chunk, "choices": [{**choice, "delta": said, "finish_reason": None}]}
        for count in _COUNTS:
            part.pop(count, None)
        return encoded(_stamped(part, identity))

    def own(self, piece: Piece, identity: Identity) -> bytes:
        """A piece that Spillway made."""
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

    def with_usage(self, finish: Piece, usage: Piece) -> Piece:
        """A finish with the `timings` that the usage chunk after it took over.

        llama-server (b11549) puts them on the last chunk, which is another one when usage is asked for. They are
        moved as bytes, so that the client gets the very frame that it would have got unasked.
        """
        at, frame = usage.frame.find(b',"timings":'), self.relay(finish, None, role_said=True)
        if at < 0 or b'"timings":' in frame:
            return finish
        end = frame.rstrip(b"\r\n")
        moved = end[:-1] + usage.frame[at:].rstrip(b"\r\n") + frame[len(end) :]
        value = object_of(sse.data_of(moved))
        if value is None or is_privileged(value) or not finish.choice:
            return finish
        return replace(finish, frame=moved, form=(value, value["choices"][0]))

    def error(self, body: Mapping[str, Any]) -> bytes:
        """An error, and the end."""
        return sse.encode(body) + DONE

    def end(self) -> bytes:
        """The end mark."""
        return DONE

    def filled(self, whole: WholeAnswer) -> bytes:
        """The body with what is missing spliced in."""
        return complete(whole.body, whole.form)

    def whole(self, whole: WholeAnswer, pieces: Sequence[Piece], usage: Mapping[str, Any] | None) -> bytes:
        """The body with other messages and finish reasons, and with this usage if there is any."""
        body = dict(completed(whole.form))
        if pieces:
            told = iter(zip(whole.pieces, pieces, strict=True))
            body["choices"] = [
                _choice(choice, *next(told)) if isinstance(choice, dict) else choice
                for choice in body["choices"]
            ]
        if usage is not None:
            body["usage"] = usage
        return dumps(body)


def whole_answer(text: str, answer_id: str, model: str, created: int) -> bytes:
    """The body in which a backend would say this; `created` in seconds since the epoch."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    told = {"id": answer_id, "object": "chat.completion", "created": created, "model": model}
    return dumps({**told, "choices": [choice]})


def _chunk(piece: Piece) -> dict[str, Any]:
    """A piece that was changed: what it says, and what else its frame held."""
    chunk, choice = piece.form
    counted = piece.usage is not None or piece.prompt_tokens or piece.completion_tokens
    made = {name: value for name, value in chunk.items() if counted or name not in _COUNTS}
    if piece.usage is not None:
        made["usage"] = piece.usage
    if choice is None:
        return made
    made["choices"] = [{**choice, "delta": _delta(piece), "finish_reason": piece.finish}]
    return made


def _delta(piece: Piece) -> dict[str, Any]:
    """The delta as it came, with the text, reasoning and calls that the piece says instead."""
    came = piece.form[1].get("delta")
    delta = came if isinstance(came, dict) else {}
    if piece.frame:
        return delta
    if piece.bare:
        delta = {"role": "assistant"} if piece.role else {}
    if piece.text != text_in(delta, "content"):
        delta = _without(delta, ("content",)) if not piece.text else {**delta, "content": piece.text}
    if piece.thought != thought_of(delta):
        named = [name for name in THOUGHT_FIELDS if name in delta] or THOUGHT_FIELDS[:1]
        delta = _without(delta, _ALL_THOUGHTS) | dict.fromkeys(named if piece.thought else (), piece.thought)
    return {**delta, **_calls(piece.calls)} if piece.bare else delta


def _without(delta: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in delta.items() if name not in names}


def _calls(calls: Sequence[CallPart]) -> dict[str, Any]:
    """Fields of a delta that say whole calls."""
    if calls and calls[0].legacy:
        return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}
    made = [{**({} if call.index is None else {"index": call.index}), **_call(call)} for call in calls]
    return {"tool_calls": made} if made else {}


def _call(call: CallPart) -> dict[str, Any]:
    return {"id": call.id, "type": call.kind, "function": {"name": call.name, "arguments": call.arguments}}


def _choice(choice: dict[str, Any], came: Piece, piece: Piece) -> dict[str, Any]:
    """A choice of a whole answer, with what the piece says in its message."""
    if piece is came:
        return choice
    message = choice.get("message")
    kept = _without(message if isinstance(message, dict) else {}, _CALLS)
    calls = _calls([replace(call, index=None) for call in piece.calls])
    if piece.text or isinstance(kept.get("content"), str):
        kept["content"] = piece.text or (None if calls else "")
    if piece.thought:
        kept[next((name for name in THOUGHT_FIELDS if kept.get(name)), THOUGHT_FIELDS[0])] = piece.thought
    return {**choice, "message": {**kept, **calls}, "finish_reason": piece.finish}


def _renamed(chunk: dict[str, Any], identity: Identity, *, role_said: bool) -> dict[str, Any]:
    if "choices" not in chunk:
        return chunk
    if role_said and isinstance(chunk["choices"], list):
        chunk = {**chunk, "choices": list(map(_without_role, chunk["choices"]))}
    return _stamped(chunk, identity)


def _stamped(chunk: dict[str, Any], identity: Identity) -> dict[str, Any]:
    stamp = {"id": identity.id, "created": identity.created, "model": identity.model}
    return {**chunk, **stamp, **identity.extra}


def _without_role(choice: Any) -> Any:
    if not isinstance(choice, dict) or choice.get("index") or not isinstance(choice.get("delta"), dict):
        return choice
    return {**choice, "delta": _without(choice["delta"], ("role",))}

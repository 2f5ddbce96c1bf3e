"""Ollama's `/api/chat` for its clients, in front of any backend.

A streamed answer is written as JSON objects, one per line; any other answer is a single object.

Fields: Ollama's API reference (docs/api.md, 0.14) and PyPI `ollama` 0.6.3, `_types.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

from proxy.core.errors import BadRequest, NotManaged
from proxy.core.jsontext import dumps, omit
from proxy.core.piece import arguments_of, as_count
from proxy.core.request import Message, Request, Thinking, effort_in
from proxy.dialects.bodies import dict_in, dicts_in, is_count, model_in, object_in, pick, request_of, text_in
from proxy.dialects.translator import ContentBlock, Translator

SHARED_OPTIONS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repeat_penalty"),
)
"""Options that are parameters of chat completions by the same name, also at other backends."""
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
"""Durations in nanoseconds, passed on in the usage: Ollama's clients compute tokens per second from them."""
EXTRAS = ("keep_alive", "think", "truncate", "shift")
"""Fields that only Ollama has, besides `options`."""
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_PICTURES = {"iVBOR": "png", "/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}
"""Beginnings of base64 by kind of picture, because Ollama's clients do not name the kind."""


# -- requests


def read(raw: bytes) -> Request:
    """Read a body of `/api/chat`.

    Raises:
        BadRequest: the body is malformed.
        NotManaged: the request only loads or unloads a model.
    """
    form = object_in(raw)
    messages = form.get("messages", [])
    if not isinstance(messages, list):
        raise BadRequest("`messages` must be a list of message objects.", param="messages")
    if not messages:
        raise NotManaged("The request only loads or unloads a model.")
    options, tools = dict_in(form, "options"), dicts_in(form, "tools")
    bound, think = options.get("num_predict"), form.get("think")
    rest = omit(options, *SHARED_OPTIONS, *(["num_predict"] if is_count(bound) else []))
    effort = effort_in(form, "think")
    request = request_of(
        {
            "model": model_in(form),
            "messages": _conversation(messages),
            **({"tools": [{"type": "function", **tool} for tool in tools]} if tools else {}),
            **pick(options, SHARED_OPTIONS),
        },
        # Ollama streams by default.
        stream=form.get("stream") is not False,
        bound=bound,
        structure=_format(form.get("format")),
        thinking=Thinking(on=think) if isinstance(think, bool) else Thinking(effort=effort) if effort else None,
        for_ollama={**pick(form, EXTRAS), **({"options": rest} if rest else {})} or None,
    )
    return replace(request, native=raw)


def _conversation(messages: Sequence[Any]) -> list[Message]:
    result: list[Message] = []
    pending: dict[str, str] = {}
    calls = 0
    for index, message in enumerate(messages):
        role = text_in(message, "role") if isinstance(message, dict) else ""
        if role not in _ROLES:
            where = f"messages[{index}]"
            raise BadRequest(f"`{where}` must be an object with the role system, user, assistant or tool.", param=where)
        converted: Message = {"role": role, "content": text_in(message, "content")}
        if role == "tool":
            converted = {"role": role, "tool_call_id": _answered(message, pending), "content": converted["content"]}
        elif role == "assistant":
            if thought := text_in(message, "thinking"):
                converted["reasoning_content"] = thought
            if listed := _calls(message, calls):
                converted["tool_calls"] = listed
                pending |= {call["id"]: call["function"]["name"] for call in listed}
                calls += len(listed)
        result.append(_with_pictures(converted, message.get("images")))
    return result


def _calls(message: Mapping[str, Any], before: int) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for call in dicts_in(message, "tool_calls"):
        if function := dict_in(call, "function"):
            arguments = function.get("arguments")
            written = arguments if isinstance(arguments, str) else dumps(arguments or {}).decode()
            call_id = text_in(call, "id") or f"call_{before + len(calls)}"
            named = {"name": text_in(function, "name"), "arguments": written}
            calls.append({"id": call_id, "type": "function", "function": named})
    return calls


def _answered(message: Mapping[str, Any], pending: dict[str, str]) -> str:
    """Return the id of the call that a result answers: the one it names, else the next call of its tool, else the next call.

    `pending` maps the ids of calls without a result to their tools. Results may name no id, because Ollama requires none.
    """
    call_id = text_in(message, "tool_call_id")
    if not call_id:
        name = text_in(message, "tool_name") or text_in(message, "name")
        of_tool = (call_id for call_id, tool in pending.items() if tool == name)
        call_id = next(of_tool, next(iter(pending), ""))
    pending.pop(call_id, None)
    return call_id


def _with_pictures(message: Message, images: Any) -> Message:
    pictures = [image for image in images if isinstance(image, str)] if isinstance(images, list) else []
    if not pictures:
        return message
    parts = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return {**message, "content": [*parts, *({"type": "image_url", "image_url": {"url": _url(p)}} for p in pictures)]}


def _url(data: str) -> str:
    kind = next((kind for begin, kind in _PICTURES.items() if data.startswith(begin)), "png")
    return f"data:image/{kind};base64,{data}"


def _format(wanted: Any) -> dict[str, Any] | None:
    if wanted == "json":
        return {"type": "json_object"}
    if isinstance(wanted, dict) and wanted:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted}}
    return None


# -- answers


class OllamaWriter(Translator):
    """Writes the lines of an answer to `/api/chat`. A call is one line, written when it is complete."""

    media_type = "application/x-ndjson"

    @override
    def _comment(self, comment: str) -> bytes:
        """Write a line without content: the format has no comments."""
        return b"" if self._over else self._line({"content": ""})

    @override
    def _delta(self, block: ContentBlock, text: str) -> bytes:
        if block.kind == "call":
            return b""
        return self._line({"content": "", "thinking": text} if block.kind == "thinking" else {"content": text})

    @override
    def _closed(self, block: ContentBlock) -> list[bytes]:
        return [self._line({"content": "", "tool_calls": [self._call(block)]})] if block.kind == "call" else []

    @override
    def _ended(self) -> list[bytes]:
        return [self._line({"content": ""}, done=True)]

    @override
    def _failed(self, error: Any) -> bytes:
        return dumps(error_body(error)) + b"\n"

    @override
    def _answer(self) -> dict[str, Any]:
        text, thought = (
            "".join(each.text for each in self._blocks if each.kind == kind) for kind in ("text", "thinking")
        )
        fields = {"thinking": thought, "tool_calls": list(map(self._call, self._calls))}
        message = {"content": text, **{name: value for name, value in fields.items() if value}}
        return self._object(message, done=True)

    def _call(self, block: ContentBlock) -> dict[str, Any]:
        called = {"index": self._calls.index(block), "name": block.name, "arguments": arguments_of(block.text)}
        return {"id": self._call_id(block), "function": called}

    def _line(self, message: Mapping[str, Any], *, done: bool = False) -> bytes:
        return dumps(self._object(message, done=done)) + b"\n"

    def _object(self, message: Mapping[str, Any], *, done: bool) -> dict[str, Any]:
        created = datetime.fromtimestamp(self._identity.created, UTC).isoformat().replace("+00:00", "Z")
        head = {"model": self._request.model, "created_at": created}
        fields = {**head, "message": {"role": "assistant", **message}, "done": done}
        if not done:
            return fields
        return {
            **fields,
            "done_reason": "length" if self._finish == "length" else "stop",
            **{name: as_count(self._usage.get(name)) for name in DURATIONS},
            "prompt_eval_count": as_count(self._usage.get("prompt_tokens")),
            "eval_count": as_count(self._usage.get("completion_tokens")),
            **pick(self._usage, ("spillway",)),
        }


def error_body(error: Any) -> dict[str, str]:
    """Return an error in Ollama's form."""
    message = error.get("message") if isinstance(error, dict) else error
    return {"error": str(message or "The backend failed.")}

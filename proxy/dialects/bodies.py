"""Readers of fields of bodies, shared by all dialects."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.core.errors import BadRequest
from proxy.core.jsontext import dumps, loads_object, loads_text
from proxy.core.piece import as_count
from proxy.core.request import SIGNED, Request

_Part: TypeAlias = dict[str, Any]

ONLY_SHOWN = "The result is the picture in the next message."
"""Text of a tool result that has pictures only."""


def object_in(raw: bytes) -> dict[str, Any]:
    """Parse the body of a request as a JSON object.

    Raises:
        BadRequest: the body is not JSON, or not an object.
    """
    try:
        body = loads_text(raw)
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}. Send a JSON object.") from None
    if not isinstance(body, dict):
        raise BadRequest("The request body must be a JSON object.")
    return body


def model_in(body: Mapping[str, Any]) -> str:
    """Return the id of the requested model; empty if none is named.

    Raises:
        BadRequest: `model` is not a string.
    """
    model = body.get("model")
    if model is None:
        return ""
    if not isinstance(model, str):
        raise BadRequest("`model` must be the id of a model; GET /v1/models shows what there is.", param="model")
    return model


def refuse_fields(form: Mapping[str, Any], elsewhere: Mapping[str, str]) -> None:
    """Refuse a request that has one of these fields; `elsewhere` maps each to what it asks for.

    Raises:
        BadRequest: the request has such a field.
    """
    for name, what in elsewhere.items():
        if form.get(name):
            raise BadRequest(f"`{name}` asks for {what}, which Spillway does not have: leave it out.", param=name)


def enclosed(details: Any) -> str:
    """Encode signed or encrypted blocks of reasoning as a signature, which clients of other dialects send back unread."""
    return b64encode(dumps({SIGNED: details})).decode()


def enclosed_in(signature: str) -> dict[str, Any]:
    """Decode the blocks of reasoning in a signature, as a field of a message; empty if `enclosed` did not make the signature."""
    try:
        opened = loads_object(b64decode(signature, validate=True)) or {}
    except ValueError:
        opened = {}
    return pick(opened, (SIGNED,))


def pick(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Select the fields of these names that are present and not null."""
    return {name: body[name] for name in names if body.get(name) is not None}


def request_of(
    body: dict[str, Any], *, stream: bool, bound: Any, structure: Mapping[str, Any] | None, **known: Any
) -> Request:
    """Build a request from a dialect's fields.

    Args:
        body: neutral body, with model and messages; completed here.
        stream: whether the answer is streamed.
        bound: most tokens of the answer; ignored unless it is a count.
        structure: format that the answer has to follow.
        **known: further fields of the request, taken as they are.
    """
    if stream:
        body["stream"] = True
    if is_count(bound):
        body["max_tokens"] = bound
    if structure is not None:
        body["response_format"] = structure
    return Request(
        body=body,
        model=body["model"],
        stream=stream,
        max_tokens=body.get("max_tokens"),
        wants_usage=True,
        structured=structure is not None,
        **known,
    )


def function_of(name: str, tool: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Return a client's tool as a function of chat completions."""
    function: dict[str, Any] = {"name": name}
    if description := text_in(tool, "description"):
        function["description"] = description
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def joined(parts: Sequence[_Part]) -> Any:
    """Join parts into one text if all are text, because some chat templates accept nothing else; otherwise list them."""
    return _texts(parts) if all(map(_is_text, parts)) else list(parts)


def split_result(parts: Sequence[_Part]) -> tuple[str, list[_Part]]:
    """Return the text of a tool result, and its pictures, which go into the next message: tool messages take text only."""
    return _texts(parts), [part for part in parts if not _is_text(part)]


def _is_text(part: _Part) -> bool:
    return bool(part["type"] == "text")


def _texts(parts: Sequence[_Part]) -> str:
    return "\n".join(part["text"] for part in parts if _is_text(part))


def is_count(value: Any) -> bool:
    """Return whether a value is a positive integer, and so can bound tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def text_in(value: Mapping[str, Any], name: str) -> str:
    """Return a field if it is a string, else an empty string."""
    text = value.get(name)
    return text if isinstance(text, str) else ""


def dict_in(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field if it is an object, else an empty one."""
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def dicts_in(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects in a field if it is a list, else an empty list."""
    listed = value.get(name)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def token_counts(usage: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return the tokens of the prompt, of its cached part, of the answer, and of the reasoning in the answer."""
    cached = dict_in(usage, "prompt_tokens_details").get("cached_tokens")
    reasoning = dict_in(usage, "completion_tokens_details").get("reasoning_tokens")
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return as_count(prompt), as_count(cached), as_count(completion), as_count(reasoning)

"""Fields of bodies, read alike in every dialect."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.core.errors import BadRequest
from proxy.core.jsontext import dumps, loads_object, loads_text
from proxy.core.piece import as_count
from proxy.core.request import SIGNED, Request

_Part: TypeAlias = dict[str, Any]

ONLY_SHOWN = "The result is the picture in the next message."
"""What a result says that says nothing."""


def object_in(raw: bytes) -> dict[str, Any]:
    """The JSON object that a request's body is.

    Raises:
        BadRequest: not JSON, or not an object.
    """
    try:
        body = loads_text(raw)
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}. Send a JSON object.") from None
    if not isinstance(body, dict):
        raise BadRequest("The request body must be a JSON object.")
    return body


def model_in(body: Mapping[str, Any]) -> str:
    """The id of the model that is asked for; empty if none is named.

    Raises:
        BadRequest: it is no text.
    """
    model = body.get("model")
    if model is None:
        return ""
    if not isinstance(model, str):
        raise BadRequest("`model` must be the id of a model; GET /v1/models shows what there is.", param="model")
    return model


def refuse_fields(form: Mapping[str, Any], elsewhere: Mapping[str, str]) -> None:
    """Refuse a request that has one of these fields, which ask for this.

    Raises:
        BadRequest: it has.
    """
    for name, what in elsewhere.items():
        if form.get(name):
            raise BadRequest(f"`{name}` asks for {what}, which Spillway does not have: leave it out.", param=name)


def enclosed(details: Any) -> str:
    """Write signed or encrypted blocks of reasoning as the signature that clients of other dialects send back unread."""
    return b64encode(dumps({SIGNED: details})).decode()


def enclosed_in(signature: str) -> dict[str, Any]:
    """The blocks of reasoning in a signature, as a field of a message; none where it is another's."""
    try:
        opened = loads_object(b64decode(signature, validate=True)) or {}
    except ValueError:
        opened = {}
    return pick(opened, (SIGNED,))


def pick(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Select the fields of these names that are there."""
    return {name: body[name] for name in names if body.get(name) is not None}


def request_of(
    body: dict[str, Any], *, stream: bool, bound: Any, structure: Mapping[str, Any] | None, **known: Any
) -> Request:
    """The request that a dialect has put into the neutral `body`, model and messages included.

    `bound` is its bound on the answer, if it is a count; `structure` the format that the answer has to follow. All that is
    `known` besides goes into the request as it is.
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
    """The function that stands for a client's tool."""
    function: dict[str, Any] = {"name": name}
    if description := text_in(tool, "description"):
        function["description"] = description
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def joined(parts: Sequence[_Part]) -> Any:
    """One text where there is nothing else, because some chat templates know only that."""
    return _texts(parts) if all(map(_is_text, parts)) else list(parts)


def split_result(parts: Sequence[_Part]) -> tuple[str, list[_Part]]:
    """The text of a result, and its pictures: a tool message has no room for those, so they go into the next one."""
    return _texts(parts), [part for part in parts if not _is_text(part)]


def _is_text(part: _Part) -> bool:
    return bool(part["type"] == "text")


def _texts(parts: Sequence[_Part]) -> str:
    return "\n".join(part["text"] for part in parts if _is_text(part))


def is_count(value: Any) -> bool:
    """Return whether it is a number of tokens that bounds anything."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def text_in(value: Mapping[str, Any], name: str) -> str:
    """A field that is text; empty if it is none."""
    text = value.get(name)
    return text if isinstance(text, str) else ""


def dict_in(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object; empty if it is none."""
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def dicts_in(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a field that is a list; none if it is anything else."""
    listed = value.get(name)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def token_counts(usage: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Tokens of a prompt, of what of it came from a cache, of the answer, and of the reasoning in that."""
    cached = dict_in(usage, "prompt_tokens_details").get("cached_tokens")
    reasoning = dict_in(usage, "completion_tokens_details").get("reasoning_tokens")
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return as_count(prompt), as_count(cached), as_count(completion), as_count(reasoning)

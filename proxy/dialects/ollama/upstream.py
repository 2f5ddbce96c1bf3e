"""Bodies of chat completions as requests of Ollama's `/api/chat`, for an Ollama that is the backend.

Its `/v1` takes a dozen of OpenAI's parameters, drops all of Ollama's, and sets a temperature and a top_p of 1 over the model
file's. Fields: Ollama, `api/types.go` (ChatRequest, Message, Options) and `FromChatRequest` in `openai/openai.go`, 0.33.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.piece import arguments_of
from proxy.core.request import NONE, Message, text_of
from proxy.dialects.bodies import is_count, pick, text_in
from proxy.dialects.chat.reading import thought_of
from proxy.dialects.ollama.request import EXTRAS, SHARED_OPTIONS

UPSTREAM_PATH = b"/api/chat"

_BOUNDS = ("max_tokens", "max_completion_tokens")
"""The newer name last, which wins."""
_ROLES = {"developer": "system", "function": "tool"}
_EFFORTS: Mapping[str, str | bool] = {NONE: False, "minimal": "low", "xhigh": "max", "ultra": "max"}
"""Values of `think` for the efforts that Ollama has no word for; any other goes as it is, and is accepted or refused there."""


def ollama_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a body of chat completions. Parameters of OpenAI's win over `options`, as Spillway itself sets bounds by them.

    Raises:
        BadRequest: an image is named by its address, which Ollama does not fetch.
    """
    tools = body.get("tools")
    return {
        "model": body.get("model"),
        "messages": list(_messages(body["messages"])),
        "stream": body.get("stream") is True,
        "options": _options(body),
        **pick(body, (*EXTRAS, "format", "logprobs", "top_logprobs")),
        **_format(body.get("response_format")),
        **_think(body),
        **({"tools": tools} if tools else {}),
    }


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    options = body.get("options")
    merged = {**(options if isinstance(options, dict) else {}), **pick(body, SHARED_OPTIONS)}
    if isinstance(stop := merged.get("stop"), str):
        merged["stop"] = [stop]
    for name in _BOUNDS:
        if is_count(body.get(name)):
            merged["num_predict"] = body[name]
    return merged


def _format(wanted: Any) -> dict[str, Any]:
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_object":
        return {"format": "json"}
    schema = wanted.get("json_schema") if kind == "json_schema" else None
    return {"format": schema["schema"]} if isinstance(schema, dict) and schema.get("schema") else {}


def _think(body: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = body.get("reasoning")
    nested = reasoning.get("effort") if isinstance(reasoning, dict) else None
    effort = nested or body.get("reasoning_effort")
    if not effort or body.get("think") is not None:
        return {}
    return {"think": _EFFORTS.get(effort, effort) if isinstance(effort, str) else effort}


def _messages(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    names: dict[Any, str] = {}
    for message in messages:
        role = _ROLES.get(message["role"], message["role"])
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        names |= {call["id"]: call["function"]["name"] for call in calls}
        fields: dict[str, Any] = {"content": text_of(message), "images": _images(message), "tool_calls": calls}
        fields["thinking"] = thought_of(message)
        if role == "tool":
            call_id = fields["tool_call_id"] = message.get("tool_call_id")
            fields["tool_name"] = message.get("name") or names.get(call_id)
        yield {"role": role, **{name: value for name, value in fields.items() if value or name == "content"}}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = arguments_of(text_in(function, "arguments"))
    return {"id": call.get("id"), "function": {"name": text_in(function, "name"), "arguments": arguments}}


def _images(message: Message) -> list[str]:
    """Base64 of pictures and sounds, both of which Ollama takes as `images`."""
    content = message.get("content")
    found = []
    for part in content if isinstance(content, list) else ():
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str):
            found.append(_base64_in(url))
        elif isinstance(sound := part.get("input_audio"), dict):
            found.append(text_in(sound, "data"))
    return found


def _base64_in(url: str) -> str:
    scheme, comma, data = url.partition(",")
    if comma and scheme.startswith("data:") and scheme.endswith(";base64"):
        return data
    raise BadRequest("Ollama takes images as base64 data only: send `data:image/png;base64,…`.")

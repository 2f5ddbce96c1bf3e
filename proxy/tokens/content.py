"""Content of a message that reaches the prompt: texts, tool calls, re-sent reasoning, images, attachments.

Nothing here raises for odd input: an unknown part is counted as its JSON, without what looks like base64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.jsontext import dumps
from proxy.core.request import THOUGHT_FIELDS
from proxy.tokens.images import Dimensions, dimensions

LONG_BLOB = 1024
"""Characters from which text without white space in an unknown field is taken for base64."""
ATTACHMENT_BYTES = 1500
"""Decoded bytes of audio or of a file that are counted as one token; coarse, the weights correct it."""
_IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})
_REASONING_TYPES = frozenset({"thinking", "reasoning", "redacted_thinking"})
_BLOB_TYPES = frozenset({"input_audio", "audio", "audio_url", "file", "input_file", "video_url", "video"})
_BLOB = re.compile(r"[A-Za-z0-9+/=_\-\r\n]+")


@dataclass(slots=True)
class Content:
    """Content that a message brings into the prompt. `images` holds dimensions, None where they can't be read."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: int = 0
    images: list[Dimensions | None] = field(default_factory=list)
    attachments: list[int] = field(default_factory=list)
    """Tokens of each attachment that is no image, coarsely by its size."""


def read_message(message: Any) -> Content:
    """Take a chat message (any parsed JSON) apart.

    Raises:
        BadRequest: nested too deeply to be serialised.
    """
    found = Content()
    if not isinstance(message, dict):
        _any(message, found)
        return found
    _content(message.get("content"), found)
    name = message.get("name")
    if isinstance(name, str):
        found.texts.append(name)
    for key in (*THOUGHT_FIELDS, "thinking", "reasoning_details"):
        _reasoning(message.get(key), found)
    _calls(message, found)
    if isinstance(refusal := message.get("refusal"), str):
        found.texts.append(refusal)
    return found


def schema_of(body: Mapping[str, Any]) -> Any:
    """The schema that `response_format` asks for, else None."""
    requested = body.get("response_format")
    if not isinstance(requested, dict):
        return None
    named = requested.get("json_schema")
    return (named.get("schema") or named) if isinstance(named, dict) else requested.get("schema")


def dump(value: Any) -> str:
    """JSON text of `value`.

    Raises:
        BadRequest: nested too deeply.
    """
    try:
        return dumps(value).decode()
    except (RecursionError, ValueError) as error:
        raise BadRequest("the request is nested too deeply to be counted") from error


def _content(content: Any, found: Content) -> None:
    if isinstance(content, str):
        found.texts.append(content)
    elif isinstance(content, list):
        for part in content:
            _part(part, found)
    else:
        _any(content, found)


def _part(part: Any, found: Content) -> None:
    if isinstance(part, str):
        found.texts.append(part)
        return
    if not isinstance(part, dict):
        _any(part, found)
        return
    kind = part.get("type")
    kind = kind if isinstance(kind, str) else ""
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind in _IMAGE_TYPES:
        found.images.append(_image(part))
    elif kind in _REASONING_TYPES:
        _reasoning(part.get("thinking") or part.get("reasoning") or text, found)
    elif kind in _BLOB_TYPES:
        found.attachments.append(_attachment(part))
    elif isinstance(text, str):
        found.texts.append(text)
    else:
        _any(part, found)


def _image(part: Mapping[str, Any]) -> Dimensions | None:
    """Dimensions of OpenAI's, the Responses form's and Anthropic's image part."""
    source = part.get("image_url") or part.get("image") or part.get("source")
    if isinstance(source, dict):
        source = source.get("url") or source.get("data")
    return dimensions(source) if isinstance(source, str) else None


def _attachment(part: Mapping[str, Any]) -> int:
    return min(max(len(dump(part)) * 3 // 4 // ATTACHMENT_BYTES, 32), 16384)


def _reasoning(value: Any, found: Content) -> None:
    if isinstance(value, str):
        found.reasoning.append(value)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                found.reasoning.extend(
                    text for key in ("text", "summary", "thinking") if isinstance(text := item.get(key), str)
                )


def _calls(message: Mapping[str, Any], found: Content) -> None:
    calls = message.get("tool_calls")
    calls = list(calls) if isinstance(calls, list) else []
    if message.get("function_call"):
        calls.append({"function": message["function_call"]})
    for call in calls:
        found.calls += 1
        function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else call
        if not isinstance(function, dict):
            _any(call, found)
            continue
        for key in ("name", "arguments", "input"):
            _any(function.get(key), found)


def _any(value: Any, found: Content) -> None:
    """Count what no rule knows: text as it is, structures as their JSON without their blobs."""
    if value is None:
        return
    if isinstance(value, str):
        found.texts.append(value)
        return
    text = dump(value)
    if len(text) >= LONG_BLOB:
        sizes: list[int] = []
        value = _without_blobs(value, 6, sizes)
        found.attachments.extend(min(size // ATTACHMENT_BYTES + 32, 16384) for size in sizes)
        text = dump(value) if sizes else text
    found.texts.append(text)


def _without_blobs(value: Any, depth: int, sizes: list[int]) -> Any:
    """Put an empty string in the place of every text that looks like base64, whose length goes into `sizes`."""
    if isinstance(value, str):
        start = value.find(",", 0, 200) + 1 if value.startswith("data:") else 0
        if len(value) < LONG_BLOB or _BLOB.fullmatch(value, start) is None:
            return value
        sizes.append(len(value))
        return ""
    if isinstance(value, dict) and depth:
        return {name: _without_blobs(inner, depth - 1, sizes) for name, inner in value.items()}
    return value

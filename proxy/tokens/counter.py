"""What messages hold that reaches the prompt (texts, tool calls, re-sent reasoning, images, attachments), and its cost.

Nothing here raises for odd input: an unknown part is counted as its JSON, without what looks like base64.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.core.errors import BadRequest
from proxy.core.jsontext import dumps
from proxy.core.request import THOUGHT_FIELDS
from proxy.tokens.images import Dimensions, ImageRule, dimensions
from proxy.tokens.ratios import SCRIPTS, Vector, add, by_script

ATTACHMENT_BYTES = 1500
"""Decoded bytes of audio or of a file that are counted as one token; coarse, the weights correct it."""
_FEWEST, _MOST = 32, 16_384
"""Tokens of an attachment."""
_IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})
_REASONING_TYPES = frozenset({"thinking", "reasoning", "redacted_thinking"})
_REASONING_FIELDS = (*THOUGHT_FIELDS, "thinking", "reasoning_details")
_BLOB_TYPES = frozenset({"input_audio", "audio", "audio_url", "file", "input_file", "video_url", "video"})
_BLOB = re.compile(r'"(?:data:[^",]{0,200},)?(?:[A-Za-z0-9+/=_-]|\\[rn]){1024,}+"')
"""Base64 as a string of JSON."""
EXTRAS = (
    *("tools", "response_format", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort"),
    *("add_generation_prompt", "continue_final_message"),
)
"""Fields of a request besides its messages that change how the prompt is rendered."""
_RENDERED = ("tools", "documents")
_REST: Vector = (0,) * SCRIPTS


class Vocabulary(Protocol):
    """Counts tokens. Safe to use from several threads."""

    @property
    def id(self) -> str:
        """Name under which counts are cached and weights stored."""
        ...

    def count(self, text: str) -> int:
        """Count the tokens of a text of any length and content; never raises, linear in time."""
        ...


@dataclass(slots=True)
class Content:
    """Content that a message brings into the prompt. `images` holds dimensions, None where they can't be read."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: int = 0
    images: list[Dimensions | None] = field(default_factory=list)
    attachments: list[int] = field(default_factory=list)
    """Tokens of each attachment that is no image, coarsely by its size."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts messages with one vocabulary and rule for images. Usable from threads."""

    id: str
    """Name under which its counts are cached."""
    vocabulary: Vocabulary
    rule: ImageRule

    def message(self, message: Mapping[str, Any]) -> Vector:
        """Count a message.

        Raises:
            BadRequest: nested too deeply.
        """
        content = read_message(message)
        count = self.vocabulary.count
        texts = add([by_script(text, count(text)) for text in content.texts], SCRIPTS)
        reasoning = sum(map(count, content.reasoning))
        images = sum(map(self.rule, content.images)) + sum(content.attachments)
        return (*texts, 1, content.calls, reasoning, images, 0, 0)

    def extras(self, body: Mapping[str, Any]) -> Vector:
        """Count what a request adds to its messages where the whole prompt is predicted.

        Raises:
            BadRequest: nested too deeply.
        """
        rendered = [body[name] for name in _RENDERED if body.get(name) is not None]
        rendered += [schema] if (schema := _schema_of(body)) else []
        try:  # as Python writes it and most chat templates render it
            tools = sum(self.vocabulary.count(json.dumps(value, ensure_ascii=False)) for value in rendered)
        except (RecursionError, ValueError) as error:
            raise _too_deep() from error
        return (*_REST, 0, 0, 0, 0, 1, tools)


def read_message(message: Mapping[str, Any]) -> Content:
    """Take a chat message apart.

    Raises:
        BadRequest: nested too deeply to be serialised.
    """
    found = Content()
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            found.texts.append(part)
        else:
            _part(part, found)
    found.texts += [value for name in ("name", "refusal") if isinstance(value := message.get(name), str)]
    for name in _REASONING_FIELDS:
        if name in message:
            _reasoning(message[name], found)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        _call((call.get("function") or call.get("custom") or call) if isinstance(call, dict) else call, found)
    return found


def dump(value: Any) -> str:
    """JSON text of `value`.

    Raises:
        BadRequest: nested too deeply.
    """
    try:
        return dumps(value).decode()
    except (RecursionError, ValueError) as error:
        raise _too_deep() from error


def _too_deep() -> BadRequest:
    return BadRequest("the request is nested too deeply to be counted")


def _schema_of(body: Mapping[str, Any]) -> Any:
    """The schema that `response_format` asks for, else None."""
    requested = body.get("response_format")
    if not isinstance(requested, dict):
        return None
    named = requested.get("json_schema")
    return (named.get("schema") or named) if isinstance(named, dict) else requested.get("schema")


def _part(part: Any, found: Content) -> None:
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
        found.attachments.append(min(max(len(dump(part)) * 3 // 4 // ATTACHMENT_BYTES, _FEWEST), _MOST))
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


def _reasoning(value: Any, found: Content) -> None:
    if isinstance(value, str):
        found.reasoning.append(value)
    for item in value if isinstance(value, list) else ():
        texts = [item.get(name) for name in ("text", "summary", "thinking")] if isinstance(item, dict) else []
        found.reasoning += [text for text in texts if isinstance(text, str)]


def _call(function: Any, found: Content) -> None:
    found.calls += 1
    known = isinstance(function, dict) and not function.keys().isdisjoint(("name", "arguments", "input"))
    for value in [function.get(name) for name in ("name", "arguments", "input")] if known else [function]:
        _any(value, found)


def _any(value: Any, found: Content) -> None:
    """Count what no rule knows: text as it is, structures as their JSON without their blobs."""
    if isinstance(value, str):
        found.texts.append(value)
    elif value is not None:
        text = dump(value)
        blobs = [len(blob) for blob in _BLOB.findall(text)]
        found.attachments += [min(size // ATTACHMENT_BYTES + _FEWEST, _MOST) for size in blobs]
        found.texts.append(_BLOB.sub('""', text) if blobs else text)

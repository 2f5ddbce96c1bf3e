"""Contents of messages that reach the prompt (texts, tool calls, re-sent reasoning, images, attachments), and their cost.

Nothing here raises for valid JSON: an unknown part is counted as its JSON, without strings that look like base64.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from proxy.core.jsontext import dumps
from proxy.core.request import THOUGHT_FIELDS
from proxy.tokens.ratios import SCRIPTS, Vector, add, by_script

Dimensions: TypeAlias = tuple[int, int]
"""Width and height in pixels."""
ImageRule: TypeAlias = Callable[[Dimensions | None], float]

HEADER_BYTES = 48 * 1024
"""First bytes of an image that are read: a JPEG can have a preview and a colour profile before its frame header."""
UNKNOWN = 1000.0
"""Tokens of an image whose dimensions are unknown, for instance one given by its URL."""
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Rules for single families of models were removed until somebody reports a wrong count: the first report corrects an
# image's weight anyway.
_FIXED = re.compile(r"gemma-?3")
"""Models for which every image is 256 tokens."""

ATTACHMENT_BYTES = 1500
"""Decoded bytes of audio, or of a file, per token; coarse, but the learned weights correct it."""
_FEWEST, _MOST = 32, 16_384
"""Fewest and most tokens of an attachment."""
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

    def count(self, text: str) -> int:
        """Count the tokens of a text of any length and content; never raises, linear in time."""


@dataclass(slots=True)
class Content:
    """Content that a message adds to the prompt. `images` holds dimensions, or None if they can't be read."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: int = 0
    images: list[Dimensions | None] = field(default_factory=list)
    attachments: list[int] = field(default_factory=list)
    """Tokens of each attachment other than an image, estimated by its size."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts messages with one vocabulary and rule for images. Usable from threads."""

    id: str
    """Name under which its counts are cached."""
    vocabulary: Vocabulary
    rule: ImageRule

    def message(self, message: Mapping[str, Any]) -> Vector:
        """Count a message."""
        content = read_message(message)
        count = self.vocabulary.count
        texts = add([by_script(text, count(text)) for text in content.texts], SCRIPTS)
        reasoning = sum(map(count, content.reasoning))
        images = sum(map(self.rule, content.images)) + sum(content.attachments)
        return (*texts, 1, content.calls, reasoning, images, 0, 0)

    def extras(self, body: Mapping[str, Any]) -> Vector:
        """Count the parts of a request besides its messages, for a prediction of the whole prompt."""
        rendered = [body[name] for name in _RENDERED if body.get(name) is not None]
        rendered += [schema] if (schema := _schema_of(body)) else []
        # As Python's json module writes it, because most chat templates render it like that.
        tools = sum(self.vocabulary.count(json.dumps(value, ensure_ascii=False)) for value in rendered)
        return (*_REST, 0, 0, 0, 0, 1, tools)


def read_message(message: Mapping[str, Any]) -> Content:
    """Take a chat message apart."""
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


def _schema_of(body: Mapping[str, Any]) -> Any:
    """Return the schema that `response_format` asks for, or None."""
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
        found.attachments.append(min(max(len(dumps(part)) * 3 // 4 // ATTACHMENT_BYTES, _FEWEST), _MOST))
    elif isinstance(text, str):
        found.texts.append(text)
    else:
        _any(part, found)


def _image(part: Mapping[str, Any]) -> Dimensions | None:
    """Return the dimensions of an image part in the form of chat completions, the Responses API or Anthropic."""
    source = part.get("image_url") or part.get("image") or part.get("source")
    if isinstance(source, dict):
        source = source.get("url") or source.get("data")
    return dimensions(source) if isinstance(source, str) else None


def _reasoning(value: Any, found: Content) -> None:
    """Collect reasoning, each text only once: several fields may hold the same."""
    texts = [value]
    for item in value if isinstance(value, list) else ():
        texts += [item.get(name) for name in ("text", "summary", "thinking")] if isinstance(item, dict) else []
    found.reasoning += [text for text in texts if isinstance(text, str) and text not in found.reasoning]


def _call(function: Any, found: Content) -> None:
    found.calls += 1
    known = isinstance(function, dict) and not function.keys().isdisjoint(("name", "arguments", "input"))
    for value in [function.get(name) for name in ("name", "arguments", "input")] if known else [function]:
        _any(value, found)


def _any(value: Any, found: Content) -> None:
    """Collect content without a rule of its own: text as it is, structures as their JSON without base64 blobs."""
    if isinstance(value, str):
        found.texts.append(value)
    elif value is not None:
        text = dumps(value).decode()
        blobs = [len(blob) for blob in _BLOB.findall(text)]
        found.attachments += [min(size // ATTACHMENT_BYTES + _FEWEST, _MOST) for size in blobs]
        found.texts.append(_BLOB.sub('""', text) if blobs else text)


# Images by their dimensions, read from the first bytes of the file. Base64 is never counted as text: an image of 1 MB would read
# as 700,000 tokens and takes about 1,000.


def dimensions(url: str) -> Dimensions | None:
    """Return width and height of a PNG, JPEG or GIF in a `data:` URL or bare base64, or None."""
    start = url.find(",", 0, 200) + 1 if url.startswith("data:") else 0
    head = _first_bytes(url[start : start + HEADER_BYTES * 4 // 3])
    found: Dimensions | None = None
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        found = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    elif head[:4] == b"GIF8" and len(head) >= 10:
        found = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    elif head[:2] == b"\xff\xd8":
        found = _jpeg(head)
    return found if found and found[0] > 0 and found[1] > 0 else None


def _first_bytes(text: str) -> bytes:
    text = "".join(text.split())
    try:
        return base64.b64decode(text[: len(text) // 4 * 4], validate=False)
    except (ValueError, binascii.Error):
        return b""


def _jpeg(head: bytes) -> Dimensions | None:
    position = 2
    while position + 9 <= len(head) and head[position] == 0xFF:
        marker = head[position + 1]
        if marker in _JPEG_FRAMES:
            height, width = head[position + 5 : position + 7], head[position + 7 : position + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        # A fill byte, or a segment with its length.
        position += 1 if marker == 0xFF else 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return None


def by_area(size: Dimensions | None) -> float:
    """Return a token for each 28 by 28 pixels: the grid of Qwen-VL and Pixtral, and roughly that of others."""
    return UNKNOWN if size is None else min(max(size[0] * size[1] / 784, 64), 4096)


def fixed(size: Dimensions | None) -> float:
    """Return 256 tokens for any image."""
    del size
    return 256.0


def image_rule(model: str) -> ImageRule:
    """Return the rule for a model, by its name."""
    return fixed if _FIXED.search(model.lower()) else by_area

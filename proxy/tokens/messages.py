"""Cost of messages under one vocabulary, each counted once: one cache, by the digest of a message's content."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from proxy.core.errors import BadRequest
from proxy.tokens.content import read_message, schema_of
from proxy.tokens.images import ImageRule
from proxy.tokens.ratios import SCRIPTS, Vector, add, by_script
from proxy.tokens.vocabulary import Vocabulary

EXTRAS = (
    "tools",
    "functions",
    "response_format",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
)
"""Fields of a request besides its messages that change how the prompt is rendered."""
_RENDERED = ("tools", "functions", "documents")
_REST: Vector = (0,) * SCRIPTS


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts messages with one vocabulary (`exact`: the model's own) and rule for images. Usable from threads."""

    vocabulary: Vocabulary
    exact: bool
    rule: ImageRule

    @property
    def id(self) -> str:
        """Name under which its counts are cached."""
        return f"{self.vocabulary.id} {self.exact} {self.rule.__name__}"

    def text(self, text: str) -> tuple[float, ...]:
        """Tokens of a text by script; all under the first one where the count is exact."""
        tokens = self.vocabulary.count(text)
        return (tokens, *_REST[1:]) if self.exact else by_script(text, tokens)

    def message(self, message: Any) -> Vector:
        """Count a message (any parsed JSON).

        Raises:
            BadRequest: nested too deeply.
        """
        content = read_message(message)
        texts = add([self.text(text) for text in content.texts], SCRIPTS)
        reasoning = sum(map(self.vocabulary.count, content.reasoning))
        images = sum(map(self.rule, content.images)) + sum(content.attachments)
        return (*texts, 1, content.calls, reasoning, images, 0, 0)

    def extras(self, body: Mapping[str, Any]) -> Vector:
        """Count what a request adds to its messages where the whole prompt is predicted.

        Raises:
            BadRequest: nested too deeply.
        """
        rendered = [body[name] for name in _RENDERED if body.get(name) is not None]
        rendered += [schema] if (schema := schema_of(body)) else []
        tools = sum(self.vocabulary.count(_spaced(value)) for value in rendered)
        return (*_REST, 0, 0, 0, 0, 1, tools)


class CountCache:
    """Counts by the name of what counted and the digest of what it counted; the least recently used go first.

    Usable from threads: what another one drops between two steps is as good as unknown.
    """

    def __init__(self, limit: int = 65_536) -> None:
        self._limit = limit
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, bytes], Vector] = OrderedDict()

    def find(self, counter: str, digests: Sequence[bytes]) -> list[Vector | None]:
        """Find each count, None where it is not known."""
        with self._lock:
            return [self._used((counter, digest)) for digest in digests]

    def put(self, counter: str, digest: bytes, vector: Vector) -> Vector:
        """Remember a count, and return it."""
        with self._lock:
            self._known[counter, digest] = vector
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        return vector

    def _used(self, key: tuple[str, bytes]) -> Vector | None:
        if (vector := self._known.get(key)) is not None:
            self._known.move_to_end(key)
        return vector


def _spaced(value: Any) -> str:
    """JSON as Python writes it and most chat templates render it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        raise BadRequest("the request is nested too deeply to be counted") from error

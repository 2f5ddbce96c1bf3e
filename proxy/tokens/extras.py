"""Fields of a request besides its messages that reach the prompt: tools, schemas, template options."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from proxy.counting.anchors import EXTRAS, scope_digest
from proxy.counting.content import dump, schema_of
from proxy.counting.features import Vector, request_vector
from proxy.errors import BadRequest
from proxy.tokens.cache import Vectorizer

KEPT = 32
WHOLE_KEY = 4096
_DUMPED = ("tools", "functions", "documents")
_NOTHING = request_vector(tools=0, schema=0)


@dataclass(frozen=True, slots=True)
class Extras:
    """Digest of where anchors of such requests belong, and features of what is not a message."""

    scope: bytes
    x: Vector


@dataclass(frozen=True, slots=True)
class ExtrasDraft:
    """Extras that are asked for: the fields, their key, how much is to be read, and the result where it is known."""

    chosen: dict[str, Any]
    key: bytes
    size: int
    known: Extras | None

    def finish(self, scope: bytes, vectorizer: Vectorizer) -> Extras:
        """Count them. Usable from a thread."""
        if self.known is not None:
            return self.known
        tools = sum(vectorizer.text(_spaced(self.chosen[name]))[0] for name in _DUMPED if name in self.chosen)
        schema = schema_of(self.chosen)
        vector = request_vector(tools=tools, schema=vectorizer.text(_spaced(schema))[0] if schema else 0)
        return Extras(scope_digest(scope, self.key), vector)


@dataclass(slots=True)
class ExtrasCache:
    """The extras that one model was asked with lately; `scope` is the model's own digest."""

    scope: bytes
    none: Extras = field(init=False)
    """Of a body that has none."""
    _known: OrderedDict[tuple[str, bytes], Extras] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.none = Extras(self.scope, _NOTHING)

    def without(self, body: Mapping[str, Any]) -> Extras | None:
        """`none`, of a body that has none; None: it may have some."""
        return self.none if body.keys().isdisjoint(EXTRAS) else None

    def draft(self, vectorizer: Vectorizer, body: Mapping[str, Any]) -> ExtrasDraft:
        """Find what is known of the extras of `body`.

        Raises:
            BadRequest: nested too deeply.
        """
        chosen = {name: body[name] for name in EXTRAS if body.get(name) is not None}
        if not chosen:
            return ExtrasDraft(chosen, b"", 0, self.none)
        key = dump(chosen).encode()
        size = len(key)
        if size > WHOLE_KEY:
            key = blake2b(key, digest_size=16).digest()
        known = self._known.get((vectorizer.id, key))
        return ExtrasDraft(chosen, key, 0 if known else size, known)

    def keep(self, vectorizer: Vectorizer, draft: ExtrasDraft, extras: Extras) -> None:
        """Remember a finished draft."""
        if draft.chosen:
            self._known[vectorizer.id, draft.key] = extras
            self._known.move_to_end((vectorizer.id, draft.key))
            if len(self._known) > KEPT:
                self._known.popitem(last=False)


def _spaced(value: Any) -> str:
    """JSON as Python writes it and most chat templates render it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        raise BadRequest("the request is nested too deeply to be counted") from error

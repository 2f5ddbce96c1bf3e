"""Fields of a request besides its messages that reach the prompt: tools, schemas, template options."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from proxy.counting.anchors import OPTIONS, scope_digest
from proxy.counting.content import dump, schema_of
from proxy.counting.features import Vector, request_vector
from proxy.errors import BadRequest
from proxy.tokens.memory import Reader

KEPT = 32
WHOLE_KEY = 4096
_DUMPED = ("tools", "functions", "documents")
_NOTHING = request_vector(tools=0, schema=0)


@dataclass(frozen=True, slots=True)
class Options:
    """Digest of where anchors of such requests belong, and features of what is not a message."""

    scope: bytes
    x: Vector


@dataclass(frozen=True, slots=True)
class OptionsDraft:
    """Options asked for: the fields, their key, how much is to be read, and the result where it is known."""

    chosen: dict[str, Any]
    key: bytes
    size: int
    known: Options | None

    def finish(self, scope: bytes, reader: Reader) -> Options:
        """Count them. Usable from a thread."""
        if self.known is not None:
            return self.known
        tools = sum(reader.text(_spaced(self.chosen[name]))[0] for name in _DUMPED if name in self.chosen)
        schema = schema_of(self.chosen)
        vector = request_vector(tools=tools, schema=reader.text(_spaced(schema))[0] if schema else 0)
        return Options(scope_digest(scope, self.key), vector)


@dataclass(slots=True)
class OptionsCache:
    """The option sets that one model was asked with lately; `scope` is the model's own digest."""

    scope: bytes
    _known: OrderedDict[tuple[str, bytes], Options] = field(default_factory=OrderedDict)

    def draft(self, reader: Reader, body: Mapping[str, Any]) -> OptionsDraft:
        """Find what is known of the options of `body`.

        Raises:
            BadRequest: nested too deeply.
        """
        chosen = {name: body[name] for name in OPTIONS if body.get(name) is not None}
        if not chosen:
            return OptionsDraft(chosen, b"", 0, Options(self.scope, _NOTHING))
        key = dump(chosen).encode()
        size = len(key)
        if size > WHOLE_KEY:
            key = blake2b(key, digest_size=16).digest()
        known = self._known.get((reader.id, key))
        return OptionsDraft(chosen, key, 0 if known else size, known)

    def keep(self, reader: Reader, draft: OptionsDraft, options: Options) -> None:
        """Remember a finished draft."""
        if draft.chosen:
            self._known[reader.id, draft.key] = options
            self._known.move_to_end((reader.id, draft.key))
            if len(self._known) > KEPT:
                self._known.popitem(last=False)


def _spaced(value: Any) -> str:
    """JSON as Python writes it and most chat templates render it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        raise BadRequest("the request is nested too deeply to be counted") from error

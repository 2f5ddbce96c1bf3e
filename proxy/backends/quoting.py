"""Finding the client's own words in an error: backends repeat what they refuse, and that is evidence of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from typing import Any

from proxy.core import jsontext

_DROPPED = bytes(set(range(256)) - set(b"abcdefghijklmnopqrstuvwxyz0123456789"))
_CONTENTS = frozenset({"messages", "prompt", "input"})
_ANSWER_BOUNDS = ("max_tokens", "max_completion_tokens", "n_predict")


class Quote(Enum):
    """Part of a request in which a text stands."""

    NONE = "none"
    CONVERSATION = "conversation"
    """A user may well have pasted an error that the backend then gives in earnest."""
    PARAMETER = "parameter"
    """Any option, schema or tool."""


class SentRequest:
    """The body of a refused request, parsed when something is first looked up in it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def quote_of(self, text: str) -> Quote:
        """Tell where a text stands; letters and digits count, since errors escape and wrap what they repeat."""
        bare = _bare(text)
        parameters, conversation = self._texts
        if bare in parameters:
            return Quote.PARAMETER
        return Quote.CONVERSATION if bare in conversation else Quote.NONE

    @property
    def answer_bound(self) -> int:
        """Largest answer that it allows, in tokens; 0 without a bound."""
        bounds = (self._parsed.get(name) for name in _ANSWER_BOUNDS)
        return max((bound for bound in bounds if isinstance(bound, int)), default=0)

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        try:
            parsed = jsontext.loads(self._body)
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}

    @cached_property
    def _texts(self) -> tuple[bytes, bytes]:
        """Letters and digits of its parameters, and of its conversation."""
        parameters = {name: value for name, value in self._parsed.items() if name not in _CONTENTS}
        conversation = [value for name, value in self._parsed.items() if name in _CONTENTS]
        return b"\n".join(map(_bare, _strings(parameters))), b"\n".join(map(_bare, _strings(conversation)))


def _strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _bare(text: str) -> bytes:
    return text.lower().encode("ascii", "ignore").translate(None, _DROPPED)

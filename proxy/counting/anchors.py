"""Anchors: token counts that a backend reported, found again by the digest of the prompt's prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from proxy.counting.content import dump
from proxy.counting.features import Vector
from proxy.history.cachemarks import MARK, unmarked

DIGEST_BYTES = 16
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

_ROLES = {role: role.encode() + b"\0" for role in ("system", "developer", "user", "assistant", "tool")}


def link(previous: bytes, message: Any) -> bytes:
    """Digest of the prefix that ends with `message`, from the digest of the prefix before it."""
    if (
        type(message) is dict
        and len(message) == 2
        and type(content := message.get("content")) is str
        and (role := _ROLES.get(str(message.get("role")))) is not None
    ):
        data = b"%b%b%b" % (previous, role, content.encode("utf-8", "surrogatepass"))
    else:
        text = dump(message)
        if MARK in text and (bare := unmarked(message)) is not message:
            return link(previous, bare)
        data = previous + text.encode()
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def scope_digest(*parts: bytes | str) -> bytes:
    """Digest of where a chain of messages belongs: backend, model, options."""
    state = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.digest()


@dataclass(frozen=True, slots=True)
class Anchor:
    """A reported count: it covers the leading system messages and the first `covered` messages after them."""

    covered: int
    tokens: int
    system: Vector
    """Features of the system messages it was reported with; they may be others by now."""
    given: bool
    """Whether the backend counted on request, rather than reported what it did."""


class Anchors:
    """Reported token counts by scope and digest of the prefix; the least recently used are dropped.

    A prefix is known under its own system messages and, for prompts whose system message tells the time,
    without them.
    """

    def __init__(self, limit: int = 32768) -> None:
        self._limit = limit
        self._known: OrderedDict[bytes, Anchor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def put(self, scope: bytes, system: bytes, digest: bytes, anchor: Anchor) -> None:
        """Remember the count of the prefix with digest `digest` after system messages `system`."""
        for key in (scope + system + digest, scope + digest) if system else (scope + digest,):
            self._known[key] = anchor
            self._known.move_to_end(key)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def longest(self, scope: bytes, system: bytes, digests: Sequence[bytes]) -> Anchor | None:
        """The anchor of the longest prefix, one with the same system messages before any other."""
        return self._find(scope + system, digests) or (self._find(scope, digests) if system else None)

    def _find(self, start: bytes, digests: Sequence[bytes]) -> Anchor | None:
        known = self._known
        for digest in reversed(digests):
            anchor = known.get(key := start + digest)
            if anchor is not None:
                known.move_to_end(key)
                return anchor
        return None

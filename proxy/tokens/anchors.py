"""Anchors: token counts that a backend reported, found again by the digest of the prompt's beginning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from proxy.core.history.chain import CACHE_MARK, without_cache_marks
from proxy.tokens.content import dump
from proxy.tokens.ratios import Vector

DIGEST_BYTES = 16
_ROLES = {role: role.encode() + b"\0" for role in ("system", "developer", "user", "assistant", "tool")}


def digest_of(message: Any) -> bytes:
    """Digest of all that a message (any parsed JSON) says, which is not where a cache may end.

    Raises:
        BadRequest: nested too deeply.
    """
    if (
        type(message) is dict
        and len(message) == 2
        and type(content := message.get("content")) is str
        and (role := _ROLES.get(str(message.get("role")))) is not None
    ):
        data = role + content.encode("utf-8", "surrogatepass")
    else:
        text = dump(message)
        if CACHE_MARK in text and (bare := without_cache_marks(message)) is not message:
            return digest_of(bare)
        data = text.encode()
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def chain(digests: Iterable[bytes]) -> list[bytes]:
    """Digest of every prefix of messages with these digests."""
    link = b""
    return [link := blake2b(link + digest, digest_size=DIGEST_BYTES).digest() for digest in digests]


def scope_digest(*parts: bytes | str) -> bytes:
    """Digest of what a chain of messages depends on: backend, model, options."""
    state = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "big") + data)
    return state.digest()


@dataclass(frozen=True, slots=True)
class Anchor:
    """A reported count: it covers the leading system messages and the first `covered` messages after them."""

    covered: int
    tokens: int
    system: Vector
    """Of the system messages it was reported with; they may be others by now."""
    requested: bool
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
        for key in {scope + system + digest, scope + digest}:
            self._known[key] = anchor
            self._known.move_to_end(key)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def longest(self, scope: bytes, system: bytes, digests: Sequence[bytes]) -> Anchor | None:
        """Find the anchor of the longest prefix, one with the same system messages before any other."""
        for start in (scope + system, scope):
            for digest in reversed(digests):
                if (anchor := self._known.get(start + digest)) is not None:
                    self._known.move_to_end(start + digest)
                    return anchor
        return None

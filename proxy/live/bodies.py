"""Bodies as received and as forwarded, stored so that what the next turn of the conversation repeats takes no room."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.neutral.request import Request

LEAST = 16 * 1024
"""Bytes from which it is worth looking for what two bodies have in common."""
NEAR = 512
"""Bytes from the end of the shorter of two bodies in which what they have in common ends, mostly: the messages come before little else."""


@dataclass(slots=True, eq=False)
class KeptBody:
    """Bytes, or of how many of them another is the beginning, which is kept longer, and the rest."""

    own: bytes
    shared: int = 0
    later: KeptBody | None = None

    def lean_on(self, later: KeptBody) -> int:
        """Have what this begins with as `later` does, which is whole, in it alone, if that is worth it; the bytes that this frees."""
        if self.later is not None or self is later:
            return 0
        shared = beginning(self.own, later.own)
        if shared < len(self.own) // 2:
            return 0
        self.own, self.shared, self.later = self.own[shared:], shared, later
        return shared

    def whole(self) -> bytes:
        """All of the bytes."""
        body, most = self, self.shared + len(self.own)
        parts: list[bytes] = []
        while body.later is not None:
            parts.append(body.own[: max(0, most - body.shared)])
            most = min(most, body.shared)
            body = body.later
        return b"".join((body.own[:most], *reversed(parts))) if parts else body.own


class Bodies:
    """The bodies of one request."""

    __slots__ = ("_asked", "_forwarded", "_request", "_taken")

    def __init__(self, asked: bytes | Request, taken: int) -> None:
        """Keep what was asked; as a request it takes so many bytes, about."""
        self._asked: KeptBody | None = None
        self._request: Request | None = None
        if isinstance(asked, bytes):
            self._asked = KeptBody(asked)
        else:
            self._request = asked
        self._taken = taken
        self._forwarded: KeptBody | None = None

    @property
    def asked(self) -> bytes | Request:
        """Body from the client, if it was JSON of chat completions; else the request parsed from it."""
        if self._asked is not None:
            return self._asked.whole()
        assert self._request is not None
        return self._request

    @property
    def forwarded(self) -> bytes:
        """Body sent upstream last; empty before the first."""
        return b"" if self._forwarded is None else self._forwarded.whole()

    def forward(self, data: bytes) -> None:
        """Store the body that is sent upstream."""
        if self._asked is not None and self._asked.own is data:
            self._forwarded = self._asked
        elif data and (self._forwarded is None or self._forwarded.own is not data):
            self._forwarded = KeptBody(data)

    @property
    def same(self) -> bool:
        """True if the body was forwarded byte for byte."""
        return self._forwarded is not None and self._forwarded is self._asked

    @property
    def size(self) -> int:
        """Bytes of both, about."""
        asked, forwarded = self._asked, self._forwarded
        size = self._taken if asked is None else len(asked.own)
        return size if forwarded is None or forwarded is asked else size + len(forwarded.own)

    def lean_on(self, later: Bodies) -> int:
        """Keep only what those of the conversation's next request do not begin with; the bytes, about, that this frees.

        A large body takes as long as comparing it once. The other one has to be kept for as long as this is.
        """
        freed = 0
        asked, forwarded = self._asked, self._forwarded
        if asked is not None and len(asked.own) >= LEAST and later._asked is not None:
            freed += asked.lean_on(later._asked)
        if forwarded is not None and len(forwarded.own) >= LEAST and later._forwarded is not None:
            freed += forwarded.lean_on(later._forwarded)
        return freed


def beginning(one: bytes, other: bytes) -> int:
    """Return a lower bound on the length of the common prefix of two bodies, short of it by at most `NEAR` bytes."""
    low, high = 0, min(len(one), len(other))
    step = NEAR
    while low < high:
        at = max(low, high - step) if step < high - low else (low + high) // 2
        if at > low and not other.startswith(one[low:at], low):
            high, step = at - 1, 8 * step
        elif high - at <= NEAR:
            return at
        else:
            low, step = at, high
    return low

"""Bodies as received and as forwarded, stored so that what the next turn of the conversation repeats takes no room."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core.request import Request

LEAST = 16 * 1024
"""Bytes from which it is worth looking for what two bodies have in common."""
NEAR = 512
"""Bytes from the end of the shorter of two bodies in which what they have in common ends, mostly: the messages come before little else."""


@dataclass(slots=True, eq=False)
class StoredBody:
    """Bytes, or of how many of them another is the beginning, which is kept longer, and the rest."""

    data: bytes
    shared: int = 0
    later: StoredBody | None = None

    def lean_on(self, later: StoredBody) -> int:
        """Have what this begins with as `later` does, which is whole, in it alone, if that is worth it; the bytes that this frees."""
        if self.later is not None or self is later:
            return 0
        shared = beginning(self.data, later.data)
        if shared < len(self.data) // 2:
            return 0
        self.data, self.shared, self.later = self.data[shared:], shared, later
        return shared

    def content(self) -> bytes:
        """All of the bytes."""
        body, most = self, self.shared + len(self.data)
        parts: list[bytes] = []
        while body.later is not None:
            parts.append(body.data[: max(0, most - body.shared)])
            most = min(most, body.shared)
            body = body.later
        return b"".join((body.data[:most], *reversed(parts))) if parts else body.data


class Bodies:
    """The bodies of one request."""

    __slots__ = ("_forwarded", "_received", "_request", "_size")

    def __init__(self, received: bytes | Request, size: int) -> None:
        """Store the request as received, of about `size` bytes."""
        self._received: StoredBody | None = None
        self._request: Request | None = None
        if isinstance(received, bytes):
            self._received = StoredBody(received)
        else:
            self._request = received
        self._size = size
        self._forwarded: StoredBody | None = None

    @property
    def received(self) -> bytes | Request:
        """Body from the client, if it was JSON of chat completions; else the request parsed from it."""
        if self._received is not None:
            return self._received.content()
        assert self._request is not None
        return self._request

    @property
    def forwarded(self) -> bytes:
        """Body sent upstream last; empty before the first."""
        return b"" if self._forwarded is None else self._forwarded.content()

    def forward(self, data: bytes) -> None:
        """Store the body that is sent upstream."""
        if self._received is not None and self._received.data is data:
            self._forwarded = self._received
        elif data and (self._forwarded is None or self._forwarded.data is not data):
            self._forwarded = StoredBody(data)

    @property
    def same(self) -> bool:
        """True if the body was forwarded byte for byte."""
        return self._forwarded is not None and self._forwarded is self._received

    @property
    def size(self) -> int:
        """Bytes of both, about."""
        received, forwarded = self._received, self._forwarded
        size = self._size if received is None else len(received.data)
        return size if forwarded is None or forwarded is received else size + len(forwarded.data)

    def lean_on(self, later: Bodies) -> int:
        """Keep only what those of the conversation's next request do not begin with; the bytes, about, that this frees.

        A large body takes as long as comparing it once. The other one has to be kept for as long as this is.
        """
        freed = 0
        received, forwarded = self._received, self._forwarded
        if received is not None and len(received.data) >= LEAST and later._received is not None:
            freed += received.lean_on(later._received)
        if forwarded is not None and len(forwarded.data) >= LEAST and later._forwarded is not None:
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

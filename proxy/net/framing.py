"""What the head of a response says of its body: RFC 9112, section 6.3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

RawHeaders = Sequence[tuple[bytes, bytes]]

BODILESS = frozenset({204, 304})
"""Statuses of responses without a body, whatever their head says."""


def is_chunked(headers: RawHeaders) -> bool:
    """Whether the body comes in chunks, the last of which ends it."""
    return any(b"chunked" in value.lower() for value in _values(headers, b"transfer-encoding"))


def is_framed(headers: RawHeaders) -> bool:
    """Whether the end of the body can be told; otherwise it is where the connection ends."""
    return is_chunked(headers) or any(True for _ in _values(headers, b"content-length"))


def has_body(headers: RawHeaders) -> bool:
    """Whether the head speaks of a body with something in it."""
    coded = any(True for _ in _values(headers, b"transfer-encoding"))
    return coded or any(value.strip() != b"0" for value in _values(headers, b"content-length"))


def _values(headers: RawHeaders, wanted: bytes) -> Iterable[bytes]:
    return (value for name, value in headers if name.lower() == wanted)

"""What the head of a response says of its body: RFC 9112, section 6.3."""

from __future__ import annotations

from operator import itemgetter

import httpx

from proxy.wire.headers import Headers


class InvalidResponse(httpx.RemoteProtocolError):
    """What the server sends is no response of HTTP/1.1, or one without end."""


BODILESS = frozenset({204, 304})
"""Statuses of responses without a body, whatever their head says."""
MOST_HEADERS = 1000
_name = itemgetter(0)


def is_chunked(headers: Headers) -> bool:
    """Whether the body comes in chunks, the last of which ends it."""
    return b"transfer-encoding" in map(bytes.lower, map(_name, headers))


def fault_in(status: int, headers: Headers) -> str | None:
    """What makes this no head of a response to be read on from; None for nothing.

    Other transfer codings than `chunked` were not asked for (RFC 9112, 6.1), and who passed their bytes on would pass on
    another body. After the head of an interim response comes that of the next one (RFC 9110, 15.2).
    """
    if len(headers) > MOST_HEADERS:
        return f"more than {MOST_HEADERS} headers"
    if not 100 <= status < 600:
        return f"a status of {status:03}"
    if status == 101:
        return "an upgrade that nobody asked for"
    if status < 200:
        return "an interim response with a body" if has_body(headers) else None
    if not is_chunked(headers):
        return None
    codings = [value.strip(b" \t").lower() for value in _values(headers, b"transfer-encoding")]
    return None if codings == [b"chunked"] else "a transfer coding that nobody asked for"


def is_framed(headers: Headers) -> bool:
    """Whether the end of the body can be told; otherwise it is where the connection ends."""
    return is_chunked(headers) or bool(_values(headers, b"content-length"))


def has_body(headers: Headers) -> bool:
    """Whether the head speaks of a body with something in it."""
    return is_chunked(headers) or any(value.strip() != b"0" for value in _values(headers, b"content-length"))


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name.lower() == wanted]

"""Which headers travel on, in either direction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

import httpx

from proxy.net.credentials import OwnKeys, is_credential
from proxy.net.inflate import UNDONE
from proxy.net.response import PlainResponse

Header = tuple[bytes, bytes]

AS_JSON: Header = (b"content-type", b"application/json")
"""Of a body that is JSON."""

# RFC 9110, section 7.6.1, and what concerns only one of the two connections.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_UPSTREAM = HOP_BY_HOP | {
    b"host",  # the upstream's own: Ollama answers 403 to others
    b"content-length",  # set from the body that is really sent
    b"expect",
    # A request is let in for the method it has.
    *(b"x-http-method-override", b"x-http-method", b"x-method-override"),
    # The page has been judged by Spillway; a backend would judge it as if it had been called itself.
    *(b"origin", b"access-control-request-method", b"access-control-request-headers"),
    b"access-control-request-private-network",
    b"x-conversation-id",  # llama.cpp would go on generating after a disconnect
}
_OWN_PREFIX = b"x-spillway-"
SESSION = b"spillway_session"
"""The cookie of those who look at Spillway in a browser, which is no backend's business."""
_OF_ANTHROPIC = b"anthropic-"
_NOT_DOWNSTREAM = (_OWN_PREFIX, b"access-control-")
"""Which pages may read an answer is for Spillway to say: it knows who asked."""
_NONE: frozenset[bytes] = frozenset()
_UNDOABLE = frozenset({b"identity", *(name.encode() for name in UNDONE)})


def upstream_headers(
    headers: Sequence[Header],
    *,
    authorization: bytes | None,
    own_keys: OwnKeys,
    drop: Collection[bytes] = (),
) -> list[Header]:
    """A client's headers as the backend may see them.

    `authorization` is the backend's own, if one is configured; the client's credentials pass where there is none. What
    holds one of Spillway's own keys never does. `drop` names further headers, in lower case.
    """
    named = _named_in([value for name, value in headers if name == b"connection"])
    guarded = bool(own_keys)
    kept: list[Header] = []
    for name, value in headers:
        if name in _NOT_UPSTREAM or name in named or name in drop or name.startswith(_OWN_PREFIX):
            continue
        if authorization is not None and is_credential(name):
            continue
        if guarded and own_keys.are_in(value):
            continue
        if name == b"cookie" and SESSION in value:
            value = without_session(value)  # noqa: PLW2901 - the rest of it goes on
            if not value:
                continue
        kept.append((name, value))
    if authorization is not None:
        kept.append((b"authorization", authorization))
    return kept


def without_session(cookies: bytes) -> bytes:
    """A Cookie header's value without the cookie of a session here."""
    parts = [part.strip() for part in cookies.split(b";")]
    return b"; ".join(part for part in parts if part.partition(b"=")[0].strip() != SESSION)


def told_length(headers: Sequence[Header]) -> list[Header]:
    """The length that a request's headers tell of its body, as a header; none where it comes in chunks."""
    if any(name == b"transfer-encoding" for name, _ in headers):
        return []
    return [(name, value) for name, value in headers if name == b"content-length"][:1]


def uncompressed(headers: Iterable[Header]) -> list[Header]:
    """The same headers, with a plain answer asked for where the client would take a compressed one."""
    return [(name, b"identity" if name == b"accept-encoding" else value) for name, value in headers]


def decodable(headers: Iterable[Header]) -> list[Header]:
    """The same headers, with an answer asked for only in those of the client's encodings that can be undone here."""
    return [(name, _undoable(value) if name == b"accept-encoding" else value) for name, value in headers]


def said_otherwise(headers: Sequence[Header]) -> list[Header]:
    """The headers of a request that a backend gets in OpenAI's dialect, and that was made in another one.

    Anthropic's clients give their key in a header that OpenAI's servers do not look at, and tell versions of an API
    that the backend is not asked by.
    """
    known = any(name == b"authorization" for name, _ in headers)
    made: list[Header] = []
    for name, value in headers:
        if name == b"x-api-key" and not known:
            made.append((b"authorization", b"Bearer " + value.strip()))
        elif not name.startswith(_OF_ANTHROPIC):
            made.append((name, value))
    return made


def response_headers(headers: Iterable[Header], *, drop: Collection[bytes] = ()) -> list[Header]:
    """A backend's headers as the client may see them: all but what concerns the upstream connection."""
    kept: list[Header] = []
    told: list[bytes] = []
    for raw, value in headers:
        name = raw.lower()
        if name == b"connection":
            told.append(value)
        elif name not in HOP_BY_HOP and name not in drop and not name.startswith(_NOT_DOWNSTREAM):
            kept.append((name, value))
    named = _named_in(told)
    return [pair for pair in kept if pair[0] not in named] if named else kept


def headers_of(response: httpx.Response, *, drop: Collection[bytes] = ()) -> list[Header]:
    """The headers of a backend's response as the client may see them."""
    if isinstance(response, PlainResponse) and response.unchanged:
        return response_headers(response.pairs, drop=drop)
    return response_headers(response.headers.raw, drop=drop)


def _named_in(told: Sequence[bytes]) -> frozenset[bytes]:
    """The headers that fields named Connection name."""
    return frozenset(part.strip().lower() for value in told for part in value.split(b",")) if told else _NONE


@lru_cache(maxsize=32)  # clients send one of a handful
def _undoable(accepted: bytes) -> bytes:
    """What remains of an accept-encoding field (RFC 9110, section 12.5.3); its weights stay."""
    parts = [part.strip() for part in accepted.split(b",")]
    kept = [part for part in parts if part.partition(b";")[0].strip().lower() in _UNDOABLE]
    return b", ".join(kept) or b"identity"

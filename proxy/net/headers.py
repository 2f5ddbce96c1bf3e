"""Which headers travel on, in either direction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import TypeAlias

import httpx

from proxy.net.credentials import OwnKeys, is_credential
from proxy.net.inflate import UNDONE
from proxy.wire.headers import Remembered
from proxy.wire.memo import Memo

Header = tuple[bytes, bytes]
Accept: TypeAlias = Callable[[bytes], bytes]
"""Makes the value of an `accept-encoding` another one."""

AS_JSON: Header = (b"content-type", b"application/json")
"""Of a body that is JSON."""
OF_ENCODING = frozenset({b"content-encoding"})
"""What does not hold for a body that was decoded."""

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
_OF_ANTHROPIC = b"anthropic-"
_NOT_DOWNSTREAM = (_OWN_PREFIX, b"access-control-")
"""Which pages may read an answer is for Spillway to say: it knows who asked."""
_first, _second = itemgetter(0), itemgetter(1)
_UNDOABLE = frozenset({b"identity", *(name.encode() for name in UNDONE)})


class Outgoing:
    """What one backend may see of a client's headers, where it is asked in one way.

    Each header is judged by itself, and once for as long as it comes again.
    """

    def __init__(
        self,
        *,
        authorization: bytes | None,
        own_keys: OwnKeys,
        drop: Collection[bytes] = (),
        accept: Accept | None = None,
    ) -> None:
        """Make it.

        Args:
            authorization: the backend's own, if one is configured; the client's credentials pass where there is none.
            own_keys: Spillway's; what holds one of them never passes.
            drop: further headers, in lower case.
            accept: what becomes of the value of `accept-encoding`; None: it passes as it is.
        """
        self._own: tuple[Header, ...] = () if authorization is None else ((b"authorization", authorization),)
        self._own_keys = own_keys
        self._not = _NOT_UPSTREAM.union(drop)
        self._accept = accept
        self._passing = Remembered(self._passed)

    def of(self, headers: Iterable[Header]) -> list[Header]:
        """What passes of them, and the backend's own authorization."""
        kept = [*filter(None, map(self._passing.__getitem__, headers))]
        if b"connection" in dict(kept):
            kept = _without_named(kept)
        return [*kept, *self._own]

    def _passed(self, name: bytes, value: bytes) -> Header | None:
        """A header as it passes; None: it does not. One that names others passes, until they are left out as well."""
        if name == b"connection":
            return (name, value) if _named_in(value) - HOP_BY_HOP else None
        if name in self._not or name.startswith(_OWN_PREFIX):
            return None
        if (self._own and is_credential(name)) or (self._own_keys and self._own_keys.are_in(value)):
            return None
        if name == b"accept-encoding" and self._accept is not None:
            return name, self._accept(value)
        return name, value


def told_length(headers: Sequence[Header]) -> list[Header]:
    """The length that a request's headers tell of its body, as a header; none where it comes in chunks."""
    if any(name == b"transfer-encoding" for name, _ in headers):
        return []
    return [(name, value) for name, value in headers if name == b"content-length"][:1]


def uncompressed(accepted: bytes) -> bytes:
    """A plain answer is asked for, where the client would take a compressed one."""
    del accepted
    return b"identity"


def decodable(accepted: bytes) -> bytes:
    """What remains of an accept-encoding field (RFC 9110, section 12.5.3): what can be undone here; its weights stay."""
    parts = [part.strip() for part in accepted.split(b",")]
    kept = [part for part in parts if part.partition(b";")[0].strip().lower() in _UNDOABLE]
    return b", ".join(kept) or b"identity"


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


def response_headers(headers: Sequence[Header], *, drop: Collection[bytes] = ()) -> list[Header]:
    """A backend's headers as the client may see them: all but what concerns the upstream connection."""
    names = map(_downstream.__getitem__, map(_first, headers))
    kept = [pair for pair in zip(names, map(_second, headers), strict=True) if pair[0]]
    if drop:
        kept = [pair for pair in kept if pair[0] not in drop]
    return _without_named(kept) if b"connection" in dict(kept) else kept


def headers_of(response: httpx.Response, *, drop: Collection[bytes] = ()) -> list[Header]:
    """The headers of a backend's response as the client may see them."""
    return response_headers(response.headers.raw, drop=drop)


def _name_downstream(raw: bytes) -> bytes:
    """The name of a response's header in lower case; empty for one that no client gets. `connection` may name others."""
    name = raw.lower()
    away = name in HOP_BY_HOP or name.startswith(_NOT_DOWNSTREAM)
    return b"" if away and name != b"connection" else name


_downstream = Memo(_name_downstream, most=512, longest=128)


def _without_named(headers: Sequence[Header]) -> list[Header]:
    """The same without `connection`, and without what such fields name."""
    named = {b"connection"}.union(*(_named_in(value) for name, value in headers if name == b"connection"))
    return [pair for pair in headers if pair[0] not in named]


def _named_in(value: bytes) -> frozenset[bytes]:
    """The headers that a field named Connection names."""
    return frozenset(part.strip().lower() for part in value.split(b","))

"""Which headers travel on, in either direction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

Header = tuple[bytes, bytes]

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
    b"x-conversation-id",  # llama.cpp would go on generating after a disconnect
}
_OWN_PREFIX = b"x-spillway-"


def upstream_headers(
    headers: Iterable[Header],
    *,
    api_key: str | None,
    own_keys: Collection[str],
    drop: Collection[bytes] = (),
) -> list[Header]:
    """A client's headers as the backend may see them.

    The client's own Authorization passes, unless the backend has a configured key or it is one of
    Spillway's own keys. `drop` names further headers, in lower case.
    """
    pairs = list(headers)
    named = _named_by_connection(pairs)
    kept: list[Header] = []
    for name, value in pairs:
        if name in _NOT_UPSTREAM or name in named or name in drop or name.startswith(_OWN_PREFIX):
            continue
        if name in (b"authorization", b"x-api-key") and (
            api_key is not None or credential(value) in own_keys
        ):
            continue
        kept.append((name, value))
    if api_key is not None:
        kept.append((b"authorization", b"Bearer " + api_key.encode()))
    return kept


def uncompressed(headers: Iterable[Header]) -> list[Header]:
    """The same headers, with a plain answer asked for where the client would take a compressed one."""
    return [(name, b"identity" if name == b"accept-encoding" else value) for name, value in headers]


def response_headers(headers: Iterable[Header], *, drop: Collection[bytes] = ()) -> list[Header]:
    """A backend's headers as the client may see them: all but what concerns the upstream connection."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = _named_by_connection(pairs)
    return [
        (name, value)
        for name, value in pairs
        if name not in HOP_BY_HOP
        and name not in named
        and name not in drop
        and not name.startswith(_OWN_PREFIX)
    ]


def credential(value: bytes) -> str:
    """The key in an Authorization or x-api-key header."""
    text = value.decode("latin-1").strip()
    return text[7:].strip() if text[:7].lower() == "bearer " else text


def _named_by_connection(pairs: Sequence[Header]) -> frozenset[bytes]:
    named = {
        part.strip().lower() for name, value in pairs if name == b"connection" for part in value.split(b",")
    }
    return frozenset(named)

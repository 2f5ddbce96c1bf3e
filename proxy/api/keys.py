"""Inbound keys: who may use this proxy, and whose the histories are."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from hmac import compare_digest

from proxy.net.credentials import credential, is_credential, key_bytes
from proxy.wire.headers import Headers
from proxy.wire.memo import Memo

_PRESENTED = (b"authorization", b"x-api-key")
"""Where a key of ours is looked for."""
_SHORT = 4096
"""Bytes of names, or of credentials, that are remembered: those of one client are the same each time."""


class Keys:
    """Spillway's own keys. They are compared by their digests, so that time tells neither their length nor their text."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._known = tuple((_digest(form), _tenant(key.encode())) for key in keys for form in key_bytes(key))

    def holder(self, headers: Headers) -> str | None:
        """The tenant whose key the request presents; None if it presents none of them."""
        found: str | None = None
        for name, value in headers:
            if name in _PRESENTED:
                given = _digest(credential(value))
                for known, holder in self._known:
                    if compare_digest(given, known):
                        found = found or holder
        return found


def presented(headers: Headers) -> bool:
    """Whether a request has a header in which a key is looked for."""
    return any(name in _PRESENTED for name, _ in headers)


def sender(headers: Headers) -> str:
    """The tenant of a request that needs no key: whoever has the same credentials, for whichever backend they are."""
    if not headers:
        return _tenant(b"")
    names, values = zip(*headers, strict=True)
    return _tenants[b"\n".join(sorted([values[at] for at in _credentials[names]]))]


def _found(names: Sequence[bytes]) -> tuple[int, ...]:
    """Where there are credentials, among headers of these names."""
    return tuple([at for at, name in enumerate(names) if is_credential(name)])


_credentials = Memo(_found, most=256, longest=_SHORT, size=lambda names: len(b"".join(names)))


def _tenant(credentials: bytes) -> str:
    """A digest: histories of different ones never meet."""
    return blake2b(credentials, digest_size=12, person=b"spillway-tenant").hexdigest()


_tenants = Memo(_tenant, most=1024, longest=_SHORT)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=32).digest()

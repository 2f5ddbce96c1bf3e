"""Inbound keys: who may use this proxy."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest

from proxy.errors import Unauthorized
from proxy.exchange import Exchange
from proxy.net.headers import credential


def authorize(exchange: Exchange, keys: Sequence[str]) -> None:
    """Let the request in if no keys are set or it presents one of them.

    Raises:
        Unauthorized: it presents none, or another.
    """
    if not keys:
        return
    presented = [credential(v) for name, v in exchange.headers if name in (b"authorization", b"x-api-key")]
    for given in presented:
        if any(compare_digest(given.encode(), key.encode()) for key in keys):
            return
    raise Unauthorized(
        "This proxy needs one of its own keys: send `Authorization: Bearer KEY` with a key from SPILLWAY_API_KEYS."
        if not presented
        else "The key is not one of this proxy's own keys (SPILLWAY_API_KEYS)."
    )

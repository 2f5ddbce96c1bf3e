"""Web pages: which may use Spillway from a browser, and what the browser has to be told (Fetch Standard, "CORS protocol")."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from proxy.errors import Forbidden
from proxy.net.headers import Header
from proxy.wire.memo import Memo

OF_PAGES = frozenset({b"origin", b"sec-fetch-site"})
"""Headers that browsers send for a page; without them no page did."""
_ELSEWHERE = (b"cross-site", b"same-site")
_ANY = "*"
_LONGEST = 256
"""Bytes of an origin that is remembered: those of hosts' names are no longer."""
_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~, -]{0,4096}")
"""Names of headers with commas between them (RFC 9110, section 5.6.2)."""


class Origins:
    """The origins of pages that may use Spillway from a browser."""

    def __init__(self, listed: Sequence[str]) -> None:
        """`listed` are globs in lower case; `*` alone stands for every page there is."""
        self._listed = tuple(listed)
        self._known = Memo(self._allowed, most=256, longest=_LONGEST)

    def allowed(self, origin: bytes) -> bool:
        """Whether a page of this origin may."""
        return self._known[origin]

    def _allowed(self, origin: bytes) -> bool:
        return any(fnmatchcase(origin.decode("latin-1").lower(), glob) for glob in self._listed)

    def headers(self, origin: bytes) -> list[Header]:
        """What every answer to an allowed page says, so that the browser lets it read."""
        who = b"*" if _ANY in self._listed else origin
        return [
            (b"access-control-allow-origin", who),
            (b"access-control-expose-headers", b"*"),
            (b"vary", b"Origin"),
        ]


def preflight(asked: bytes, *, private: bool) -> list[Header]:
    """What the browser is told that asks whether it may send a request.

    `asked` are the names of the headers it wants to send, `private`: whether it says that this is a private network.
    """
    told = [
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
        (b"access-control-max-age", b"600"),
    ]
    # They are named, because `*` does not stand for `Authorization` there.
    if asked and _NAMES.fullmatch(asked):
        told.append((b"access-control-allow-headers", asked))
    return [*told, (b"access-control-allow-private-network", b"true")] if private else told


def check_page(asked: Mapping[bytes, bytes]) -> None:
    """Refuse what another page than Spillway's own sent; browsers say so in one of two ways. `asked` are headers by name.

    Raises:
        Forbidden: another page did.
    """
    origin = asked.get(b"origin")
    if origin is not None:
        # The scheme is left out: something in front may have taken TLS off.
        foreign = origin.rpartition(b"://")[2].lower() != asked.get(b"host", b"").lower()
        page = origin.decode("latin-1")
    else:
        # No origin is told of images, scripts and the like. That a person followed a link does no harm.
        foreign = asked.get(b"sec-fetch-site") in _ELSEWHERE and asked.get(b"sec-fetch-mode") != b"navigate"
        page = "another page"
    if foreign:
        raise Forbidden(
            f"A web page may not use this Spillway, unless it is allowed to: {page[:200]!r} would have to be in "
            "SPILLWAY_CORS, or clients need keys (SPILLWAY_API_KEYS).",
            code="origin_not_allowed",
        )

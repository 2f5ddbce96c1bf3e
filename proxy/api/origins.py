"""Web pages: which may use Spillway from a browser, and what the browser has to be told (Fetch Standard, "CORS protocol")."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from proxy.net.headers import Header

_ANY = "*"
_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~, -]{0,4096}")
"""Names of headers with commas between them (RFC 9110, section 5.6.2)."""


class Origins:
    """The origins of pages that may use Spillway from a browser."""

    def __init__(self, listed: Sequence[str]) -> None:
        """`listed` are globs in lower case; `*` alone stands for every page there is."""
        self._listed = tuple(listed)
        self.allowed = lru_cache(maxsize=256)(self._allowed)
        """Whether a page of this origin may."""

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

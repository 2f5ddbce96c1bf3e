"""The sessions of browsers: a key is shown once, and a random cookie stands for it from then on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from secrets import token_urlsafe

from proxy.live.viewer import Viewer

HOURS = 12
MOST = 1000
"""Sessions at a time; the oldest go first."""


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """Somebody who showed a key. `csrf` is what actions in their name need besides the cookie."""

    viewer: Viewer
    csrf: str
    expires: float


class Sessions:
    """By digests of their cookies: whoever sees this memory can't make a cookie of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._known: OrderedDict[bytes, BrowserSession] = OrderedDict()

    def begin(self, viewer: Viewer) -> tuple[str, BrowserSession]:
        """A new session, and its cookie's value."""
        token = token_urlsafe(32)
        session = BrowserSession(viewer, token_urlsafe(24), self._clock() + HOURS * 3600)
        self._known[_digest(token)] = session
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return token, session

    def find(self, token: str) -> BrowserSession | None:
        """The session of a cookie."""
        digest = _digest(token)
        session = self._known.get(digest)
        if session is not None and session.expires <= self._clock():
            del self._known[digest]
            return None
        return session

    def end(self, token: str) -> None:
        """End a session."""
        self._known.pop(_digest(token), None)


def _digest(token: str) -> bytes:
    return blake2b(token.encode("utf-8", "surrogatepass"), digest_size=32).digest()

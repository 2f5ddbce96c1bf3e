"""Who may look, and act, and by what that is told: a key, a session, or that nothing is guarded here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from secrets import token_urlsafe

from proxy.api.keys import Keys, presented
from proxy.api.live.sessions import HOURS, BrowserSession, Sessions
from proxy.api.origins import check_page
from proxy.errors import Forbidden, Unauthorized
from proxy.exchange import Exchange
from proxy.live.viewer import Viewer
from proxy.net.headers import SESSION

CSRF = b"x-spillway-csrf"
_IN_FRONT = (b"x-forwarded-for", b"forwarded", b"x-real-ip")
"""Headers by which something in front says that it is not this machine that asks."""
_OF_BROWSERS = (b"origin", b"sec-fetch-site", b"sec-fetch-mode")


@dataclass(frozen=True, slots=True)
class Seen:
    """A viewer, and what an action needs besides."""

    viewer: Viewer
    csrf: str
    by_key: bool
    """Whether the request itself has the key, which no browser adds by itself."""


class Gate:
    """Tells who looks. Web pages other than Spillway's own never do, not even those that may ask models.

    Args:
        keys: of those who may ask models.
        admin_keys: of those who may look at everything.
        content: whether these see what was said.
        loopback: whether Spillway listens on this machine's own address.
        clock: seconds.
    """

    def __init__(
        self,
        keys: Sequence[str],
        admin_keys: Sequence[str],
        *,
        content: bool,
        loopback: bool,
        clock: Callable[[], float],
    ) -> None:
        self._keys, self._admins = Keys(keys), Keys(admin_keys)
        self._content = content
        self._open = loopback and not keys and not admin_keys
        self._csrf = token_urlsafe(24)
        self.sessions = Sessions(clock)

    def seen(self, exchange: Exchange) -> Seen | None:
        """Who looks; None: somebody who has to show a key first.

        Raises:
            Forbidden: another page than Spillway's own uses a browser's session.
        """
        viewer = self._of_key(exchange)
        if viewer is not None:
            return Seen(viewer, self._csrf, by_key=True)
        if (token := cookie(exchange)) and (session := self.sessions.find(token)) is not None:
            check_page(dict(exchange.headers))
            return Seen(session.viewer, session.csrf, by_key=False)
        if self._open and not any(exchange.header(name) for name in _IN_FRONT):
            # Pages that may ask models (SPILLWAY_CORS) may not read what others asked.
            check_page(dict(exchange.headers))
            return Seen(Viewer("open", content=True), self._csrf, by_key=False)
        return None

    def tenant(self, exchange: Exchange) -> str | None:
        """Whose a request is that only looks; None: who sends it may not. Raises as `seen`."""
        seen = self.seen(exchange)
        return None if seen is None else seen.viewer.tenant

    def viewer(self, exchange: Exchange) -> Viewer:
        """The same for a request that only looks.

        Raises:
            Unauthorized: nobody may without a key.
            Forbidden: see `seen`.
        """
        return self._must(exchange).viewer

    def actor(self, exchange: Exchange) -> Viewer:
        """The same for a request that changes something.

        Raises:
            Unauthorized, Forbidden: see `viewer`; or a browser sends it without the session's token.
        """
        seen = self._must(exchange)
        browser = cookie(exchange) or any(exchange.header(name) for name in _OF_BROWSERS)
        if not seen.by_key and browser:
            given = exchange.header(CSRF) or ""
            if not compare_digest(given.encode("latin-1"), seen.csrf.encode()):
                raise Forbidden(
                    "An action from a browser needs the header x-spillway-csrf with the `csrf` of GET /spillway/session.",
                    code="csrf_token_missing",
                )
        return seen.viewer

    def begin(self, exchange: Exchange, key: str) -> tuple[BrowserSession, bytes]:
        """A session for who shows this key, and the Set-Cookie header's value.

        Raises:
            Unauthorized: it is none.
            Forbidden: another page shows it.
        """
        check_page(dict(exchange.headers))
        viewer = self._holder([(b"x-api-key", key.encode("utf-8", "surrogatepass"))])
        if viewer is None:
            raise Unauthorized(
                "This key is none that lets one look: show one of SPILLWAY_API_KEYS or SPILLWAY_ADMIN_KEYS."
            )
        token, session = self.sessions.begin(viewer)
        return session, _set_cookie(exchange, token, HOURS * 3600)

    def end(self, exchange: Exchange) -> bytes:
        """End the session that a request has, if any; the Set-Cookie header's value."""
        if token := cookie(exchange):
            self.sessions.end(token)
        return _set_cookie(exchange, "", 0)

    def _must(self, exchange: Exchange) -> Seen:
        seen = self.seen(exchange)
        if seen is None:
            raise Unauthorized(
                "To look at Spillway here, a key is needed: one of SPILLWAY_API_KEYS shows its own conversations, one of "
                "SPILLWAY_ADMIN_KEYS all. Send it as `Authorization: Bearer KEY`."
            )
        return seen

    def _of_key(self, exchange: Exchange) -> Viewer | None:
        return self._holder(exchange.headers) if presented(exchange.headers) else None

    def _holder(self, headers: Sequence[tuple[bytes, bytes]]) -> Viewer | None:
        own = self._keys.holder(headers)
        if self._admins.holder(headers) is not None:
            return Viewer("admin", own or "", content=self._content)
        return None if own is None else Viewer("key", own, content=True)


def cookie(exchange: Exchange) -> str:
    """The session's cookie that a browser sent; empty: none."""
    for name, value in exchange.headers:
        if name == b"cookie":
            for part in value.split(b";"):
                key, _, token = part.strip().partition(b"=")
                if key == SESSION:
                    return token.decode("latin-1")
    return ""


def is_https(exchange: Exchange) -> bool:
    """Whether the browser's side of whatever is in front is encrypted."""
    return (exchange.header(b"x-forwarded-proto") or "").partition(",")[0].strip().lower() == "https"


def _set_cookie(exchange: Exchange, token: str, seconds: int) -> bytes:
    secure = "; Secure" if is_https(exchange) else ""
    value = f"{SESSION.decode()}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}"
    return value.encode()

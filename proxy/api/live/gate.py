"""Authorization of viewers: by a key, or because nothing is guarded here."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.addons.live.telling import Viewer
from proxy.api.access import Keys, check_page
from proxy.core.errors import Unauthorized
from proxy.exchange import Exchange

_FORWARDED = (b"x-forwarded-for", b"forwarded", b"x-real-ip")
"""Headers by which a proxy in front says that it is not this machine that asks."""


class Gate:
    """Authorizes viewers by the header of each request, which no browser adds by itself: so there is no session to be stolen.

    Args:
        keys: of those who may ask models.
        admin_keys: of those who may see every conversation.
        content: whether admins see messages too.
        loopback: whether Spillway listens on this machine's own address.
    """

    def __init__(self, keys: Sequence[str], admin_keys: Sequence[str], *, content: bool, loopback: bool) -> None:
        self._keys, self._admins = Keys(keys), Keys(admin_keys)
        self._content = content
        self._open = loopback and not keys and not admin_keys

    def find(self, exchange: Exchange) -> Viewer | None:
        """The viewer who sent a request; None: a key is needed.

        Raises:
            Forbidden: nothing is guarded, and another page than Spillway's own sent it.
        """
        headers = exchange.headers
        tenant = self._keys.holder(headers)
        if self._admins.holder(headers) is not None:
            return Viewer("admin", tenant or "", content=self._content)
        if tenant is not None:
            return Viewer("key", tenant, content=True)
        if self._open and not any(exchange.header(name) for name in _FORWARDED):
            # Pages that may ask models (SPILLWAY_CORS) may not read what others asked.
            check_page(dict(headers))
            return Viewer("open", content=True)
        return None

    def tenant(self, exchange: Exchange) -> str | None:
        """The tenant of the viewer who sent a request; None: a key is needed. Raises as `find`."""
        viewer = self.find(exchange)
        return None if viewer is None else viewer.tenant

    def viewer(self, exchange: Exchange) -> Viewer:
        """The viewer who sent a request.

        Raises:
            Unauthorized: a key is needed.
            Forbidden: see `find`.
        """
        viewer = self.find(exchange)
        if viewer is None:
            raise Unauthorized(
                "To look at Spillway here, a key is needed: one of SPILLWAY_API_KEYS shows its own conversations, one of "
                "SPILLWAY_ADMIN_KEYS all. Send it as `Authorization: Bearer KEY`."
            )
        return viewer

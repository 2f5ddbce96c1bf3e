"""Who is let in: by key, or else by the name that was called, the page that calls, and what is asked for.

With keys, the key is what counts: no browser adds one by itself. Without, everybody who reaches the port may ask for
answers, but not a web page in somebody's browser, and nobody may change what a backend serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proxy.api.hosts import Hosts, name_in
from proxy.api.keys import Keys, presented, sender
from proxy.api.origins import OF_PAGES, Origins, check_page, preflight
from proxy.api.targets import is_admin, path_of
from proxy.errors import BadRequest, Forbidden, Unauthorized
from proxy.exchange import Exchange


class Door:
    """The one way in.

    Args:
        keys: those that let one in; none: everyone may.
        hosts: names under which clients may call without keys, as globs.
        name: one more, by which it listens.
        origins: of pages that may use Spillway from a browser, as globs.
        admin: whether what a backend serves may be changed without a key.
    """

    def __init__(
        self,
        keys: Sequence[str] = (),
        *,
        hosts: Sequence[str] = (),
        name: str = "",
        origins: Sequence[str] = (),
        admin: bool = False,
    ) -> None:
        self._keys = Keys(keys)
        self._hosts = Hosts((*hosts, name.lower()))
        self._origins = Origins(origins)
        self._admin = admin
        self._keyed = bool(keys)

    def let_in(
        self,
        exchange: Exchange,
        *,
        keyless: bool = False,
        looks: Callable[[Exchange], str | None] | None = None,
    ) -> bool:
        """Let a request in, give it its tenant and the headers that its answer needs; `keyless`: it needs no key.

        `looks` tells whose it is that comes without a key of theirs, and may look all the same; None: nobody's.

        Returns:
            False for a browser that only asks whether it may send a request: it is to be told so.

        Raises:
            BadRequest: it does not say whom it calls, or its path is one that no server should be given.
            Forbidden: it calls another, a page sent it that may not, or it would change a backend.
            Unauthorized: it has no key, and needs one.
        """
        asked = exchange.by_name
        self._check_host(exchange, asked.get(b"host"))
        path = path_of(exchange.target)
        origin = asked.get(b"origin")
        page = origin is not None and self._origins.allowed(origin)
        if origin is not None and page:
            exchange.added = self._origins.headers(origin)
            if exchange.method == "OPTIONS" and b"access-control-request-method" in asked:
                private = asked.get(b"access-control-request-private-network") == b"true"
                names = asked.get(b"access-control-request-headers", b"")
                exchange.added += preflight(names, private=private)
                return False
        if self._keyed:
            self._check_key(exchange, keyless=keyless, looks=looks)
        else:
            exchange.tenant, exchange.trusted = sender(exchange.headers), True
            if not page and not OF_PAGES.isdisjoint(asked):
                check_page(asked)
            if not self._admin and is_admin(exchange.method, path):
                raise Forbidden(
                    f"{exchange.method} {path} changes what a backend serves, which needs a key: set "
                    "SPILLWAY_API_KEYS and send one, or SPILLWAY_ALLOW=admin to allow it to everybody.",
                    code="path_not_allowed",
                )
        return True

    def _check_host(self, exchange: Exchange, host: bytes | None) -> None:
        if host is None:
            # Old probes send none, browsers always do (RFC 9112, section 3.2).
            if exchange.version == "1.0":
                return
            raise BadRequest("The request has no Host header.")
        name = name_in(host)
        if name is None:
            raise BadRequest("The request must have one Host header, with one name or address in it.")
        if not self._keyed and not self._hosts.known(name):
            raise Forbidden(
                f"Spillway is not called {name!r} here, and takes requests without keys only under names that it knows: "
                f"set SPILLWAY_ALLOWED_HOSTS={name} if this is one, or use localhost or an IP address.",
                code="host_not_allowed",
            )

    def _check_key(
        self, exchange: Exchange, *, keyless: bool, looks: Callable[[Exchange], str | None] | None
    ) -> None:
        holder = self._keys.holder(exchange.headers)
        if holder is None and looks is not None:
            holder = looks(exchange)
        exchange.trusted = holder is not None
        exchange.tenant = holder if holder is not None else sender(exchange.headers)
        if holder is None and not keyless:
            raise Unauthorized(
                "The key is not one of this proxy's own keys (SPILLWAY_API_KEYS)."
                if presented(exchange.headers)
                else "This proxy needs one of its own keys: send `Authorization: Bearer KEY` with a key from SPILLWAY_API_KEYS."
            )

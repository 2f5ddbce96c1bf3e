"""Access control: by key, or else by the host that is called, the page that calls and what is requested.

With keys, the key is what counts: no browser adds one by itself. Without, everybody who reaches the port may ask models, but
no web page in somebody's browser may, and nobody may change what a backend serves.

A page that has its own name point at this machine (DNS rebinding) is taken by the browser for the same origin. It can't choose
the Host header, which is the page's own name: so only names that nobody else can have registered are accepted, and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from hashlib import blake2b
from hmac import compare_digest
from ipaddress import ip_address

from proxy.api.paths import is_admin, normalized
from proxy.core.errors import BadRequest, Forbidden, Unauthorized
from proxy.core.headers import Headers
from proxy.exchange import Exchange
from proxy.net.credentials import credential, is_credential, key_bytes

_KEY_HEADERS = (b"authorization", b"x-api-key")
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::\d{0,5})?")
"""RFC 3986, section 3.2.2, without percent-encoding; and a port."""
_LOCAL_NAMES = ("localhost", "*.localhost", "host.docker.internal", "host.containers.internal")
"""This machine, as it is called on it, and in containers of Docker and Podman that run on it."""


class Keys:
    """Spillway's own keys, compared by digest in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._tenants = tuple((_digest(form), _tenant(key.encode())) for key in keys for form in key_bytes(key))

    def holder(self, headers: Headers) -> str | None:
        """The tenant whose key the request presents; None if it presents none of them."""
        found: str | None = None
        for name, value in headers:
            if name in _KEY_HEADERS:
                presented = _digest(credential(value))
                for known, tenant in self._tenants:
                    if compare_digest(presented, known):
                        found = found or tenant
        return found


def credentials_tenant(headers: Headers) -> str:
    """The tenant of a request that needs no key: whoever sends the same credentials, for whichever backend they are."""
    return _tenant(b"\n".join(sorted(value for name, value in headers if is_credential(name))))


def _tenant(credentials: bytes) -> str:
    """A digest: histories of different tenants never meet."""
    return blake2b(credentials, digest_size=12, person=b"spillway-tenant").hexdigest()


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=32).digest()


def globs_pattern(globs: Sequence[str]) -> str:
    """A regular expression that matches whatever one of these globs does, in lower case."""
    return "|".join(map(translate, globs)) or r"(?!)"


def host_name(host: bytes) -> str | None:
    """The name or address in a Host header: lower case, without port, brackets and last dot; None if it is malformed."""
    found = _HOST.fullmatch(host.strip(b" \t"))
    return None if found is None else found[1].decode().lower().strip("[]").removesuffix(".")


class AccessControl:
    """Decides which requests are served.

    Args:
        keys: those that give access; none: no key is needed.
        hosts: names under which clients may call without keys, as globs in lower case.
        origins: of pages that may call from a browser, as globs in lower case.
        admin: whether what a backend serves may be changed without a key.
    """

    def __init__(
        self, keys: Sequence[str] = (), *, hosts: Sequence[str] = (), origins: Sequence[str] = (), admin: bool = False
    ) -> None:
        self._keys = Keys(keys)
        self._keyed = bool(keys)
        self._hosts = re.compile(globs_pattern((*_LOCAL_NAMES, *hosts)))
        self._origins = re.compile(globs_pattern(origins))
        self._admin = admin

    def check(self, exchange: Exchange) -> None:
        """Check host, path and page, which every request has to pass.

        Raises:
            BadRequest: no host, more than one, or a path that no server should be given.
            Forbidden: a host that is not ours, a page that may not call, or a change of a backend, without keys.
        """
        headers = exchange.by_name
        host = self._host(exchange, headers.get(b"host"))
        path = normalized(exchange.target)
        if self._keyed:
            return
        if host is not None and not self.is_known_host(host):
            raise Forbidden(
                f"Spillway is not called {host!r} here, and takes requests without keys only under names that it knows: "
                f"set SPILLWAY_ALLOWED_HOSTS={host} if this is one, or use localhost or an IP address.",
                code="host_not_allowed",
            )
        origin = headers.get(b"origin")
        if origin is None or not self.is_allowed_origin(origin):
            check_page(headers)
        if not self._admin and is_admin(exchange.method, path):
            raise Forbidden(
                f"{exchange.method} {path} changes what a backend serves, which needs a key: set "
                "SPILLWAY_API_KEYS and send one, or SPILLWAY_ALLOW=admin to allow it to everybody.",
                code="path_not_allowed",
            )

    def authorize(
        self, exchange: Exchange, *, optional: bool = False, viewer: Callable[[Exchange], str | None] | None = None
    ) -> None:
        """Check the key and set the request's tenant.

        Args:
            exchange: the request.
            optional: whether it is served without a key, too.
            viewer: gives the tenant of whoever may call without one of the keys.

        Raises:
            Unauthorized: it has no key, and needs one.
        """
        holder = self._keys.holder(exchange.headers)
        if self._keyed and holder is None and viewer is not None:
            holder = viewer(exchange)
        exchange.trusted = not self._keyed or holder is not None
        exchange.tenant = holder if holder is not None else credentials_tenant(exchange.headers)
        if not exchange.trusted and not optional:
            raise Unauthorized(
                "The key is not one of this proxy's own keys (SPILLWAY_API_KEYS)."
                if any(name in _KEY_HEADERS for name, _ in exchange.headers)
                else "This proxy needs one of its own keys: send `Authorization: Bearer KEY` with a key from SPILLWAY_API_KEYS."
            )
        exchange.authorized = True

    def is_known_host(self, name: str) -> bool:
        """Return whether a name is this machine's own, listed, or an address, which can't be pointed elsewhere."""
        if self._hosts.match(name):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True

    def is_allowed_origin(self, origin: bytes) -> bool:
        """Return whether pages of this origin may call from a browser."""
        return self._origins.match(origin.decode("latin-1").lower()) is not None

    @staticmethod
    def _host(exchange: Exchange, header: bytes | None) -> str | None:
        """The host that is called; None: an old probe, which sends none (browsers always do, RFC 9112, section 3.2)."""
        if header is None:
            if exchange.version == "1.0":
                return None
            raise BadRequest("The request has no Host header.")
        name = host_name(header)
        if name is None:
            raise BadRequest("The request must have one Host header, with one name or address in it.")
        return name


def check_page(headers: Mapping[bytes, bytes]) -> None:
    """Refuse what another page than Spillway's own sent; browsers say so in one of two headers.

    Raises:
        Forbidden: another page did.
    """
    origin = headers.get(b"origin")
    if origin is not None:
        # The scheme is left out: something in front may have taken TLS off.
        foreign = origin.rpartition(b"://")[2].lower() != headers.get(b"host", b"").lower()
        page = origin.decode("latin-1")
    else:
        # Images and scripts send no origin. That a person followed a link does no harm.
        site, mode = headers.get(b"sec-fetch-site"), headers.get(b"sec-fetch-mode")
        foreign = site in (b"cross-site", b"same-site") and mode != b"navigate"
        page = "another page"
    if foreign:
        raise Forbidden(
            f"A web page may not use this Spillway, unless it is allowed to: {page[:200]!r} would have to be in "
            "SPILLWAY_CORS, or clients need keys (SPILLWAY_API_KEYS).",
            code="origin_not_allowed",
        )

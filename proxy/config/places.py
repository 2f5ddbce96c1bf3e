"""Places of backends: on this machine, in its network, or behind a proxy that the environment names."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_LOCAL_NAMES = (".local", ".localdomain", ".lan", ".home.arpa", ".internal", ".intranet", ".home")
_OVERLAY = IPv4Network("100.64.0.0/10")


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for a backend (`HTTPS_PROXY` and its like); None: it is reached directly.

    A backend on this machine always is.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or is_here(host) or proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_here(host: str) -> bool:
    """Return whether a host is this machine, or the one that a container runs on by Docker's name for it."""
    host = host.removesuffix(".")
    if (address := _address(host)) is None:
        return host in {"localhost", "host.docker.internal"} or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def is_nearby(host: str) -> bool:
    """Return whether a host is this machine or in its network, where tokens cost nothing.

    By its address (RFC 1918, 4193, 6598 for overlay networks, and link-local), or a name that is none of the public ones: of
    one word, as the services of a compose file have, or under a domain for local use (RFC 6762, 8375, and ICANN's `.internal`).
    """
    host = host.removesuffix(".").lower()
    if is_here(host):
        return True
    if (address := _address(host)) is None:
        return "." not in host or host.endswith(_LOCAL_NAMES)
    return address.is_private or address.is_link_local or address in _OVERLAY


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Parse a host that is an address; None for a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address

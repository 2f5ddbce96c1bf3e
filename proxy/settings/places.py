"""Where backends are: on this machine, or behind a proxy that the environment names."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a backend (`HTTPS_PROXY` and its like), None if it is reached directly.

    What runs on this machine is, whatever the environment says.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    named = getproxies()
    proxy = named.get(parts.scheme) or named.get("all")
    if not proxy or is_here(host) or proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_here(host: str) -> bool:
    """Whether a host is this machine, or the one that a container runs on by Docker's name for it."""
    host = host.removesuffix(".")
    try:
        address = ip_address(host)
    except ValueError:
        return host in {"localhost", "host.docker.internal"} or host.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback or (mapped or address).is_unspecified

"""The names by which an open Spillway may be addressed.

A web page that has its own name point at this machine (DNS rebinding) is taken by the browser for the same origin, and may
then send and read what it likes. What it can't choose is the name: the browser sends the page's own. So names that
somebody else could have registered are refused. An address can't be pointed elsewhere, so addresses are safe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address

from proxy.wire.memo import Memo

_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::\d{0,5})?")
"""RFC 3986, section 3.2.2, without what is percent-encoded there; and a port."""
_LONGEST = 256
"""Bytes of a name that is remembered: no host's is longer."""
_HERE = frozenset({"localhost", "host.docker.internal", "host.containers.internal"})
"""This machine, as it is called on it, and in containers of Docker and Podman that run on it."""


def name_in(host: bytes) -> str | None:
    """The name or address in a Host header: lower case, without port, brackets and last dot; None if that is none."""
    return _names[host]


def _name_in(host: bytes) -> str | None:
    found = _HOST.fullmatch(host.strip(b" \t"))
    return None if found is None else found[1].decode().lower().strip("[]").removesuffix(".")


_names = Memo(_name_in, most=256, longest=_LONGEST)


class Hosts:
    """Tells whether a name is one of ours: this machine's own, an address, or one that the operator listed."""

    def __init__(self, listed: Sequence[str]) -> None:
        """`listed` are globs in lower case."""
        self._listed = tuple(listed)
        self._judged = Memo(self._known, most=256, longest=_LONGEST)

    def known(self, name: str) -> bool:
        """Whether clients may use this name."""
        return self._judged[name]

    def _known(self, name: str) -> bool:
        if name in _HERE or name.endswith(".localhost") or _is_address(name):
            return True
        return any(fnmatchcase(name, glob) for glob in self._listed)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True

"""Credentials in what clients send: the headers that hold them, and Spillway's own keys, which go to nobody."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import unquote_to_bytes

_CREDENTIAL = re.compile(rb"(?:.*-)?(?:authorization|auth|api-?key|subscription-key|token|secret)")
_NOT_ONE = re.compile(rb".*(?:csrf|xsrf).*")
_LONG = 8
"""Characters of a key that nothing else has by chance; a shorter one is only found where it stands alone."""


def is_credential(name: bytes) -> bool:
    """Return whether clients say in this header who they are; `name` is lower case.

    Not in cookies, as far as language models go, and those of some backends come back changed every half hour.
    """
    return _CREDENTIAL.fullmatch(name) is not None and _NOT_ONE.fullmatch(name) is None


def credential(value: bytes) -> bytes:
    """Return the key in an Authorization or x-api-key header."""
    value = value.strip()
    return value[7:].strip() if value[:7].lower() == b"bearer " else value


def key_bytes(key: str) -> set[bytes]:
    """Return the bytes that clients send for a key: UTF-8, or Latin-1 where that has its characters."""
    forms = {key.encode()}
    with suppress(UnicodeEncodeError):
        forms.add(key.encode("latin-1"))
    return forms


class ProxyKeys:
    """Finds Spillway's own keys in what goes to a backend."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        forms = sorted({form for key in keys for form in key_bytes(key)})
        self._long = tuple(form for form in forms if len(form) >= _LONG)
        short = b"|".join(re.escape(form) for form in forms if len(form) < _LONG)
        self._short = re.compile(rb"(?<![0-9A-Za-z])(?:%b)(?![0-9A-Za-z])" % short) if short else None

    def __bool__(self) -> bool:
        return bool(self._long or self._short)

    def are_in(self, value: bytes) -> bool:
        """Return whether a header's value or a parameter holds one, percent-encoded or as Basic's user or password too."""
        if self._found(value) or (b"%" in value and self._found(unquote_to_bytes(value))):
            return True
        return value[:6].lower() == b"basic " and self._found(_unbasic(value[6:]))

    def _found(self, value: bytes) -> bool:
        if any(key in value for key in self._long):
            return True
        return self._short is not None and self._short.search(value) is not None

    def without(self, target: bytes) -> bytes:
        """Return a target without the parameters of its query that hold one."""
        path, mark, query = target.partition(b"?")
        if not mark or not self:
            return target
        passing = [each for each in query.split(b"&") if not self.are_in(each.replace(b"+", b" "))]
        return path + b"?" + b"&".join(passing) if passing else path


def _unbasic(value: bytes) -> bytes:
    try:
        return b64decode(value.strip() + b"==")
    except Error:
        return b""

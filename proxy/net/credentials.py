"""Credentials in what clients send: which headers hold them, and where Spillway's own keys are, which go to nobody."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from urllib.parse import unquote_to_bytes

_CREDENTIAL = re.compile(rb"(?:.*-)?(?:authorization|auth|api-?key|subscription-key|token|secret)")
_NOT_ONE = re.compile(rb".*(?:csrf|xsrf).*")
_LONG = 8
"""Characters of a key that nothing else has by chance; a shorter one is only found where it stands alone."""


@lru_cache(maxsize=512)
def is_credential(name: bytes) -> bool:
    """Whether clients say in this header who they are; `name` is lower case.

    Not in cookies, as far as language models go, and those of some backends come back changed every half hour.
    """
    return _CREDENTIAL.fullmatch(name) is not None and _NOT_ONE.fullmatch(name) is None


def credential(value: bytes) -> bytes:
    """The key in an Authorization or x-api-key header."""
    value = value.strip()
    return value[7:].strip() if value[:7].lower() == b"bearer " else value


def written(key: str) -> set[bytes]:
    """The bytes that clients send for a key: UTF-8, or Latin-1 where that has its characters."""
    forms = {key.encode()}
    with suppress(UnicodeEncodeError):
        forms.add(key.encode("latin-1"))
    return forms


class OwnKeys:
    """Finds Spillway's own keys in what goes to a backend."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        forms = sorted({form for key in keys for form in written(key)}, key=len, reverse=True)
        self._found = re.compile(b"|".join(map(_pattern, forms))).search if forms else None

    def __bool__(self) -> bool:
        return self._found is not None

    def are_in(self, value: bytes) -> bool:
        """Whether a header's value or a parameter holds one: as it is, percent-encoded, or as Basic's user or password."""
        found = self._found
        if found is None:
            return False
        if found(value) or (b"%" in value and found(unquote_to_bytes(value))):
            return True
        return value[:6].lower() == b"basic " and bool(found(_unbasic(value[6:])))

    def without(self, target: bytes) -> bytes:
        """A target without the parameters of its query that hold one."""
        path, mark, query = target.partition(b"?")
        if not mark or self._found is None:
            return target
        kept = [each for each in query.split(b"&") if not self.are_in(each.replace(b"+", b" "))]
        return path + b"?" + b"&".join(kept) if kept else path


def _pattern(form: bytes) -> bytes:
    pattern = re.escape(form)
    return pattern if len(form) >= _LONG else rb"(?<![0-9A-Za-z])" + pattern + rb"(?![0-9A-Za-z])"


def _unbasic(value: bytes) -> bytes:
    try:
        return b64decode(value.strip() + b"==")
    except Error:
        return b""

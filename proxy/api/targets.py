"""What a request's target comes to, in whichever way a server behind may read it."""

from __future__ import annotations

import re
from fnmatch import translate
from urllib.parse import unquote_to_bytes

from proxy.backends import BACKENDS
from proxy.errors import BadRequest
from proxy.wire.memo import Memo

_PLAIN = re.compile(rb"(?:/(?!\.)[A-Za-z0-9_.~:@-]+)+")
"""Paths that every server reads in the same way."""
_SHORT = 256
"""Bytes of a path whose meaning is remembered."""
_DECODED = 4
"""Times that a path is decoded: servers in a row decode it once each."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ADMIN = re.compile("|".join(translate(glob) for backend in BACKENDS for glob in backend.admin))


def path_of(target: bytes) -> str:
    """The path of a target as the most generous server reads it: decoded, in lower case, nothing doubled or empty.

    Raises:
        BadRequest: it is no path, climbs out of where it begins, is no text, or is encoded over and over.
    """
    return _paths[target.partition(b"?")[0]]


def _path_of(path: bytes) -> str:
    if _PLAIN.fullmatch(path):
        return path.decode().lower()
    if not path.startswith(b"/"):
        raise BadRequest("The request's target must be a path that begins with a slash.")
    segments = [_segment(each) for each in _decoded(path).replace("\\", "/").split("/")]
    if ".." in segments:
        raise BadRequest("The request's path must not contain `..`, in whatever way it is written.")
    return "/" + "/".join(each for each in segments if each not in ("", ".")).lower()


_paths = Memo(_path_of, most=1024, longest=_SHORT)


def is_admin(method: str, path: str) -> bool:
    """Whether a request changes, or takes away, what a backend serves; `path` as `path_of` gives it."""
    return _admins[f"{method} {path}"]


def _is_admin(asked: str) -> bool:
    return _ADMIN.match(asked) is not None


_admins = Memo(_is_admin, most=1024, longest=_SHORT)


def _decoded(path: bytes) -> str:
    for _ in range(_DECODED):
        try:
            text = path.decode()
        except UnicodeDecodeError:
            raise BadRequest(
                "The request's path is not UTF-8 text; a name in it must be encoded as such."
            ) from None
        if _CONTROL.search(text):
            raise BadRequest("The request's path must not contain control characters.")
        if "%" not in text or (once := unquote_to_bytes(path)) == path:
            return text
        path = once
    raise BadRequest("The request's path is percent-encoded too many times.")


def _segment(text: str) -> str:
    """A segment without parameters, which some servers leave out before they look at it."""
    return text.partition(";")[0].strip()

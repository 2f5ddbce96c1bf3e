"""Paths of requests: which are managed however the base URL was written, and how the most generous server reads them."""

from __future__ import annotations

import re
from fnmatch import translate
from urllib.parse import unquote_to_bytes

from proxy.backends import BACKENDS
from proxy.core.errors import BadRequest
from proxy.dialects import DIALECTS

MODELS = "/v1/models"
PREFIXES = ("/v1", "/api/v1", "")
"""Ends of base URLs: OpenAI's, OpenRouter's and LM Studio's, and none."""
COUNTING = {dialect.count_path: dialect for dialect in DIALECTS.values() if dialect.count_path}
"""Paths that count the tokens of a request, by dialect."""
_MANAGED = {"POST": frozenset({*DIALECTS, *COUNTING}), "GET": frozenset({MODELS})}
_SLASHES = re.compile("//+")
_PREFIX = re.compile("(?:/api)?/v1(?=/)")
_PLAIN = re.compile(rb"(?:/(?!\.)[A-Za-z0-9_.~:@-]+)+")
"""Paths that every server reads in the same way."""
_DECODED = 4
"""Times that a path is decoded: servers in a row decode it once each."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ADMIN = re.compile("|".join(translate(glob) for backend in BACKENDS for glob in backend.admin))


def canonical(method: str, path: str) -> str:
    """Return the managed path that is meant by one with another prefix or with slashes too many; any other path as it is."""
    managed = _MANAGED.get(method, frozenset())
    if path not in managed:
        endpoint = _SLASHES.sub("/", path).removesuffix("/")
        for candidate in (endpoint, "/v1" + _PREFIX.sub("", endpoint, 1), _PREFIX.sub("", endpoint, 1)):
            if candidate in managed:
                return candidate
    return path


def normalized(target: bytes) -> str:
    """Return the path of a target as the most generous server reads it: decoded, in lower case, nothing doubled or empty.

    Raises:
        BadRequest: it is no path, climbs with `..`, is not UTF-8 text, or is encoded over and over.
    """
    path = target.partition(b"?")[0]
    if _PLAIN.fullmatch(path):
        return path.decode().lower()
    for _ in range(_DECODED):
        encoded, path = path, unquote_to_bytes(path)
        if path == encoded:
            break
    else:
        raise BadRequest("The request's path is percent-encoded too many times.")
    try:
        text = path.decode()
    except UnicodeDecodeError:
        raise BadRequest("The request's path is not UTF-8 text; a name in it must be encoded as such.") from None
    if not target.startswith(b"/") or _CONTROL.search(text):
        raise BadRequest("The request's target must be a path that begins with a slash, without control characters.")
    # Some servers remove a segment's parameters first.
    segments = [segment.partition(";")[0].strip() for segment in text.replace("\\", "/").split("/")]
    if ".." in segments:
        raise BadRequest("The request's path must not contain `..`, in whatever way it is written.")
    return "/" + "/".join(segment for segment in segments if segment not in ("", ".")).lower()


def is_admin(method: str, path: str) -> bool:
    """Return whether a request changes, or deletes, what a backend serves; `path` as `normalized` gives it."""
    return _ADMIN.match(f"{method} {path}") is not None

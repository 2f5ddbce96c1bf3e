"""Headers that are passed on, in either direction, and those with credentials; Spillway's own keys are never passed on."""

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

Header = tuple[bytes, bytes]
Headers: TypeAlias = Sequence[Header]
"""Pairs of name and value. Names are in lower case if they were read from a request or are sent to a backend."""

AS_JSON: Header = (b"content-type", b"application/json")
"""Header of a JSON body."""
BODILESS = frozenset({204, 304})
"""Statuses of responses without a body, whatever their headers say (RFC 9110, section 6.4.1)."""
OF_ENCODING = frozenset({b"content-encoding"})
"""Headers that no longer apply once a body has been decoded."""

# RFC 9110, section 7.6.1, and further headers that concern only one of the two connections.
HOP_BY_HOP = frozenset(b"connection keep-alive te trailer transfer-encoding upgrade".split()) | {
    *(b"proxy-authenticate", b"proxy-authorization", b"proxy-connection")
}
_NOT_UPSTREAM = (HOP_BY_HOP - {b"connection"}) | {
    b"host",  # replaced by the upstream's own: Ollama answers 403 to others
    b"content-length",  # set from the body that is really sent
    b"expect",
    # A request was authorized for its real method.
    *(b"x-http-method-override", b"x-http-method", b"x-method-override"),
    # Spillway has already checked the page's origin; a backend would check it as if the page had called it directly.
    *(b"origin", b"access-control-request-method", b"access-control-request-headers"),
    b"access-control-request-private-network",
    b"x-conversation-id",  # llama.cpp would go on generating after a disconnect
}
VISITED = b"x-spillway-visited"
"""Header of requests to backends with the ids of the Spillways that they passed."""
visited: ContextVar[bytes] = ContextVar("visited", default=b"")
"""Value of that header in what is sent on behalf of the request that is being served."""
_PROXY_PREFIX = b"x-spillway-"
_OF_ANTHROPIC = b"anthropic-"
_NOT_DOWNSTREAM = HOP_BY_HOP - {b"connection"}
_NOT_DOWNSTREAM_PREFIXES = (_PROXY_PREFIX, b"access-control-")
"""Prefixes of headers kept from clients. CORS is Spillway's decision, since it knows who asked."""

_CREDENTIAL = re.compile(rb"(?:.*-)?(?:authorization|auth|(?:api-?|auth-|subscription-)key|jwt|token|secret)")
_NOT_ONE = re.compile(rb".*(?:csrf|xsrf).*")
_LONG = 8
"""Length from which a key cannot occur in a text by chance; a shorter one is only matched as a whole word."""


def is_credential(name: bytes) -> bool:
    """Return whether a header holds a client's credential; `name` is in lower case.

    Cookies do not count: servers of language models do not identify clients by them, and some change theirs every half hour.
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
    """Finds Spillway's own keys in data that would go to a backend."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        forms = sorted({form for key in keys for form in key_bytes(key)})
        long = b"|".join(re.escape(form) for form in forms if len(form) >= _LONG)
        short = b"|".join(re.escape(form) for form in forms if len(form) < _LONG)
        alone = b"(?<![0-9A-Za-z])(?:%b)(?![0-9A-Za-z])" % short if short else b""
        self.pattern = re.compile(b"|".join(filter(None, (long, alone)))) if forms else None
        """Pattern of all keys; None if there are none."""

    def are_in(self, value: bytes) -> bool:
        """Return whether a header's value or a parameter contains a key, also percent-encoded, or in Basic credentials."""
        if self.pattern is None:
            return False
        values = [value, unquote_to_bytes(value)]
        if value[:6].lower() == b"basic ":
            with suppress(Error):
                values.append(b64decode(value[6:].strip() + b"=="))
        return any(self.pattern.search(each) for each in values)

    def without(self, target: bytes) -> bytes:
        """Return a target without the query parameters that contain a key."""
        path, _, query = target.partition(b"?")
        if not query or self.pattern is None:
            return target
        passing = [each for each in query.split(b"&") if not self.are_in(each.replace(b"+", b" "))]
        return path + b"?" + b"&".join(passing) if passing else path


def request_headers(
    headers: Iterable[Header], *, authorization: bytes | None, proxy_keys: ProxyKeys, drop: Collection[bytes] = ()
) -> list[Header]:
    """Return the client's headers that a backend may see, and the backend's own authorization.

    Args:
        headers: the client's, with names in lower case.
        authorization: the backend's own, if configured; without it, the client's credentials and cookies are passed on.
        proxy_keys: Spillway's own keys; a header that contains one is never passed on.
        drop: names of further headers to leave out, in lower case.
    """
    # If the backend has a key of its own, the client's cookies and tokens are meant for Spillway or something in front
    # of it, and none of the backend's business.
    # Headers are judged anew with each request: a dozen take 4 to 13 µs. Tables of earlier decisions, bounded so that
    # clients could not fill them, saved nothing measurable.
    passing = [
        (name, value)
        for name, value in headers
        if not (
            name in _NOT_UPSTREAM
            or name in drop
            or name.startswith(_PROXY_PREFIX)
            or (authorization is not None and (is_credential(name) or name == b"cookie"))
            or (proxy_keys.pattern is not None and proxy_keys.are_in(value))
        )
    ]
    passing = _without_named(passing)
    return passing if authorization is None else [*passing, (b"authorization", authorization)]


def content_length(headers: Sequence[Header]) -> list[Header]:
    """Return the header with the length of a request's body; empty if it is chunked."""
    if any(name == b"transfer-encoding" for name, _ in headers):
        return []
    return [(name, value) for name, value in headers if name == b"content-length"][:1]


def openai_headers(headers: Sequence[Header]) -> list[Header]:
    """Translate the headers of a request in another dialect for a backend that is sent OpenAI's.

    Anthropic's clients send their key in a header that OpenAI's servers ignore, and versions of an API that is not used
    towards the backend.
    """
    known = any(name == b"authorization" for name, _ in headers)
    translated: list[Header] = []
    for name, value in headers:
        if name == b"x-api-key" and not known:
            translated.append((b"authorization", b"Bearer " + value.strip()))
        elif not name.startswith(_OF_ANTHROPIC):
            translated.append((name, value))
    return translated


def response_headers(headers: Sequence[Header], *, drop: Collection[bytes] = ()) -> list[Header]:
    """Return a backend's headers that the client may see: all except those that concern the upstream connection."""
    passing = [
        (name, value)
        for name, value in ((raw.lower(), value) for raw, value in headers)
        if name not in _NOT_DOWNSTREAM and name not in drop and not name.startswith(_NOT_DOWNSTREAM_PREFIXES)
    ]
    return _without_named(passing)


def _without_named(headers: Sequence[Header]) -> list[Header]:
    """Return the headers without `connection`, and without the headers that it names."""
    if not any(name == b"connection" for name, _ in headers):
        return list(headers)
    named = {b"connection"}.union(
        *((part.strip().lower() for part in value.split(b",")) for name, value in headers if name == b"connection")
    )
    return [pair for pair in headers if pair[0] not in named]

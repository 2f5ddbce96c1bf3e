"""Requests out of bytes: llhttp does the parsing, within bounds.

Whatever breaks HTTP's framing is refused, never guessed at (RFC 9112, section 11.2, "Request Smuggling"): llhttp is
left as strict as it comes.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Protocol
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

from proxy.asgi import Scope
from proxy.errors import BadRequest, ClientError, HeadTooLarge, NotImplementedHere, WebSocketRefused
from proxy.wire.headers import Headers
from proxy.wire.memo import Memo

_OF_UPGRADES = (b"upgrade", b"http2-settings")
_SHORT = 256
"""Bytes of a target whose parts are remembered."""


class Taker(Protocol):
    """Who takes what is read, in this order. What it raises comes out of `Parsing.feed`."""

    def begun(self) -> None:
        """A request begins."""
        ...

    def requested(self, told: Scope, *, keep_alive: bool, expects: bool) -> None:
        """Its head is whole.

        Args:
            told: what ASGI's scope tells of it; header names are in lower case.
            keep_alive: whether the client would use the connection again.
            expects: whether it waits for `100 Continue`.
        """
        ...

    def body(self, data: bytes) -> None:
        """A piece of its body."""
        ...

    def whole(self) -> None:
        """It is whole."""
        ...


class Parsing:
    """Reads one request after another. Of no use any more once `feed` has raised."""

    def __init__(self, taker: Taker, limit: int) -> None:
        """Make it; `limit` is in bytes: of a request's line and headers, and of whatever else is no body."""
        self._taker = taker
        self._limit = limit
        self._parser: Any = HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        """Those of the head; behind it, of what comes behind the body (trailers)."""
        self._fed = 0
        """Bytes since anything was complete: llhttp tells of a header when it has all of it."""
        self._upgrading = False

    def feed(self, data: bytes) -> None:
        """Read on.

        Raises:
            ClientError: it can't be read, or goes beyond a bound; or whatever the taker raises.
        """
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._read_on(data[upgrade.args[0] :])
        except HttpParserError as error:
            if isinstance(error.__context__, ClientError):
                raise error.__context__ from None
            raise BadRequest(f"This is no valid HTTP request: {error}.") from None
        if self._fed > self._limit:
            raise self._too_large()

    def close(self) -> None:
        """Let go of the parser, which refers back."""
        self._parser = None

    # -- llhttp's callbacks

    def on_message_begin(self) -> None:
        """Forget the request before."""
        self._url, self._headers, self._upgrading = b"", [], False
        self._taker.begun()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand on the head."""
        parser, headers = self._parser, self._headers
        self._fed = 0
        self._check_size(len(self._url), headers)
        if parser.should_upgrade():
            self._upgrading = True
            return
        self._headers = []
        version, named = parser.get_http_version(), dict(headers)
        if version != "1.1" or b"transfer-encoding" in named:
            _check(version, headers)
        path, raw_path, query = _targets[self._url]
        told = {
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
        }
        expects = b"expect" in named and version == "1.1" and _expects(headers)
        self._taker.requested(told, keep_alive=parser.should_keep_alive(), expects=expects)

    def on_body(self, data: bytes) -> None:
        """Hand on a piece of the body."""
        self._fed = 0
        self._taker.body(data)

    def on_message_complete(self) -> None:
        """Hand on that it is whole; trailers are counted and dropped."""
        self._fed = 0
        if self._upgrading:
            return
        if self._headers:
            self._check_size(0, self._headers)
        self._taker.whole()

    # -- inside

    def _check_size(self, line: int, headers: Headers) -> None:
        """Refuse what is larger than is taken. It came at once, or what was fed would have been too much before."""
        if line + sum(map(len, chain.from_iterable(headers))) + 4 * len(headers) > self._limit:
            raise self._too_large()

    def _too_large(self) -> HeadTooLarge:
        return HeadTooLarge(
            f"The request's line and headers are larger than the {self._limit} bytes accepted here "
            "(SPILLWAY_MAX_HEADER)."
        )

    def _read_on(self, rest: bytes) -> None:
        """Take a request that offers another protocol as the one it is in HTTP/1.1 (RFC 9110, section 7.8)."""
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if method == b"CONNECT":
            raise NotImplementedHere("Spillway makes no tunnels; send requests for paths.")
        if any(name == b"upgrade" and value.strip().lower() == b"websocket" for name, value in self._headers):
            raise WebSocketRefused("Spillway does not speak WebSocket; use HTTP, streamed or not.")
        # llhttp takes what follows for the other protocol, and with it the request's body.
        kept = [(name, value) for name, value in self._headers if name not in _OF_UPGRADES]
        lines = [b"%b: %b\r\n" % (name, _without_upgrade(name, value)) for name, value in kept]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._url, version.encode(), b"".join(lines))
        self._parser = HttpRequestParser(self)
        self.feed(head + rest)


def _parts(url: bytes) -> tuple[str, bytes, bytes]:
    """The path of a target, decoded and as it came, and its query."""
    parsed = parse_url(url)
    path = parsed.path or b"/"
    text = path.decode("ascii")
    return unquote(text) if "%" in text else text, path, parsed.query or b""


_targets = Memo(_parts, most=256, longest=_SHORT)


def _check(version: str, headers: Headers) -> None:
    if version not in ("1.0", "1.1"):
        raise NotImplementedHere(f"HTTP/{version} is not spoken here, only HTTP/1.1.")
    for name, value in headers:
        if name == b"transfer-encoding":
            if version == "1.0":  # RFC 9112, section 6.1: its framing is to be treated as faulty
                raise BadRequest("HTTP/1.0 has no Transfer-Encoding; send HTTP/1.1, or a Content-Length.")
            if value.strip().lower() != b"chunked":
                raise NotImplementedHere("Of transfer codings only chunked is understood here.")


def _expects(headers: Headers) -> bool:
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def _without_upgrade(name: bytes, value: bytes) -> bytes:
    if name != b"connection":
        return value
    tokens = [token.strip() for token in value.split(b",")]
    return b", ".join(token for token in tokens if token.lower() not in _OF_UPGRADES)

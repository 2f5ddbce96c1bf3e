"""Requests out of bytes: llhttp does the parsing, within bounds.

Whatever breaks HTTP's framing is refused, never guessed at (RFC 9112, section 11.2, "Request Smuggling"): llhttp is
left as strict as it comes.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

from proxy.errors import BadRequest, ClientError, HeadTooLarge, NotImplementedHere, WebSocketRefused
from proxy.neutral.record import record

_OF_UPGRADES = (b"upgrade", b"http2-settings")


@record(frozen=True, slots=True)
class Head:
    """The head of a request. Header names are in lower case."""

    method: str
    version: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    keep_alive: bool
    """Whether the client would use the connection again."""
    expects: bool
    """Whether it waits for `100 Continue`."""


class Taker(Protocol):
    """Who takes what is read, in this order. What it raises comes out of `Parsing.feed`."""

    def begun(self) -> None:
        """A request begins."""
        ...

    def requested(self, head: Head) -> None:
        """Its head is whole."""
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
        self._head = 0
        """Bytes of line and headers so far."""
        self._fed = 0
        """Bytes since anything was complete: llhttp tells of a header when it has all of it."""
        self._in_body = self._upgrading = False

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
        self._url, self._headers = b"", []
        self._head = self._fed = 0
        self._in_body = self._upgrading = False
        self._taker.begun()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._url += url
        self._head += len(url)
        if self._head > self._limit:
            raise self._too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes behind a body (trailers) is counted and dropped."""
        self._head += len(name) + len(value) + 4
        if self._head > self._limit:
            raise self._too_large()
        if not self._in_body:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand on the head."""
        parser, headers = self._parser, self._headers
        self._fed = 0
        self._in_body = True
        if parser.should_upgrade():
            self._upgrading = True
            return
        version = parser.get_http_version()
        _check(version, headers)
        url = parse_url(self._url)
        path = url.path or b"/"
        text = path.decode("ascii")
        head = Head(
            method=parser.get_method().decode("ascii"),
            version=version,
            path=unquote(text) if "%" in text else text,
            raw_path=path,
            query=url.query or b"",
            headers=headers,
            keep_alive=parser.should_keep_alive(),
            expects=version == "1.1" and _expects(headers),
        )
        self._taker.requested(head)

    def on_body(self, data: bytes) -> None:
        """Hand on a piece of the body."""
        self._fed = 0
        self._taker.body(data)

    def on_message_complete(self) -> None:
        """Hand on that it is whole."""
        self._fed = 0
        if not self._upgrading:
            self._taker.whole()

    # -- inside

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


def _check(version: str, headers: list[tuple[bytes, bytes]]) -> None:
    if version not in ("1.0", "1.1"):
        raise NotImplementedHere(f"HTTP/{version} is not spoken here, only HTTP/1.1.")
    for name, value in headers:
        if name == b"transfer-encoding":
            if version == "1.0":  # RFC 9112, section 6.1: its framing is to be treated as faulty
                raise BadRequest("HTTP/1.0 has no Transfer-Encoding; send HTTP/1.1, or a Content-Length.")
            if value.strip().lower() != b"chunked":
                raise NotImplementedHere("Of transfer codings only chunked is understood here.")


def _expects(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def _without_upgrade(name: bytes, value: bytes) -> bytes:
    if name != b"connection":
        return value
    tokens = [token.strip() for token in value.split(b",")]
    return b", ".join(token for token in tokens if token.lower() not in _OF_UPGRADES)

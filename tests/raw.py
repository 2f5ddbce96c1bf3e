"""A client that writes bytes as it likes, and reads what HTTP makes of the answer."""

import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from typing import Any, Self, cast
from urllib.parse import urlsplit

TIMEOUT = 20.0
"""Seconds after which a test gives up waiting."""


class _Kept:
    """What is read ahead for one answer is there for the next."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def makefile(self, *_: object) -> Self:
        return self

    def close(self) -> None:
        """Not with the answer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Raw:
    def __init__(self, url: str, *, window: int = 0) -> None:
        """Connect; `window` bounds what the system takes in for this side, in bytes."""
        self.sock = socket.socket()
        if window:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.sock.settimeout(TIMEOUT)
        parts = urlsplit(url)
        self.sock.connect((parts.hostname, parts.port))
        self._file = _Kept(self.sock.makefile("rb"))

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def flood(self, data: bytes, most: int) -> int:
        """Send the same again and again, until the other side has had enough; how many bytes it took."""
        sent = 0
        with suppress(OSError):
            while sent < most:
                sent += self.sock.send(data)
        return sent

    def answer(self, method: str = "GET") -> tuple[HTTPResponse, bytes]:
        response = HTTPResponse(cast("socket.socket", self._file), method=method)
        response.begin()
        return response, response.read()

    def error(self) -> tuple[int, dict[str, Any]]:
        response, body = self.answer()
        told = json.loads(body)
        assert set(told["error"]) == {"message", "type", "code", "param"}
        assert response.getheader("content-type") == "application/json"
        return response.status, told["error"]

    def rest(self) -> bytes:
        data = b""
        with suppress(ConnectionError):
            while part := self._file.read1(65536):
                data += part
        return data

    def close(self) -> None:
        self._file.file.close()
        self.sock.close()


@contextmanager
def connected(url: str, *, window: int = 0) -> Iterator[Raw]:
    raw = Raw(url, window=window)
    try:
        yield raw
    finally:
        raw.close()


def chat(
    *, stream: bool = False, text: str = "hello", version: str = "1.1", headers: str = "", tokens: int | None = 20
) -> bytes:
    """A whole request for a chat completion of so many tokens, or of as many as come; packed, where its headers say so."""
    asked = {"model": "fake-model", "messages": [{"role": "user", "content": text}], "stream": stream}
    return asking(asked if tokens is None else {**asked, "max_tokens": tokens}, version=version, headers=headers)


def asking(asked: dict[str, Any], *, version: str = "1.1", headers: str = "") -> bytes:
    """A whole request for a chat completion with this body; packed, where its headers say so."""
    body = json.dumps(asked).encode()
    if "content-encoding: gzip" in headers:
        body = gzip.compress(body)
    head = (
        f"POST /v1/chat/completions HTTP/{version}\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"{headers}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body

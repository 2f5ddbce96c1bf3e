"""A client that writes bytes as it likes, and reads what HTTP makes of the answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 20.0
"""Seconds after which a test gives up waiting."""


class Raw:
    """One connection to a proxy."""

    def __init__(self, url: str, *, window: int = 0) -> None:
        """Connect; `window` bounds what the system takes in for this side, in bytes."""
        self.sock = socket.socket()
        if window:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.sock.settimeout(TIMEOUT)
        parts = urlsplit(url)
        self.sock.connect((parts.hostname, parts.port))

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
        """Read one answer."""
        response = HTTPResponse(self.sock, method=method)
        response.begin()
        return response, response.read()

    def error(self) -> tuple[int, dict[str, Any]]:
        """Read an answer in OpenAI's error shape: status, and the object inside."""
        response, body = self.answer()
        told = json.loads(body)
        assert set(told["error"]) == {"message", "type", "code", "param"}
        assert response.getheader("content-type") == "application/json"
        return response.status, told["error"]

    def rest(self) -> bytes:
        """All there is until the other side closes."""
        data = b""
        with suppress(ConnectionError):
            while part := self.sock.recv(65536):
                data += part
        return data


@contextmanager
def connected(url: str, *, window: int = 0) -> Iterator[Raw]:
    raw = Raw(url, window=window)
    try:
        yield raw
    finally:
        raw.sock.close()


def chat(*, stream: bool = False, text: str = "hello", version: str = "1.1", headers: str = "") -> bytes:
    """A whole request for a chat completion."""
    body = json.dumps(
        {"model": "fake-model", "messages": [{"role": "user", "content": text}], "stream": stream}
    )
    return (
        f"POST /v1/chat/completions HTTP/{version}\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"{headers}content-length: {len(body)}\r\n\r\n{body}"
    ).encode()

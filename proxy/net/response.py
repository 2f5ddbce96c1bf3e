"""Responses of a backend, made cheaply: who passes on their headers as they came never has them put in order by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import httpx
from typing_extensions import override

from proxy.wire.headers import Headers


class Divertible(httpx.AsyncByteStream):
    """A body whose pieces can be taken right as they come, which spares a task's waking for each."""

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """Offer `take` what comes while somebody waits for it here.

        True: it took it, and who waits goes on waiting; False: who waits gets it. It is not offered what came in several
        pieces, what somebody is still busy with, nor the last.
        """
        raise NotImplementedError

    async def whole(self, limit: int) -> bytes | None:
        """All that is left, after which it is closed; None: that is more than `limit` bytes."""
        raise NotImplementedError


def raw_headers(response: httpx.Response) -> Headers:
    """The headers; as they came, where nobody looked at them by name, who could have changed one."""
    if isinstance(response, PlainResponse) and "headers" not in response.__dict__:
        return response.pairs
    return response.headers.raw


def header_of(response: httpx.Response, name: str) -> str:
    """The value of a header, in lower case its name; empty: there is none."""
    if isinstance(response, PlainResponse) and "headers" not in response.__dict__:
        wanted = name.encode("ascii")
        return b", ".join([value for key, value in response.pairs if key.lower() == wanted]).decode("latin-1")
    return str(response.headers.get(name, ""))


class PlainResponse(httpx.Response):
    """A response whose body is a stream that nothing decodes.

    httpx's own makes its headers anew and keeps the state of a client that reads it, which takes longer than the rest of it.
    """

    next_request = None
    is_closed = is_stream_consumed = False
    default_encoding = "utf-8"
    _request = None
    _num_bytes_downloaded = 0

    def __init__(  # does not call httpx's, see above
        self, status: int, pairs: Headers, stream: httpx.AsyncByteStream, reason: bytes
    ) -> None:
        self.status_code = status
        self.pairs = pairs
        self.stream = stream
        self.extensions = {"http_version": b"HTTP/1.1", "reason_phrase": reason}

    @cached_property
    @override
    def headers(self) -> httpx.Headers:  # type: ignore[override]  # an attribute there
        """By name, for who looks for one."""
        return httpx.Headers(list(self.pairs))

    @cached_property
    @override
    def history(self) -> list[httpx.Response]:  # type: ignore[override]  # an attribute there
        """No redirect is followed."""
        return []

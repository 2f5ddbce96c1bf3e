"""Between the server and the application: the words of ASGI, and what Spillway's own server tells besides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from proxy.wire.headers import Headers

Scope: TypeAlias = MutableMapping[str, Any]
AsgiMessage: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
SendMessage: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]


class Client(Protocol):
    """The client of a request, as Spillway's own server has it; in the scope as `spillway.client`."""

    def rest(self) -> bytes | None:
        """What is left of the request's body, if all of it is here and nobody waits to be asked for it; else None."""
        ...

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the whole answer, for which ASGI takes two messages."""
        ...

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Call this when the client leaves before it has its answer; None: nothing any more. The body must be in, or be taken.

        What ASGI has instead is a task that waits in `receive`, for each request.
        """
        ...

"""A server in the process: paths and their replies, what was asked, and switches for what goes wrong."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from proxy.backends.base import Reply


class FakeServer:
    """Answers by path (with query first); anything else gets `otherwise`."""

    def __init__(self, replies: Mapping[str, Any], *, otherwise: Reply | None = None) -> None:
        self.replies = dict(replies)
        self.otherwise = otherwise or Reply(404, {"error": "not found"})
        self.requests: list[httpx.Request] = []
        self.failure: type[httpx.TransportError] | None = None
        self.reached = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.transport = httpx.MockTransport(self._answer)

    @property
    def asked(self) -> list[str]:
        return [request.url.raw_path.decode() for request in self.requests]

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.reached.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure("made up", request=request)
        path = request.url.raw_path.decode()
        found = self.replies.get(path, self.replies.get(path.split("?")[0], self.otherwise))
        reply = found if isinstance(found, Reply) else Reply(200, found)
        return httpx.Response(reply.status, json=reply.json)


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

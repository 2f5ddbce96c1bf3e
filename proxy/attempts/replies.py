"""Replies to clients: an answer as a stream of server-sent events, or in one body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import httpx

from proxy.attempts.bodies import Whole, answer_whole, stream_whole
from proxy.attempts.client import (
    Audience,
    ClientStream,
    KeepingStream,
    Nobody,
    client_error,
    end_with_error,
    end_with_nothing,
)
from proxy.attempts.driver import StreamDriver
from proxy.attempts.passing import relay_response
from proxy.core.dialect import Completion
from proxy.core.errors import UpstreamInvalid
from proxy.core.jsontext import loads
from proxy.core.piece import Identity, Piece
from proxy.job import Job
from proxy.net.headers import AS_JSON, headers_of
from proxy.net.inflate import readable
from proxy.reading import Memory
from proxy.stream.status import FORMS

__all__ = ["Audience", "ClientReply", "Replies"]

_OF_ONE_BODY = (b"content-length", b"content-encoding", b"content-type", b"cache-control")
"""Headers that do not hold for an answer that is made a stream."""


class ClientReply(Protocol):
    """Reply to a client."""

    @property
    def audience(self) -> Audience:
        """Audience of notices while the answer is made."""
        ...

    async def write_nothing(self) -> None:
        """Answer without a word, and without a backend."""
        ...

    async def relay(self, response: httpx.Response, body: bytes | None) -> None:
        """ClientReply with a backend's response; `body` is what was read of it, None: it is a stream to be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """Opens replies."""

    driver: StreamDriver
    memory: Memory
    clock: Callable[[], float]
    """Seconds since the epoch."""
    grace: float
    """Seconds of silence after which a waiting stream is opened."""

    @asynccontextmanager
    async def open(self, job: Job) -> AsyncIterator[ClientReply]:
        """ClientReply to a job's client. What is raised inside ends a stream that is open already, and else is raised on."""
        if not job.prompt.request.stream:
            yield _BodyReply(job, self)
            return
        reply = _StreamReply(job, self)
        try:
            yield reply
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - an open stream has to end, and it is logged
            failed = client_error(job.exchange, error)
            job.outcome.fail(failed.status, failed.code or failed.type)
            await end_with_error(reply.audience, failed.body())
        finally:
            reply.audience.stop()

    def identity(self, job: Job) -> Identity:
        """Identity of an answer that no backend has given one."""
        return Identity(job.dialect.id_prefix + job.state.unique, int(self.clock()), job.prompt.request.model)

    async def keep(self, job: Job, answer: dict[str, Any]) -> None:
        """Store an answer, if its request asks for that."""
        await self.memory.keep_answer(job.exchange.tenant, job.asked, answer)


class _StreamReply:
    """A stream, opened with the first bytes of the answer."""

    def __init__(self, job: Job, replies: Replies) -> None:
        self._job = job
        self._replies = replies
        self.audience = self._client()

    def _client(self) -> ClientStream:
        job = self._job
        wished = job.exchange.header(b"x-spillway-status")
        form = wished if wished in FORMS else job.settings.status
        stream = (KeepingStream if job.asked.keeping is not None else ClientStream)(
            job.exchange,
            job.writer(),
            form="off" if job.undisturbed else form,
            own=self._replies.identity(job),
            extra_headers=job.outcome.headers,
            grace=self._replies.grace,
            heartbeat=job.settings.heartbeat,
        )
        if isinstance(stream, KeepingStream):
            stream.keep = partial(self._replies.keep, job)
        return stream

    async def write_nothing(self) -> None:
        """Write an empty stream."""
        await end_with_nothing(self.audience, self._replies.identity(self._job))

    async def relay(self, response: httpx.Response, body: bytes | None) -> None:
        """Pass on the backend's stream, or make one of its body."""
        job, client = self._job, self.audience
        if body is not None:
            if client.writer.native:
                client.head = [*client.head, *headers_of(response, drop=_OF_ONE_BODY)]
            other = await stream_whole(job, response, body, self._replies.driver, client)
            if other is not None:
                await self._relay_error(other)
                return
        elif (plain := readable(response)) is not None:
            if client.writer.native:
                client.head = headers_of(plain, drop=(b"content-length",))
            await self._replies.driver.run(job, plain, client)
        else:
            client.stop()
            await relay_response(job.exchange, response, job.outcome.headers())
            return
        await client.close_notice()
        await client.end()

    async def _relay_error(self, whole: Whole) -> None:
        """Reply with what is no answer as it came, if that still can be; else end the stream with its error."""
        job, client = self._job, self.audience
        client.stop()
        if whole.status < 400 and not whole.body:
            raise UpstreamInvalid(f"The backend answered {whole.status} and nothing else.")
        status = whole.error_status
        job.outcome.fail(status, "refused")
        if not job.exchange.started:
            await job.exchange.reply(status, [*whole.headers, *job.outcome.headers()], whole.body)
        else:
            await end_with_error(client, whole.error())


class _BodyReply:
    """One body."""

    def __init__(self, job: Job, replies: Replies) -> None:
        self._job = job
        self._replies = replies
        self.audience: Audience = Nobody(job.writer())

    async def write_nothing(self) -> None:
        """Write an empty answer in the client's dialect."""
        nothing = Completion(choices=(Piece(identity=self._replies.identity(self._job)),))
        body = self._job.writer().body(nothing, (), None)
        await self._send(Whole(200, [AS_JSON], body))

    async def relay(self, response: httpx.Response, body: bytes | None) -> None:
        """Pass on the backend's body, gone on with where the window ended it."""
        assert body is not None  # nobody asked for a stream
        await self._send(await answer_whole(self._job, response, body, self._replies.driver))

    async def _send(self, whole: Whole) -> None:
        job = self._job
        if job.asked.keeping is not None and whole.status == 200:
            await self._replies.keep(job, loads(whole.body))
        await job.exchange.reply(whole.status, [*whole.headers, *job.outcome.headers()], whole.body)

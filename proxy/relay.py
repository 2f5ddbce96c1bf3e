"""The straight line: what happens to a chat request, from top to bottom.

request → route → profile, clean history, checkpoint, count → compact if due → forward → watch
→ (pause → compact → resume)* → answer
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from proxy.backends.overflow import recognise
from proxy.errors import BadRequest, ClientError, ContextOverflow, UpstreamTimeout, UpstreamUnavailable
from proxy.exchange import Exchange, decoded
from proxy.net.headers import response_headers
from proxy.net.inflate import readable
from proxy.neutral.piece import Identity
from proxy.neutral.request import parse_chat
from proxy.options import Options
from proxy.stages.client_stream import ClientStream
from proxy.stages.compacting import Compactor
from proxy.stages.counting import Counting
from proxy.stages.explaining import explain
from proxy.stages.job import Job
from proxy.stages.passing import pass_by_model, pass_through, relay_response, upstream_of
from proxy.stages.pooling import leave, was_cleared
from proxy.stages.preparing import Preparer
from proxy.stages.routing import Router
from proxy.stages.sending import RETRIES, Sender, buffered, is_event_stream
from proxy.stages.streaming import StreamDriver
from proxy.stages.whole import answer_whole, as_stream
from proxy.status import FORMS, Notice
from proxy.telemetry import Telemetry
from proxy.wire.jsontext import dumps


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Takes clients' exchanges and answers them."""

    options: Options
    router: Router
    preparer: Preparer
    compactor: Compactor
    counting: Counting
    sender: Sender
    driver: StreamDriver
    telemetry: Telemetry
    clock: Callable[[], float]
    """Seconds since the epoch."""

    async def chat(self, exchange: Exchange) -> None:
        """Answer a chat completion request.

        Raises:
            ClientError: it can't be served; nothing was sent yet.
        """
        wire = await exchange.body(self.options.max_body)
        async with exchange.watched():
            if exchange.header(b"x-spillway-bypass") == "1":
                await pass_through(exchange, await upstream_of(wire, self.router), wire)
                return
            job = await self._job(exchange, wire)
            try:
                await (self._stream(job) if job.request.stream else self._whole(job))
            finally:
                leave(job)
            budget = job.budget
            self.telemetry.request(job.key, job.action, budget.fill(job.estimate.tokens) if budget else None)

    async def explain(self, exchange: Exchange) -> None:
        """Tell what would happen to a chat request, without asking a model.

        Raises:
            ClientError: it is malformed.
        """
        wire = await exchange.body(self.options.max_body)
        async with exchange.watched():
            job = await self._job(exchange, wire)
            body = dumps(await explain(job, self.counting, self.compactor))
            await exchange.reply(200, [(b"content-type", b"application/json")], body)

    async def passthrough(self, exchange: Exchange) -> None:
        """Hand any other request to a backend, streaming both ways.

        Raises:
            ClientError: no backend answered.
            BrokenOff: the backend broke off in the middle of the body.
        """
        await pass_by_model(exchange, self.router)

    async def _job(self, exchange: Exchange, wire: bytes) -> Job:
        """Route, profile, clean history, checkpoint, count."""
        body = decoded(wire, exchange.header(b"content-encoding"), self.options.max_body)
        request = parse_chat(body, wire)
        route = await self.router.route(request.model)
        return await self.preparer.prepare(exchange, request, route)

    # -- streamed answers

    async def _stream(self, job: Job) -> None:
        client = self._client_stream(job)
        try:
            await self._make_room(job, client)
            response = await self._open_stream(job)
            if not is_event_stream(response):
                await self._other_than_stream(job, client, response)
                return
            plain = readable(response)
            if plain is None:
                client.stop()
                await relay_response(job.exchange, response, job.spillway_headers())
                return
            client.head = response_headers(plain.headers.raw, drop=(b"content-length",))
            await self.driver.run(job, plain, client)
            await client.close_notice()
            if job.cut:
                await client.warn_of_cut()
            await client.end()
        except ClientError as error:
            if not exchange_started(job):
                raise
            await _end_with_error(client, error.body())
        finally:
            client.stop()

    async def _open_stream(self, job: Job) -> httpx.Response:
        """Send the job; a refusal that comes as JSON with status 200 is answered like any other."""
        retry = 0
        while True:
            response = await self.sender.open(job)
            if response.status_code != 200 or is_event_stream(response):
                return response
            response, body = await buffered(response)
            if retry == RETRIES or not await self._answered(job, body, retry):
                return response
            retry += 1

    async def _other_than_stream(self, job: Job, client: ClientStream, response: httpx.Response) -> None:
        """An error, most likely: as it came, or inside the stream if that is already open."""
        client.stop()
        try:
            whole = await answer_whole(job, response, self.driver)
        except httpx.TransportError as broken:
            raise UpstreamUnavailable(
                f"The backend broke off the answer ({type(broken).__name__})."
            ) from None
        if not exchange_started(job):
            await job.exchange.reply(whole.status, [*whole.headers, *job.spillway_headers()], whole.body)
            return
        if (frames := as_stream(whole, client, show_usage=job.request.usage_wish is True)) is not None:
            await client.close_notice()
            await client.write(frames)
            await client.end()
            return
        error = BadRequest(
            f"The backend answered {whole.status}: {whole.body[:2000].decode('utf-8', 'replace')}"
        )
        await _end_with_error(client, error.body())

    def _client_stream(self, job: Job) -> ClientStream:
        wished = job.exchange.header(b"x-spillway-status")
        form = wished if wished in FORMS else job.options.status
        identity = Identity(f"chatcmpl-{uuid4().hex}", int(self.clock()), job.request.model)
        return ClientStream(
            job.exchange,
            job.dialect.writer(),
            form="off" if job.request.structured or job.background else form,
            own=identity,
            own_headers=job.spillway_headers,
            grace=job.options.grace,
            heartbeat=job.options.heartbeat,
        )

    # -- whole answers

    async def _whole(self, job: Job) -> None:
        await self._make_room(job, None)
        try:
            whole = await answer_whole(job, await self.sender.open(job), self.driver)
            for retry in range(RETRIES):
                # A refusal with status 200: OpenRouter, and LM Studio for what it does not know.
                if not whole.refused or not await self._answered(job, whole.body, retry):
                    break
                whole = await answer_whole(job, await self.sender.open(job), self.driver)
        except httpx.TimeoutException:
            raise UpstreamTimeout("The backend fell silent in the middle of the answer.") from None
        except httpx.TransportError as error:
            raise UpstreamUnavailable(f"The backend broke off the answer ({type(error).__name__}).") from None
        await job.exchange.reply(whole.status, [*whole.headers, *job.spillway_headers()], whole.body)

    async def _answered(self, job: Job, refusal: bytes, retry: int) -> bool:
        """Whether something was done about a refusal, so that the job is worth sending again."""
        overflow = recognise(200, refusal)
        if overflow is not None and was_cleared(job, overflow):
            await self.sender.pool.wait(job)
            return True
        if overflow is not None:
            return await self.sender.shorten(job, overflow, retry)
        return await self.sender.emulate(job, 200, refusal)

    # -- room

    async def _make_room(self, job: Job, client: ClientStream | None) -> None:
        """Compact before sending, if the prompt is due or might not fit."""
        budget = job.budget
        if budget is None:
            return
        await self.counting.refine(job)
        due = budget.needs_compaction(job.estimate.tokens, job.estimate.upper)
        if not due and not self.counting.was_cut(job):
            return
        before = job.estimate.tokens
        if client is not None:
            await client.tell(Notice(done=False))
        gained = await self.compactor.compact(job)
        if gained:
            self.counting.mended(job)
            self.counting.ask_soon(job)
        if client is not None:
            await client.tell(Notice(done=True, before=before, after=job.estimate.tokens, failed=not gained))
        if _cannot_fit(job, budget.window):
            raise ContextOverflow(_overflow_text(job, before), param="messages")


def exchange_started(job: Job) -> bool:
    """Whether the client has got a status code."""
    return job.exchange.started


async def _end_with_error(client: ClientStream, body: dict[str, Any]) -> None:
    """An error after the status code: inside the stream, which then ends in good order."""
    await client.close_notice()
    await client.write(client.writer.error(body))
    await client.end()


def _cannot_fit(job: Job, window: int) -> bool:
    """Whether sending is pointless: the backend would refuse, or cut in silence where it is one that does.

    An honest backend decides doubtful cases itself; its refusal teaches the window and is answered.
    """
    backend = job.route.upstream.prober.known_backend
    doubt = 1.0 if backend is not None and backend.shifts_silently else 1.1
    return job.estimate.tokens >= window * doubt


def _overflow_text(job: Job, before: int) -> str:
    budget = job.budget
    window = budget.window if budget is not None else 0
    return (
        f"This conversation needs about {job.estimate.tokens} tokens after everything was shortened "
        f"({before} before), but the context window of {job.route.model} is {window} tokens. What remains are "
        "the system prompt, the tools and the newest turn: shorten one of them, send fewer tools, or load the "
        "model with a larger window."
    )

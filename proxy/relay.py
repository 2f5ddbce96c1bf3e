"""The straight line: what happens to a chat request, from top to bottom.

read → route → profile, clean history, checkpoint, recall, count → compact if due → attempt → watch
→ (pause → compact → resume)* → answer → outcome → (compact ahead)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx

from proxy.dialects import CHAT
from proxy.errors import BadRequest, ClientError, NotManaged, UpstreamInvalid
from proxy.exchange import Exchange, unique
from proxy.net.headers import AS_JSON, headers_of, openai_headers
from proxy.net.inflate import decoded, readable
from proxy.neutral.dialect import NO_ANSWER, Dialect
from proxy.neutral.piece import Identity, Piece
from proxy.settings import Settings
from proxy.shortening.budget import ContextBudget
from proxy.stages.ahead import AheadCompactor
from proxy.stages.attempt import Attempts, leave
from proxy.stages.client_stream import (
    ClientStream,
    KeepingStream,
    Nobody,
    client_error,
    end_with_error,
    end_with_nothing,
)
from proxy.stages.compacting import Compactor
from proxy.stages.counting import Counting
from proxy.stages.explaining import explain
from proxy.stages.handing_over import HandingOver
from proxy.stages.job import Job
from proxy.stages.managing import Keeper, wished_goal
from proxy.stages.passing import ErrorEnding, left_alone, pass_by_model, pass_on, pass_through, relay_response
from proxy.stages.preparing import Preparer
from proxy.stages.reading import Memory, conversation_of
from proxy.stages.recalling import Recaller
from proxy.stages.room import FixedPart, cannot_fit, too_long
from proxy.stages.routing import Router
from proxy.stages.streaming import StreamDriver
from proxy.stages.whole import Whole, answer_whole, as_stream
from proxy.status import FORMS, Notice
from proxy.telemetry.outcome import CLIENT_LEFT, Outcome, Telemetry
from proxy.wire.jsontext import check_plain, dumps, loads

_OF_ONE_BODY = (b"content-length", b"content-encoding", b"content-type", b"cache-control")
"""Headers that do not hold for an answer that is made a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Takes clients' exchanges and answers them."""

    settings: Settings
    router: Router
    preparer: Preparer
    keeper: Keeper
    handing_over: HandingOver
    compactor: Compactor
    ahead: AheadCompactor
    recaller: Recaller
    counting: Counting
    attempts: Attempts
    driver: StreamDriver
    telemetry: Telemetry
    memory: Memory
    fixed_part: FixedPart
    clock: Callable[[], float]
    """Seconds since the epoch."""
    grace: float
    """Seconds of silence after which a waiting stream is opened."""

    @property
    def manages_all(self) -> bool:
        """Whether no request is left to a backend that might keep answers of its own."""
        return self.settings.manages_all and self.router.manages_all

    def answer(self, exchange: Exchange, dialect: Dialect) -> Awaitable[None]:
        """Answer a request that is made in this dialect.

        Raises:
            ClientError: it can't be served; nothing was sent yet.
        """
        return self._recorded(exchange, dialect.name, partial(self._answer, exchange, dialect))

    async def explain(self, exchange: Exchange) -> None:
        """Tell what would happen to a request for chat completions, without asking a model.

        Raises:
            ClientError: it is malformed.
        """
        wire = await exchange.body(self.settings.max_body)
        with exchange.watched():
            plain = await exchange.decoded(wire, self.settings.max_body)
            try:
                await asyncio.to_thread(check_plain, plain)
            except ValueError as error:
                raise BadRequest(
                    f"The request body is not valid JSON: {error}. Send a JSON object."
                ) from None
            job = await self._read(exchange, self.telemetry.silent(), CHAT, wire)
            body = dumps(explain(job, self.counting))
            await exchange.reply(200, [AS_JSON], body)

    async def count(self, exchange: Exchange, dialect: Dialect) -> None:
        """Tell how many tokens a prompt has that is asked in this dialect: all that the client sends, shortened only as it wishes.

        Raises:
            ClientError: it is malformed, or is to be passed through and no backend answered.
        """
        wire = await exchange.body(self.settings.max_body)
        with exchange.watched():
            if (alone := await left_alone(exchange, wire, self.router, self.settings)) is not None:
                await pass_through(exchange, self.telemetry.silent(), *alone)
                return
            request = await self.memory.read(
                exchange, wire, lambda body, _: dialect.read_to_count(body), self.settings
            )
            request, route = await self.router.routed(request)
            body, cleared = await self.keeper.prompt(exchange.tenant, request, route)
            tokens = await self.counting.exactly(route, body)
            before = await self.counting.exactly(route, request.body) if cleared else tokens
            told = dumps(dialect.counted(tokens, before if request.edits else None))
            await exchange.reply(200, [AS_JSON], told)

    async def passthrough(self, exchange: Exchange) -> None:
        """Hand any other request to a backend, streaming both ways.

        Raises:
            ClientError: no backend answered.
            BrokenOff: the backend broke off in the middle of the body.
        """
        await self._recorded(
            exchange,
            "",
            lambda outcome: pass_by_model(exchange, outcome, self.router, self.settings.max_body),
        )

    def turned_away(self, exchange: Exchange, error: ClientError) -> None:
        """Write down a request that was not let in."""
        outcome = self.telemetry.open(exchange.id)
        outcome.fail(error.status, error.code or error.type)
        outcome.close(error.status)

    async def _answer(self, exchange: Exchange, dialect: Dialect, outcome: Outcome) -> None:
        wire = await exchange.body(self.settings.max_body)
        with exchange.watched():
            if (alone := await left_alone(exchange, wire, self.router, self.settings)) is not None:
                await pass_through(
                    exchange, outcome, *alone, _ending(exchange, dialect, wire, self.settings.max_body)
                )
                return
            try:
                job = await self._read(exchange, outcome, dialect, wire)
            except NotManaged as left:
                told = left.otherwise
                await pass_on(
                    exchange,
                    outcome,
                    self.router,
                    wire,
                    self.settings.max_body,
                    lambda: dumps(told(int(self.clock()))),
                )
                return
            try:
                await (self._stream(job) if job.prompt.request.stream else self._whole(job))
            finally:
                await leave(job)
                if job.hands_over:  # what comes next is another history
                    self.handing_over.keep(job)
                else:
                    self.ahead.after(job)

    # -- from bytes to a job

    async def _read(self, exchange: Exchange, outcome: Outcome, dialect: Dialect, wire: bytes) -> Job:
        """Route, profile, clean history, checkpoint, recall, count."""
        request = await self.memory.read(exchange, wire, dialect.read, self.settings)
        if dialect is not CHAT:
            exchange.headers, exchange.query = openai_headers(exchange.headers), b""
        request, route = await self.router.routed(request)
        if named := conversation_of(exchange, request):
            outcome.record_conversation(named)
        outcome.record_route(route.upstream.name, route.model)
        if request.left_out:
            outcome.add("left_out", kinds=request.left_out)
        job = await self.preparer.prepare(exchange, outcome, dialect, request, route)
        outcome.show("taken", job=job, request=request, size=len(wire))
        return job

    async def _keep(self, job: Job, answer: dict[str, Any]) -> None:
        """Keep an answer, if it is to be."""
        await self.memory.keep_answer(job.exchange.tenant, job.asked, answer)

    async def _recorded(
        self, exchange: Exchange, dialect: str, served: Callable[[Outcome], Awaitable[None]]
    ) -> None:
        """Have a request served, keep its outcome, and close that whatever happens."""
        outcome = self.telemetry.open(exchange.id)
        outcome.begin(dialect, exchange.tenant, exchange.trace)
        try:
            exchange.admit()
            await served(outcome)
        except ClientError as error:
            outcome.fail(error.status, error.code or error.type)
            raise
        except asyncio.CancelledError:
            if (stopped := exchange.stopped()) is not None:
                outcome.fail(stopped.status, stopped.code or stopped.type)
                raise stopped from None
            if not outcome.delivered:
                outcome.fail(CLIENT_LEFT, "client_left" if exchange.gone else "cancelled")
            raise
        except Exception as error:  # it is reported where it is answered; here it is only written down
            outcome.fail(exchange.status or 500, type(error).__name__)
            raise
        finally:
            outcome.close(exchange.status)

    # -- streamed answers

    async def _stream(self, job: Job) -> None:
        client = self._client_stream(job)
        try:
            if (again := await self.handing_over.again(job)) is not None:
                whole = Whole(200, [], b"", again.pieces)
                await self._as_stream(job, client, whole)
                return
            await self._make_room(job, client)
            if job.managed.ended:
                await end_with_nothing(client, self._identity(job))
                return
            await self._relayed(job, client)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - an open stream has to end, and it is logged
            failed = client_error(job.exchange, error)
            job.outcome.fail(failed.status, failed.code or failed.type)
            await end_with_error(client, failed.body())
        finally:
            client.stop()

    async def _relayed(self, job: Job, client: ClientStream) -> None:
        """Ask the backend, and pass on what it says."""
        response, body = await self.attempts.open(job)
        if body is not None:
            client.stop()
            await self._other_than_stream(job, client, response, body)
            return
        plain = readable(response)
        if plain is None:
            client.stop()
            await relay_response(job.exchange, response, job.spillway_headers())
            return
        if client.writer.native:
            client.head = headers_of(plain, drop=(b"content-length",))
        await self.driver.run(job, plain, client)
        await client.close_notice()
        await client.end()

    async def _as_stream(self, job: Job, client: ClientStream, whole: Whole) -> bool:
        """Tell a whole answer as a stream; False if it is none."""
        frames = as_stream(whole, client, show_usage=job.prompt.request.usage_wish is True)
        if frames is None:
            return False
        await client.close_notice()
        await client.write(frames)
        await client.end()
        return True

    async def _other_than_stream(
        self, job: Job, client: ClientStream, response: httpx.Response, body: bytes
    ) -> None:
        """An answer of a backend that can't stream becomes one; an error stays as it came, if it still can."""
        if client.writer.native:
            client.head = [*client.head, *headers_of(response, drop=_OF_ONE_BODY)]
        whole = await answer_whole(job, response, body, self.driver)
        if await self._as_stream(job, client, whole):
            return
        if whole.status < 400 and not whole.body:
            raise UpstreamInvalid(f"The backend answered {whole.status} and nothing else.")
        status = whole.error_status
        job.outcome.fail(status, "refused")
        if not job.exchange.started:
            await job.exchange.reply(status, [*whole.headers, *job.spillway_headers()], whole.body)
        else:
            await end_with_error(client, whole.error())

    def _client_stream(self, job: Job) -> ClientStream:
        wished = job.exchange.header(b"x-spillway-status")
        form = wished if wished in FORMS else job.settings.status
        stream = (KeepingStream if job.asked.keeping is not None else ClientStream)(
            job.exchange,
            job.writer(),
            form="off" if job.undisturbed else form,
            own=self._identity(job),
            own_headers=job.spillway_headers,
            grace=self.grace,
            heartbeat=job.settings.heartbeat,
        )
        if isinstance(stream, KeepingStream):
            stream.keep = partial(self._keep, job)
        return stream

    def _identity(self, job: Job) -> Identity:
        """Of an answer that no backend has given one."""
        return Identity(job.dialect.answer_id(job.unique), int(self.clock()), job.prompt.request.model)

    # -- whole answers

    async def _whole(self, job: Job) -> None:
        again = await self.handing_over.again(job)
        if again is None:
            await self._make_room(job, None)
        if again is not None or job.managed.ended:
            nothing = replace(NO_ANSWER, read=lambda: (Piece(identity=self._identity(job)),))
            told = job.writer().body(again or nothing, () if again is None else again.pieces, None)
            whole = Whole(200, [AS_JSON], told)
        else:
            response, raw = await self.attempts.open(job)
            assert raw is not None  # nobody asked for a stream
            whole = await answer_whole(job, response, raw, self.driver)
        if job.asked.keeping is not None and whole.status == 200:
            await self._keep(job, loads(whole.body))
        await job.exchange.reply(whole.status, [*whole.headers, *job.spillway_headers()], whole.body)

    # -- room
    async def _make_room(self, job: Job, client: ClientStream | None) -> None:
        """Compact before sending, if the client wishes that; and if the prompt is due or might not fit, and it was not done ahead."""
        await self.preparer.load(job)
        await self.ahead.meet(job)
        if (budget := job.budget) is not None:
            await self._make_room_in(job, budget, client)
        wish = job.asked.compaction
        if wish is not None and (wish.now or job.compacted):
            words = await self.compactor.described(job) if wish.worded and not job.compacted else ""
            await self.keeper.keep(job, words)
            job.managed.ended = wish.now or wish.pauses

    async def _make_room_in(self, job: Job, budget: ContextBudget, client: ClientStream | None) -> None:
        may_be_due = await self.counting.refine(job, budget)
        budget = (job.budget or budget) if may_be_due else budget
        goal = wished_goal(job, budget)
        due = may_be_due and job.is_due and not await self.recaller.give_way(job)
        if not due and goal is None and not self.counting.was_cut(job):
            return
        before = job.prompt.estimate.tokens
        audience = client or Nobody(job.writer())
        job.fixed = self.fixed_part.to_tell(job)
        if goal is not None or await self.compactor.expects_summary(job):
            await audience.tell(Notice(done=False))
        async with audience.telling(lambda: job.progress.written):
            gained = await self.compactor.compact(job, goal=goal)
        if gained:
            self.counting.compacted(job)
            await audience.tell(Notice(done=False))  # ignored where it was told before
        after, extract = job.prompt.estimate.tokens, job.outcome.summary == "extract"
        left_out = await self.attempts.tell_left_out(job) or job.outcome.cut_earlier[0]
        await audience.tell(Notice(True, before, after, not gained, extract=extract, left_out=left_out))
        if job.asked.compaction is not None and job.asked.compaction.now:
            return  # nothing of it is sent
        if job.prompt.estimate.tokens >= budget.window:
            await self.counting.make_sure(job)
        if cannot_fit(job, budget.window):
            raise too_long(job, self.counting.meter, before)


def _ending(exchange: Exchange, dialect: Dialect, wire: bytes, limit: int) -> ErrorEnding:
    """Ends a stream, that answers this request and is passed on as it comes, with an error."""

    def ending(error: ClientError) -> bytes:
        plain = decoded(wire, exchange.header(b"content-encoding"), limit)
        return dialect.writer(dialect.read(plain, plain), unique()).error(error.body())

    return ending

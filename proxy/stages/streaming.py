"""The driver of a streamed answer: reads the backend, feeds the session, carries out its commands."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import httpx

from proxy.core.status import Notice
from proxy.core.stream.answer import Answer
from proxy.core.stream.events import (
    ChunkReceived,
    Corrected,
    Finish,
    Pause,
    Resumed,
    ResumeFailed,
    Retry,
    Send,
    StreamEvent,
    UpstreamEnded,
    UpstreamFailed,
)
from proxy.core.stream.session import State, StreamSession, Watch
from proxy.errors import UpstreamUnavailable
from proxy.net.tasks import spawn
from proxy.stages.client_stream import Audience, Nobody
from proxy.stages.counting import Counting
from proxy.stages.emulating import CallLedger, Correction, Reader
from proxy.stages.pooling import was_cleared
from proxy.stages.resuming import Attempted, Progress, Resumer
from proxy.stages.sending import RETRIES, Sender, is_event_stream
from proxy.stages.turn import Turn
from proxy.telemetry import Telemetry
from proxy.tokens.meter import Estimate

Stopped = Pause | Retry | Correction | None
"""Why an attempt was left, or ended in something that needs another one; None: the answer is complete."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One answer on its way."""

    turn: Turn
    session: StreamSession
    to: Audience
    progress: Progress
    estimates: list[Estimate]
    """Of the prompt of each attempt."""
    corrected: bool = False
    """Whether the model was asked once more for a tool call that could not be made."""

    @classmethod
    def of(cls, turn: Turn, session: StreamSession, to: Audience) -> Run:
        """The first attempt is the turn itself."""
        progress = Progress(hidden=isinstance(to, Nobody))
        run = cls(turn=turn, session=session, to=to, progress=progress, estimates=[turn.estimate])
        run.corrected = turn.request.choices > 1  # of several choices none can be had again alone
        return run


class StreamDriver:
    """Drives sessions; holds no state of any one answer."""

    def __init__(
        self,
        *,
        sender: Sender,
        resumer: Resumer,
        counting: Counting,
        ledger: CallLedger,
        telemetry: Telemetry,
    ) -> None:
        self._sender = sender
        self._resumer = resumer
        self.counting = counting
        self.ledger = ledger
        self._telemetry = telemetry

    def session(self, turn: Turn, answer: Answer | None = None) -> StreamSession:
        """A session that watches for what this turn's model and client allow."""
        budget = turn.budget
        request = turn.request
        watch = Watch(
            window=budget.window if budget is not None else 0,
            pause_point=budget.pause_point if budget is not None else 0,
            max_tokens=request.max_tokens,
            strip_usage=turn.usage_asked,
            show_usage=request.usage_wish is True,
            cancels=turn.cancels,
            calls_whole=turn.offer is not None,
            resumable=budget is not None and turn.resumable,
            max_resumes=turn.options.max_resumes,
        )
        return StreamSession(watch, answer or self.answer(turn))

    def answer(self, turn: Turn) -> Answer:
        """An empty answer to a turn."""
        key, meter = turn.key, self.counting.meter
        bound = turn.answer_bound
        return Answer(turn.estimate.tokens, lambda text: meter.count_text(key, text), bound=bound)

    async def run(self, turn: Turn, response: httpx.Response, to: Audience) -> None:
        """Relay the answer to its end, over as many attempts as it takes."""
        session = self.session(turn)
        if to.identity is not None:
            session.adopt(to.identity)
        run = Run.of(turn, session, to)
        await self.go_on(run, await self._pump(run, response))

    async def go_on(self, run: Run, stopped: Stopped) -> None:
        """From a pause to the end of the answer; at once if it has ended."""
        while stopped is not None:
            if isinstance(stopped, Correction):
                stopped = await self._correct(run, stopped)
                continue
            to, attempt = run.to, run.session.answer.attempt
            before = attempt.used
            to.identity = to.identity or run.session.answer.identity
            if not attempt.cleared:
                await to.tell(Notice(done=False))
                if run.session.answer.identity is None and to.identity is not None:
                    run.session.adopt(to.identity)
            response = await self._next(run, stopped)
            after = run.estimates[-1].tokens
            await to.tell(Notice(done=True, before=before, after=after, failed=response is None))
            if response is None:
                await self._carry_out(run, ResumeFailed())
                break
            stopped = await self._pump(run, response)
        self._observe(run)

    async def _next(self, run: Run, stopped: Pause | Retry) -> httpx.Response | None:
        """Open the next attempt; None if there can be none."""
        turn, session = run.turn, run.session
        try:
            if isinstance(stopped, Retry):
                return await self._again(run, stopped)
            self._telemetry.paused(turn.key, stopped.reason)
            if session.answer.attempt.cleared:
                await self._sender.pool.wait(turn)
            attempted = await self._resumer.resume(turn, session.answer, run.progress)
        except UpstreamUnavailable:
            return None
        if attempted is None:
            return None
        run.estimates.append(attempted.estimate)
        _resumed(session, attempted, run.progress)
        return attempted.response

    async def _again(self, run: Run, stopped: Retry) -> httpx.Response | None:
        """Send a prompt that was refused inside the stream, shortened if it was too long."""
        turn, overflow = run.turn, stopped.overflow
        retry = len(run.estimates) - 1
        if overflow is None:
            ready = await self._sender.emulate(turn, 200, stopped.refusal)
        elif was_cleared(turn, overflow):
            await self._sender.pool.wait(turn)
            ready = True
        else:
            ready = retry < RETRIES and await self._sender.shorten(turn, overflow, retry)
        if not ready:
            return None
        response = await self._sender.open(turn)
        if not is_event_stream(response):
            await response.aclose()
            return None
        run.estimates.append(turn.estimate)
        run.session.handle(Resumed(turn.estimate.tokens, bound=turn.answer_bound))
        return response

    async def _correct(self, run: Run, correction: Correction) -> Stopped:
        """Have the model write its tool call once more, or deliver what it wrote as text."""
        turn, session = run.turn, run.session
        attempted = None
        if correction.ending:
            return await self._cut_off(run, correction)
        if not run.corrected:
            run.corrected = True
            with suppress(UpstreamUnavailable):
                attempted = await self._resumer.correct(turn, session.answer, correction)
        self.ledger.outcome(turn, correction.malformed, retried=attempted is not None)
        if attempted is None:
            stopped = await self._carry_out(run, ChunkReceived(correction.instead))
            return stopped or await self._carry_out(run, UpstreamEnded())
        run.estimates.append(attempted.estimate)
        session.handle(Corrected(attempted.estimate.tokens, attempted.bound))
        return await self._pump(run, attempted.response)

    async def _cut_off(self, run: Run, correction: Correction) -> Stopped:
        """An attempt that ended for its length in the middle of a call: by the client's bound, or for want of room."""
        turn, session = run.turn, run.session
        session.take_ending(correction.ending)
        ended = correction.instead
        if session.watch.tokens_left(session.answer) != 0:
            attempt = session.answer.attempt
            attempt.in_vain = True
            attempt.dropped += self.counting.meter.count_text(turn.key, correction.written)
            ended = correction.ending
        return await self._carry_out(run, ChunkReceived(ended)) or await self._carry_out(run, UpstreamEnded())

    async def _pump(self, run: Run, response: httpx.Response) -> Stopped:
        """Read one attempt until it ends or is to be left."""
        turn, session, to = run.turn, run.session, run.to
        reader = self._reader(turn, session.answer)
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        first = True
        try:
            async for data in stream:
                if reader is None and session.passed(data):
                    await to.write(data)
                    continue
                event = ChunkReceived(data) if reader is None else reader.read(data)
                stopped = await self._carry_out(run, event)
                if stopped is not None or session.state is State.DONE:
                    return stopped
                if first:
                    first = False
                    self.read_again(turn)
            return await self._at_end(run, reader)
        except httpx.TransportError as error:
            return await self._broken_off(run, reader, error)
        finally:
            await response.aclose()
            if reader is not None:
                self.ledger.add(turn, reader.stats)

    async def _at_end(self, run: Run, reader: Reader | None) -> Stopped:
        """The backend has ended the body in good order."""
        if reader is not None:
            rest, correction = reader.end()
            if (stopped := await self._carry_out(run, ChunkReceived(rest)) or correction) is not None:
                return stopped
        return await self._carry_out(run, UpstreamEnded())

    async def _broken_off(self, run: Run, reader: Reader | None, error: httpx.TransportError) -> Stopped:
        self._telemetry.failed(run.turn.key)
        if reader is not None:
            await self._carry_out(run, ChunkReceived(reader.end()[0]))
        if run.session.state is State.DONE:
            return None
        failed = UpstreamFailed(f"The backend broke off the answer ({type(error).__name__}).")
        return await self._carry_out(run, failed)

    def _reader(self, turn: Turn, answer: Answer) -> Reader | None:
        """Who reads the calls of a model that writes them as text."""
        if turn.offer is None:
            return None
        key, meter = turn.key, self.counting.meter
        said, made = answer.text, answer.calls.count
        return Reader(turn.offer, lambda text: meter.count_text(key, text), calls_before=made, said=said)

    async def _carry_out(self, run: Run, event: StreamEvent) -> Pause | Retry | None:
        for command in run.session.handle(event):
            match command:
                case Send(data):
                    await run.to.write(data)
                case Pause() | Retry():
                    return command
                case Finish():
                    return None
        return None

    def read_again(self, turn: Turn) -> None:
        """The model has answered, so it is loaded now and its window can be told."""
        if not turn.profile.provisional:
            return
        prober, model = turn.route.upstream.prober, turn.route.model
        spawn(prober.refresh_after_load(model), name="profile-refresh")

    def _observe(self, run: Run) -> None:
        for attempt, estimate in zip(run.session.answer.attempts, run.estimates, strict=False):
            if attempt.usage is not None:
                self.counting.observe(run.turn, estimate, attempt.usage)


def _resumed(session: StreamSession, attempted: Attempted, progress: Progress) -> None:
    asked = attempted.request
    event = Resumed(
        attempted.estimate.tokens,
        bound=attempted.bound,
        echo=asked.echo,
        quote=asked.quote,
        exact=asked.exact,
        gap=progress.gap,
    )
    session.handle(event)

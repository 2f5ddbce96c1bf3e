"""The driver of a streamed answer: reads the backend, feeds the session, carries out its commands."""

from __future__ import annotations

import httpx

from proxy.core.status import Notice
from proxy.core.stream.answer import Answer
from proxy.core.stream.events import (
    ChunkReceived,
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
from proxy.core.stream.session import StreamSession, Watch
from proxy.errors import UpstreamUnavailable
from proxy.net.tasks import spawn
from proxy.stages.client_stream import Audience, Nobody
from proxy.stages.counting import Counting
from proxy.stages.resuming import Attempted, Progress, Resumer
from proxy.stages.sending import RETRIES, Sender, is_event_stream
from proxy.stages.turn import Turn
from proxy.telemetry import Telemetry
from proxy.tokens.meter import Estimate

Stopped = Pause | Retry | None


class StreamDriver:
    """Drives sessions; holds no state of any one answer."""

    def __init__(self, *, sender: Sender, resumer: Resumer, counting: Counting, telemetry: Telemetry) -> None:
        self._sender = sender
        self._resumer = resumer
        self.counting = counting
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
            bounded=turn.answer_bounded,
            resumable=budget is not None and _resumable(turn),
            max_resumes=turn.options.max_resumes,
        )
        return StreamSession(watch, answer or self.answer(turn))

    def answer(self, turn: Turn) -> Answer:
        """An empty answer to a turn."""
        return Answer(turn.estimate.tokens, lambda text: self.counting.meter.count_text(turn.key, text))

    async def run(self, turn: Turn, session: StreamSession, response: httpx.Response, to: Audience) -> None:
        """Relay the answer to its end, over as many attempts as it takes."""
        estimates = [turn.estimate]
        if to.identity is not None:
            session.adopt(to.identity)
        stopped = await self._pump(session, response, to, turn)
        await self.go_on(turn, session, stopped, to, estimates)

    async def go_on(
        self, turn: Turn, session: StreamSession, stopped: Stopped, to: Audience, estimates: list[Estimate]
    ) -> None:
        """From a pause to the end of the answer; at once if it has ended."""
        progress = Progress(hidden=isinstance(to, Nobody))
        while stopped is not None:
            to.identity = to.identity or session.answer.identity
            await to.tell(Notice(done=False))
            response = await self._next(turn, session, stopped, progress, estimates)
            await to.tell(Notice(done=True, failed=response is None))
            if response is None:
                break
            stopped = await self._pump(session, response, to, turn)
        await self._carry_out(session, ResumeFailed() if stopped is not None else None, to)
        self._observe(turn, session, estimates)

    async def _next(
        self,
        turn: Turn,
        session: StreamSession,
        stopped: Pause | Retry,
        progress: Progress,
        estimates: list[Estimate],
    ) -> httpx.Response | None:
        try:
            if isinstance(stopped, Retry):
                attempt = len(estimates) - 1
                if attempt >= RETRIES or not await self._sender.shorten(turn, stopped.overflow, attempt):
                    return None
                response = await self._sender.open(turn)
                if not is_event_stream(response):
                    await response.aclose()
                    return None
                estimates.append(turn.estimate)
                session.handle(Resumed(turn.estimate.tokens))
                return response
            self._telemetry.paused(turn.key, stopped.reason)
            attempted = await self._resumer.resume(turn, session.answer, progress)
        except UpstreamUnavailable:
            return None
        if attempted is None:
            return None
        estimates.append(attempted.estimate)
        _resumed(session, attempted, progress)
        return attempted.response

    async def _pump(
        self, session: StreamSession, response: httpx.Response, to: Audience, turn: Turn
    ) -> Stopped:
        """Read one attempt until it ends or is to be left."""
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        first = True
        try:
            async for data in stream:
                for command in session.handle(ChunkReceived(data)):
                    if isinstance(command, Send):
                        await to.write(command.data)
                    elif isinstance(command, Pause | Retry):
                        return command
                if first:
                    first = False
                    self.read_again(turn)
            return await self._carry_out(session, UpstreamEnded(), to)
        except httpx.TransportError as error:
            self._telemetry.failed(turn.key)
            failed = UpstreamFailed(f"The backend broke off the answer ({type(error).__name__}).")
            return await self._carry_out(session, failed, to)
        finally:
            await response.aclose()

    async def _carry_out(self, session: StreamSession, event: StreamEvent | None, to: Audience) -> Stopped:
        if event is None:
            return None
        for command in session.handle(event):
            match command:
                case Send(data):
                    await to.write(data)
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

    def _observe(self, turn: Turn, session: StreamSession, estimates: list[Estimate]) -> None:
        for attempt, estimate in zip(session.answer.attempts, estimates, strict=False):
            if attempt.usage is not None:
                self.counting.observe(turn, estimate, attempt.usage)


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


def _resumable(turn: Turn) -> bool:
    """What can't be joined without a seam isn't paused: it runs to the window's end and ends honestly."""
    request = turn.request
    return request.choices == 1 and not request.structured and not request.body.get("logprobs")

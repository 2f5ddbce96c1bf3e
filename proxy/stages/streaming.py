"""The driver of a streamed answer: reads the backend, feeds the session, carries out its commands."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import httpx

from proxy.answer.answer import Answer
from proxy.answer.events import (
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
from proxy.answer.session import State, StreamSession, Watch
from proxy.backends.remedy import Remedy
from proxy.errors import UpstreamUnavailable
from proxy.net.responses import is_event_stream
from proxy.net.tasks import spawn
from proxy.stages.attempt import Attempted, Attempts
from proxy.stages.client_stream import Audience, Nobody
from proxy.stages.counting import Counting
from proxy.stages.emulating import CallLedger, Correction, Reader
from proxy.stages.job import Job
from proxy.stages.resuming import Progress, Resumer
from proxy.status import Notice
from proxy.telemetry import events
from proxy.telemetry.events import BackendFailed, FirstByte, Paused
from proxy.tokens.meter import Estimate

Stopped = Pause | Retry | Correction | None
"""Why an attempt was left, or ended in something that needs another one; None: the answer is complete."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One answer on its way."""

    job: Job
    session: StreamSession
    to: Audience
    progress: Progress
    estimates: list[Estimate]
    """Of the prompt of each attempt."""

    @classmethod
    def of(cls, job: Job, session: StreamSession, to: Audience) -> Run:
        """The first attempt is the job itself."""
        progress = Progress(hidden=isinstance(to, Nobody))
        return cls(job=job, session=session, to=to, progress=progress, estimates=[job.estimate])


class StreamDriver:
    """Drives sessions; holds no state of any one answer."""

    def __init__(
        self,
        *,
        attempts: Attempts,
        resumer: Resumer,
        counting: Counting,
        ledger: CallLedger,
    ) -> None:
        self._attempts = attempts
        self._resumer = resumer
        self.counting = counting
        self.ledger = ledger

    def session(self, job: Job, answer: Answer | None = None) -> StreamSession:
        """A session that watches for what this job's model and client allow."""
        budget = job.budget
        request = job.request
        watch = Watch(
            window=budget.window if budget is not None else 0,
            pause_point=budget.pause_point if budget is not None else 0,
            max_tokens=request.max_tokens,
            strip_usage=job.usage_asked,
            show_usage=request.usage_wish is True,
            cancels=job.cancels,
            calls_whole=job.offer is not None,
            resumable=budget is not None and job.resumable,
            max_resumes=job.options.max_resumes,
        )
        return StreamSession(watch, answer or self.answer(job))

    def answer(self, job: Job) -> Answer:
        """An empty answer to a job."""
        key, meter = job.key, self.counting.meter
        bound = job.answer_bound
        return Answer(job.estimate.tokens, lambda text: meter.count_text(key, text), bound=bound)

    async def run(self, job: Job, response: httpx.Response, to: Audience) -> None:
        """Relay the answer to its end, over as many attempts as it takes."""
        session = self.session(job)
        if to.identity is not None:
            session.adopt(to.identity)
        run = Run.of(job, session, to)
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
                run.job.journal.tell(events.ResumeFailed())
                await self._carry_out(run, ResumeFailed())
                break
            stopped = await self._pump(run, response)
        run.job.journal.answered(run.session.answer.usage())
        self._observe(run)

    async def _next(self, run: Run, stopped: Pause | Retry) -> httpx.Response | None:
        """Open the next attempt; None if there can be none."""
        job, session = run.job, run.session
        try:
            if isinstance(stopped, Retry):
                return await self._again(run, stopped)
            job.journal.tell(Paused(stopped.reason))
            if session.answer.attempt.cleared and not await self._attempts.cleared(job):
                return None
            attempted = await self._resumer.resume(job, session.answer, run.progress)
        except UpstreamUnavailable:
            return None
        if attempted is None:
            return None
        run.estimates.append(attempted.estimate)
        _resumed(session, attempted, run.progress)
        return attempted.response

    async def _again(self, run: Run, stopped: Retry) -> httpx.Response | None:
        """Send a prompt that was refused inside the stream, in a way that may be taken."""
        job = run.job
        refusal = self._attempts.refused(job, stopped.overflow, stopped.refusal)
        if await self._attempts.mend(job, refusal) is Remedy.GIVE_UP:
            return None
        response = await self._attempts.open(job)
        if not is_event_stream(response):
            await response.aclose()
            return None
        run.estimates.append(job.estimate)
        run.session.handle(Resumed(job.estimate.tokens, bound=job.answer_bound))
        return response

    async def _correct(self, run: Run, correction: Correction) -> Stopped:
        """Have the model write its tool call once more, or deliver what it wrote as text."""
        job, session = run.job, run.session
        attempted = None
        if correction.ending:
            return await self._cut_off(run, correction)
        if not job.spent.corrected and job.request.choices == 1:  # of several none can be had again alone
            job.spent.corrected = True
            with suppress(UpstreamUnavailable):
                attempted = await self._resumer.correct(job, session.answer, correction)
        self.ledger.outcome(job, correction.malformed, retried=attempted is not None)
        if attempted is None:
            stopped = await self._carry_out(run, ChunkReceived(correction.instead))
            return stopped or await self._carry_out(run, UpstreamEnded())
        run.estimates.append(attempted.estimate)
        session.handle(Corrected(attempted.estimate.tokens, attempted.bound))
        return await self._pump(run, attempted.response)

    async def _cut_off(self, run: Run, correction: Correction) -> Stopped:
        """An attempt that ended for its length in the middle of a call: by the client's bound, or for want of room."""
        job, session = run.job, run.session
        session.take_ending(correction.ending)
        ended = correction.instead
        if session.watch.tokens_left(session.answer) != 0:
            attempt = session.answer.attempt
            attempt.in_vain = True
            attempt.dropped += self.counting.meter.count_text(job.key, correction.written)
            ended = correction.ending
        return await self._carry_out(run, ChunkReceived(ended)) or await self._carry_out(run, UpstreamEnded())

    async def _pump(self, run: Run, response: httpx.Response) -> Stopped:
        """Read one attempt until it ends or is to be left."""
        job, session, to = run.job, run.session, run.to
        reader = self._reader(job, session.answer)
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        first = True
        try:
            async for data in stream:
                if reader is None and session.passed(data):
                    await to.write(data)
                    continue
                if first:
                    job.journal.tell(FirstByte())
                event = ChunkReceived(data) if reader is None else reader.read(data)
                stopped = await self._carry_out(run, event)
                if stopped is not None or session.state is State.DONE:
                    return stopped
                if first:
                    first = False
                    self.read_again(job)
            return await self._at_end(run, reader)
        except httpx.TransportError as error:
            return await self._broken_off(run, reader, error)
        finally:
            await response.aclose()
            if reader is not None:
                self.ledger.add(job, reader.stats)

    async def _at_end(self, run: Run, reader: Reader | None) -> Stopped:
        """The backend has ended the body in good order."""
        if reader is not None:
            rest, correction = reader.end()
            if (stopped := await self._carry_out(run, ChunkReceived(rest)) or correction) is not None:
                return stopped
        return await self._carry_out(run, UpstreamEnded())

    async def _broken_off(self, run: Run, reader: Reader | None, error: httpx.TransportError) -> Stopped:
        run.job.journal.tell(BackendFailed(type(error).__name__))
        if reader is not None:
            await self._carry_out(run, ChunkReceived(reader.end()[0]))
        if run.session.state is State.DONE:
            return None
        failed = UpstreamFailed(f"The backend broke off the answer ({type(error).__name__}).")
        return await self._carry_out(run, failed)

    def _reader(self, job: Job, answer: Answer) -> Reader | None:
        """Who reads the calls of a model that writes them as text."""
        if job.offer is None:
            return None
        key, meter = job.key, self.counting.meter
        said, made = answer.text, answer.calls.count
        return Reader(job.offer, lambda text: meter.count_text(key, text), calls_before=made, said=said)

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

    def read_again(self, job: Job) -> None:
        """The model has answered, so it is loaded now and its window can be told."""
        if not job.profile.provisional:
            return
        prober, model = job.route.upstream.prober, job.route.model
        spawn(prober.refresh_after_load(model), name="profile-refresh")

    def _observe(self, run: Run) -> None:
        for attempt, estimate in zip(run.session.answer.attempts, run.estimates, strict=False):
            if attempt.usage is not None:
                self.counting.observe(run.job, estimate, attempt.usage)


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

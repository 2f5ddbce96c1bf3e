"""The driver of a streamed answer: reads the backend, feeds the session, carries out its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from proxy.attempts.attempt import Attempted, Attempts
from proxy.attempts.bounds import room_of, watch_of
from proxy.attempts.calls import Judged, judge, leaks_of, native_offer
from proxy.attempts.client import Audience, Nobody
from proxy.attempts.emulating import CallLedger, make_id
from proxy.attempts.resuming import Resumer, ResumeState
from proxy.attempts.searching import Searcher
from proxy.backends.profile import Fact, Trust
from proxy.backends.refusals import Remedy
from proxy.compaction.continuation import SummarisedStart
from proxy.core.errors import UpstreamUnavailable
from proxy.core.jsontext import dumps
from proxy.core.piece import Piece
from proxy.core.sse import FrameTooLong
from proxy.emulation import WrittenCallReader
from proxy.job import Job
from proxy.net.inflate import Undecoded
from proxy.net.transport import InvalidResponse
from proxy.stream.answer import Answer
from proxy.stream.events import (
    AnswerReceived,
    ChunkReceived,
    Correct,
    EndedHere,
    Finish,
    Pause,
    Reopened,
    ResumeFailed,
    Retry,
    Search,
    Send,
    StreamEvent,
    UpstreamEnded,
    UpstreamFailed,
)
from proxy.stream.session import State, StreamSession
from proxy.stream.status import Notice
from proxy.tokens.counting import Counting
from proxy.tokens.meter import Estimate
from proxy.tokens.windows import Filled, room_assumed

Interrupted = Pause | Retry | Correct | Search | None
"""Why an attempt was left, or ended in something that needs another one; None: the answer is complete."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One answer on its way."""

    job: Job
    session: StreamSession
    to: Audience
    state: ResumeState
    estimates: list[Estimate]
    """Of the prompt of each attempt."""
    readers: list[WrittenCallReader]
    """Of calls, whose counts are still to be taken."""
    judged: Judged = field(default_factory=Judged)
    """What of its calls was told."""
    observed: int = 0
    """Attempts that were learned from."""
    failed: UpstreamUnavailable | None = None
    """Why the backend did not continue the answer, if that ended it."""


_AS_BEFORE = 0.98
"""Share of the tokens before a pause from which on nothing was gained: a word that is asked for again weighs a little."""


class StreamDriver:
    """Drives sessions; holds no state of any one answer."""

    def __init__(
        self, *, attempts: Attempts, resumer: Resumer, counting: Counting, ledger: CallLedger, searcher: Searcher
    ) -> None:
        self._attempts = attempts
        self._resumer = resumer
        self._counting = counting
        self.ledger = ledger
        self._searcher = searcher

    def _begin(self, job: Job, to: Audience) -> Run:
        """An empty answer to a job, which is its first attempt, and a session that watches for what is allowed."""
        key, meter, readers = job.key, self._counting.meter, list[WrittenCallReader]()
        answer = Answer(
            job.prompt.estimate.tokens,
            lambda text: meter.count_text(key, text, cautious=True),
            bound=job.prompt.answer_bound,
        )

        def reader_of_calls() -> WrittenCallReader | None:
            offer, made, said = job.prompt.offer, answer.calls.count, answer.text
            if offer is None:
                reader = leaks_of(job, native_offer(job), said=said)
            else:
                reader = WrittenCallReader(offer, make_id, emulated=True, calls_before=made, text_before=said)
            readers.extend(() if reader is None else (reader,))
            return reader

        def told() -> dict[str, Any] | None:
            _judge(run)
            return job.usage_details()

        watch = watch_of(job, lambda: self._remarks(run), told)
        session = StreamSession(watch, answer, to.writer, reader_of_calls)
        if to.identity is not None:
            session.adopt(to.identity)
        run = Run(
            job=job,
            session=session,
            to=to,
            state=ResumeState(hidden=isinstance(to, Nobody)),
            estimates=[job.prompt.estimate],
            readers=readers,
        )
        job.outcome.show("answering", answer=answer)
        return run

    def _remarks(self, run: Run) -> list[Piece]:
        """Return what is told beside an answer that ends."""
        if not run.to.beside:
            return []
        self._observe(run)  # which may show that the prompt was cut
        _judge(run)
        job = run.job
        # The headers may have gone out too early to say what was done.
        details = job.usage_details() if job.outcome.handled else None
        summary = [Piece(comment=f"spillway {dumps(details).decode()}")] if details else []
        return [form(notice) for notice in job.final_notices() for form in run.to.beside] + summary

    async def run(self, job: Job, came: httpx.Response | Sequence[Piece], to: Audience) -> Run:
        """Relay an answer to its end, over as many attempts as it takes: a stream, or one that came whole."""
        run = self._begin(job, to)
        try:
            if isinstance(came, httpx.Response):
                stopped = await self._pump(run, came)
            else:
                stopped = await self._carry_out(run, AnswerReceived(came))
                self._attempt_over(run)
            await self._go_on(run, stopped)
        except asyncio.CancelledError:
            if not (job.exchange.halted and run.session.answer.begun and job.exchange.stopped()):
                raise
            if run.session.state is not State.DONE:
                await self._carry_out(run, EndedHere())
        finally:
            # Clients hang up at the end mark, and the backend may take its time to end the body.
            self._over(run)
        return run

    async def _go_on(self, run: Run, stopped: Interrupted) -> None:
        """From a pause to the end of the answer; at once if it has ended."""
        while stopped is not None:
            if isinstance(stopped, Correct | Search):
                stopped = await self._answered(run, stopped)
                continue
            to, attempt = run.to, run.session.answer.attempt
            before = attempt.used
            to.identity = to.identity or run.session.answer.identity
            last = isinstance(stopped, Pause) and stopped.last
            quiet = attempt.cleared or last
            if not quiet and self._resumer.takes_long(run.job, run.session.answer):
                await to.notify(Notice(done=False))
            done = run.job.outcome
            compactions, extracts, cut = done.compactions, done.extracts, done.left_out
            async with to.progress(lambda: run.job.state.progress.written):
                response = None if last else await self._next(run, stopped)
            notice = _outcome(run, before, response)
            left_out = done.left_out if done.left_out != cut else 0
            if not quiet and done.compactions > compactions:
                await to.notify(Notice(done=False))  # ignored where it was told before
            if run.session.answer.identity is None and to.identity is not None:
                run.session.adopt(to.identity)
            await to.notify(replace(notice, extract=done.extracts > extracts, left_out=left_out))
            if run.failed is not None:
                stopped = await self._carry_out(run, UpstreamFailed(run.failed.message))
                continue
            if response is None:
                done.unfinished = True
                done.add("out_of_room")
                stopped = await self._carry_out(run, ResumeFailed())
                continue
            stopped = await self._pump(run, response)

    def _over(self, run: Run) -> None:
        """Write down what became of an answer, and learn from what the backend reported."""
        session, outcome = run.session, run.job.outcome
        answer = session.answer
        _judge(run, over=True)
        outcome.usage, outcome.delivered = answer.usage(), session.delivered
        if session.failed or answer.attempt.errored:
            outcome.fail(0, "upstream_failed")
        else:
            run.job.state.joined_answer = answer.whole
            if session.watch.ended_short(answer) and not outcome.unfinished:
                outcome.unfinished = True
                outcome.add("out_of_room")
        self._observe(run)

    async def _next(self, run: Run, stopped: Pause | Retry) -> httpx.Response | None:
        """Open the next attempt; None if there can be none, with `run.failed` if that is the backend's doing."""
        job, session = run.job, run.session
        try:
            if isinstance(stopped, Retry):
                return await self._again(run, stopped)
            job.outcome.add("paused", reason=stopped.reason)
            if session.watch.unknown:
                await self._settle(run)
            if session.answer.attempt.cleared and not await self._attempts.cleared(job):
                return None
            attempted = await self._resumer.resume(job, session.answer, run.state)
        except UpstreamUnavailable as error:
            run.failed = error
            return None
        if attempted is None:
            return None
        run.estimates.append(attempted.estimate)
        _resumed(job, session, attempted, run.state)
        return attempted.response

    async def _settle(self, run: Run) -> None:
        """Learn the window from an answer that ended for its length; else assume one for this answer alone."""
        job, attempt = run.job, run.session.answer.attempt
        self._observe(run)
        job.profile = await job.route.profile(job.asked.body)
        if job.profile.window is None:
            held = Filled(attempt.prompt_tokens, attempt.completion_tokens)
            job.state.assumed = Fact(room_assumed(held), "assumed", Trust.FALLBACK)
        job.record_measured()

    def _observe(self, run: Run) -> None:
        """Learn from what the backend reported of attempts that have ended, once of each."""
        if name := run.session.answer.named:
            run.job.route.upstream.prober.answered_as(run.job.route.model, name)
        ended = zip(run.session.answer.attempts, run.estimates, strict=False)
        for attempt, estimate in list(ended)[run.observed :]:
            run.observed += 1
            if attempt.usage is not None:
                self._counting.observe(run.job, estimate, attempt.usage, finish=attempt.finish)

    async def _again(self, run: Run, stopped: Retry) -> httpx.Response | None:
        """Send a prompt that was refused inside the stream, in a way that may be taken."""
        job = run.job
        refusal = await self._attempts.refused(job, stopped.overflow, stopped.refusal)
        if await self._attempts.mend(job, refusal) is Remedy.GIVE_UP:
            return None
        response, body = await self._attempts.open(job)
        if body is not None:
            return None
        run.estimates.append(job.prompt.estimate)
        room = room_of(job) if job.budget is not None else None
        run.session.handle(Reopened(job.prompt.estimate.tokens, bound=job.prompt.answer_bound, room=room))
        return response

    async def _answered(self, run: Run, stopped: Correct | Search) -> Interrupted:
        """Answer what the model called for, and go on; where that can't be, deliver what there is."""
        if isinstance(stopped, Correct):
            attempted = await self._corrected(run, stopped)
        else:
            attempted = await self._searched(run, stopped)
        if attempted is None:
            return await self._carry_out(run, ResumeFailed())
        run.estimates.append(attempted.estimate)
        await self._carry_out(run, Reopened(attempted.estimate.tokens, attempted.bound, corrects=True))
        return await self._pump(run, attempted.response)

    async def _corrected(self, run: Run, correction: Correct) -> Attempted | None:
        """Have the model write its tool call once more."""
        job, attempted = run.job, None
        if job.prompt.request.choices == 1 and job.state.spent.corrects():  # of several none can be had again alone
            with suppress(UpstreamUnavailable):
                attempted = await self._resumer.correct(job, run.session.answer, correction)
        self.ledger.outcome(job, correction.forms, retried=attempted is not None)
        return attempted

    async def _searched(self, run: Run, search: Search) -> Attempted | None:
        """Tell the model what it searched for. What it says from then on is no part of what was said before."""
        run.state.said, run.state.thought = SummarisedStart(), SummarisedStart()
        with suppress(UpstreamUnavailable):
            return await self._searcher.go_on(run.job, run.session.answer, search)
        return None

    async def _pump(self, run: Run, response: httpx.Response) -> Interrupted:
        """Read one attempt until it ends or is to be left."""
        session, stream = run.session, response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        first = True
        try:
            async for data in stream:
                if first:
                    first = False
                    run.job.outcome.add("first_byte")
                stopped = await self._carry_out(run, ChunkReceived(data))
                if stopped is not None or session.state is State.DONE:
                    return stopped
            return await self._carry_out(run, UpstreamEnded())
        except (httpx.TransportError, FrameTooLong) as error:
            run.job.outcome.add("backend_failed", error=type(error).__name__)
            failed = UpstreamFailed(f"The backend broke off the answer ({_reason(error)}).")
            return await self._carry_out(run, failed)
        finally:
            await response.aclose()
            self._attempt_over(run)

    def _attempt_over(self, run: Run) -> None:
        """Tell of the calls of an attempt, and count them."""
        _judge(run)
        while run.readers:
            self.ledger.add(run.job, run.readers.pop().stats)

    async def _carry_out(self, run: Run, event: StreamEvent) -> Interrupted:
        for command in run.session.handle(event):
            match command:
                case Send(data):
                    await run.to.write(data)
                case Pause() | Retry() | Correct() | Search():
                    return command
                case Finish():
                    return None
        return None


def _outcome(run: Run, before: int, response: httpx.Response | None) -> Notice:
    """Notice that ends a pause: prompt tokens before and after it, whether the next attempt is open, or an answer ends."""
    if run.failed is not None:
        return Notice(done=True, ended=True, lost=True)
    after = run.estimates[-1].tokens
    ended = response is None and run.session.answer.begun
    failed = response is None or after >= before * _AS_BEFORE
    return Notice(done=True, before=before, after=after, failed=failed, ended=ended)


def _reason(error: Exception) -> str:
    """Return what is wrong with the bytes of an answer, or the kind of failure."""
    told = isinstance(error, FrameTooLong | InvalidResponse | Undecoded)
    return str(error) if told else type(error).__name__


def _judge(run: Run, *, over: bool = False) -> None:
    judge(run.job, run.session.answer, run.judged, run.readers, over=over)


def _resumed(job: Job, session: StreamSession, attempted: Attempted, state: ResumeState) -> None:
    asked = attempted.request
    event = Reopened(
        attempted.estimate.tokens,
        bound=attempted.bound,
        echo=asked.echo,
        quote=asked.quote,
        exact=asked.exact,
        gap=state.gap,
        calls=session.answer.attempt.calling,
        room=room_of(job),
    )
    session.handle(event)

"""The driver of an answer: reads the backend, feeds the session, carries out its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from proxy.attempts.attempt import Attempted, Attempts
from proxy.attempts.bounds import room_of, watch_of
from proxy.attempts.calls import AnswerCalls, CallLedger
from proxy.attempts.client import ClientStream
from proxy.attempts.resuming import Resumer, ResumeState
from proxy.backends.profile import Fact, Trust
from proxy.backends.refusals import Remedy
from proxy.backends.windows import room_assumed
from proxy.compaction.continuation import ContinuationRequest
from proxy.core.errors import UpstreamUnavailable
from proxy.core.history.turns import is_user
from proxy.core.jsontext import dumps
from proxy.core.piece import Piece
from proxy.core.sse import FrameTooLong
from proxy.job import Job
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

Interrupted = Pause | Retry | Correct | Search | None
"""Why an attempt was left, or ended in something that needs another one; None: the answer is complete."""

_TOO_MUCH = 0.6
"""Share of the window that system prompt and tools may take before users are told."""
_AS_BEFORE = 0.98
"""Share of the tokens before a pause from which on nothing was gained: a word that is asked for again weighs a little."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One answer on its way."""

    job: Job
    session: StreamSession
    client: ClientStream
    calls: AnswerCalls
    estimates: list[Estimate]
    """Of the prompt of each attempt."""
    state: ResumeState = field(default_factory=ResumeState)
    observed: int = 0
    """Attempts that were learned from."""
    failed: UpstreamUnavailable | None = None
    """Why the backend did not continue the answer, if that ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDriver:
    """Drives sessions; holds no state of any one answer."""

    attempts: Attempts
    resumer: Resumer
    counting: Counting
    ledger: CallLedger

    async def run(self, job: Job, received: httpx.Response | Sequence[Piece], client: ClientStream) -> Run:
        """Relay an answer to its end, over as many attempts as it takes: a stream, or the pieces of a body."""
        run = self._start(job, client)
        try:
            if isinstance(received, httpx.Response):
                stop = await self._read(run, received)
            else:
                stop = await self._handle(run, AnswerReceived(received))
                run.calls.attempt_over()
            while stop is not None:
                event, attempted = await self._next(run, stop)
                stop = await self._handle(run, event)
                if attempted is not None:
                    stop = await self._read(run, attempted.response)
        except asyncio.CancelledError:
            if not (job.exchange.halted and run.session.answer.has_output and job.exchange.stopped()):
                raise
            if run.session.state is not State.DONE:
                await self._handle(run, EndedHere())
        finally:
            # Clients hang up at the end mark, and the backend may take its time to end the body.
            self._end(run)
        return run

    def _start(self, job: Job, client: ClientStream) -> Run:
        """An empty answer to a job, which is its first attempt, and a session that watches for what is allowed."""
        key, meter = job.key, self.counting.meter
        answer = Answer(
            job.prompt.estimate.tokens,
            lambda text: meter.count_text(key, text, cautious=True),
            bound=job.prompt.answer_bound,
        )
        calls = AnswerCalls(job, answer, self.ledger)

        def usage_details() -> dict[str, Any] | None:
            calls.record()
            return job.usage_details()

        watch = watch_of(job, lambda: self._remarks(run), usage_details, hidden=not client.streams)
        session = StreamSession(watch, answer, client.writer, calls.reader)
        if client.identity is not None:
            session.adopt(client.identity)
        run = Run(job=job, session=session, client=client, calls=calls, estimates=[job.prompt.estimate])
        job.outcome.show("answering", answer=answer)
        return run

    def _remarks(self, run: Run) -> list[Piece]:
        """Return what is shown beside an answer that ends."""
        if not run.client.beside:
            return []
        self._observe(run)  # which may show that the prompt was cut
        run.calls.record()
        # The headers may have gone out too early to say what was done.
        details = run.job.usage_details() if run.job.outcome.handled else None
        summary = [Piece(comment=f"spillway {dumps(details).decode()}")] if details else []
        return [form(notice) for notice in _final_notices(run.job) for form in run.client.beside] + summary

    def _end(self, run: Run) -> None:
        """Write down what became of an answer, and learn from what the backend reported."""
        session, outcome = run.session, run.job.outcome
        answer = session.answer
        run.calls.record(over=True)
        outcome.usage, outcome.delivered = answer.usage(), session.delivered
        if session.failed or answer.attempt.errored:
            outcome.fail(0, "upstream_failed")
        else:
            run.job.state.joined_answer = answer.joined
            if session.watch.ended_short(answer) and not outcome.unfinished:
                _record_out_of_room(run.job)
        self._observe(run)

    def _observe(self, run: Run) -> None:
        """Learn from what the backend reported of attempts that have ended, once of each."""
        if name := run.session.answer.model:
            run.job.route.known.answered_as(name)
        ended = zip(run.session.answer.attempts, run.estimates, strict=False)
        for attempt, estimate in list(ended)[run.observed :]:
            run.observed += 1
            if attempt.usage is not None:
                self.counting.observe(run.job, estimate, attempt.usage, finish=attempt.finish)

    # -- reading

    async def _read(self, run: Run, response: httpx.Response) -> Interrupted:
        """Read one attempt until it ends or is to be left."""
        session, stream = run.session, response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        first = True
        try:
            async for data in stream:
                if first:
                    first = False
                    run.job.outcome.add("first_byte")
                stop = await self._handle(run, ChunkReceived(data))
                if stop is not None or session.state is State.DONE:
                    return stop
            return await self._handle(run, UpstreamEnded())
        except (httpx.TransportError, FrameTooLong) as error:
            run.job.outcome.add("backend_failed", error=type(error).__name__)
            speaks = isinstance(error, FrameTooLong | InvalidResponse)
            reason = str(error) if speaks else type(error).__name__
            return await self._handle(run, UpstreamFailed(f"The backend broke off the answer ({reason})."))
        finally:
            await response.aclose()
            run.calls.attempt_over()

    async def _handle(self, run: Run, event: StreamEvent) -> Interrupted:
        """Feed the session, and carry out what it commands."""
        for command in run.session.handle(event):
            if isinstance(command, Send):
                if run.client.streams:
                    await run.client.write(command.data)
            elif not isinstance(command, Finish):
                return command
        return None

    # -- the next attempt

    async def _next(self, run: Run, stop: Pause | Retry | Correct | Search) -> tuple[StreamEvent, Attempted | None]:
        """Open the next attempt, and return the event that begins it, or the one that there is none."""
        if isinstance(stop, Correct | Search):
            attempted = await self._answer_calls(run, stop)
        else:
            attempted = await self._with_notices(run, stop)
        if run.failed is not None:
            return UpstreamFailed(run.failed.message), None
        if attempted is None:
            return ResumeFailed(), None
        job, request = run.job, attempted.request
        event = Reopened(
            attempted.estimate.tokens,
            bound=attempted.bound,
            echo=request.echo,
            quote=request.quote,
            exact=request.exact,
            calls=run.session.answer.attempt.calling,
            corrects=isinstance(stop, Correct | Search),
            room=None if job.budget is None else room_of(job),
        )
        return event, attempted

    async def _answer_calls(self, run: Run, stop: Correct | Search) -> Attempted | None:
        """Answer what the model called for; None where that can't be: what there is is delivered."""
        job, answer, attempted = run.job, run.session.answer, None
        with suppress(UpstreamUnavailable):
            if isinstance(stop, Search):
                run.state = ResumeState()  # what the model generates from then on does not continue the text before it
                attempted = await self.resumer.search(job, answer, stop)
            elif (
                job.prompt.request.choices == 1 and job.state.spent.corrects()
            ):  # of several none can be had again alone
                attempted = await self.resumer.correct(job, answer, stop)
        if isinstance(stop, Correct):
            for form in stop.forms:
                self.ledger.count(job, form, "lost" if attempted is None else "retried")
        if attempted is not None:
            run.estimates.append(attempted.estimate)
        return attempted

    async def _with_notices(self, run: Run, stop: Pause | Retry) -> Attempted | None:
        """Open the next attempt between a notice that this may take long and one of what came of it."""
        job, client, answer = run.job, run.client, run.session.answer
        attempt, outcome, attempted = answer.attempt, job.outcome, None
        before, last = attempt.used, isinstance(stop, Pause) and stop.last
        client.identity = client.identity or answer.identity
        quiet = attempt.cleared or last
        if not quiet and self.resumer.takes_long(job, answer):
            await client.notify(Notice(done=False))
        compactions, cut = outcome.compactions, outcome.left_out
        async with client.progress(lambda: job.state.progress.written):
            if not last:
                try:
                    attempted = await self._open_next(run, stop)
                except UpstreamUnavailable as error:
                    run.failed = error
        if attempted is not None:
            run.estimates.append(attempted.estimate)
        elif run.failed is None:
            _record_out_of_room(job)
        if not quiet and outcome.compactions > compactions:
            await client.notify(Notice(done=False))  # ignored where it was shown before
        if answer.identity is None and client.identity is not None:
            run.session.adopt(client.identity)
        left_out = outcome.left_out if outcome.left_out != cut else 0
        notice = _notice_of(run, before, attempted)
        extract = any(each["summary"] == "extract" for each in outcome.reduced[compactions:])
        await client.notify(replace(notice, extract=extract, left_out=left_out))
        return attempted

    async def _open_next(self, run: Run, stop: Pause | Retry) -> Attempted | None:
        """Open the next attempt; None if there can be none.

        Raises:
            UpstreamUnavailable: that is the backend's doing.
        """
        job, session = run.job, run.session
        if isinstance(stop, Pause):
            job.outcome.add("paused", reason=stop.reason)
            if session.watch.unknown:
                await self._learn_window(run)
            if session.answer.attempt.cleared and not await self.attempts.cleared(job):
                return None
            return await self.resumer.resume(job, session.answer, run.state)
        # It was refused inside the stream: send it in a way that may be taken.
        refusal = await self.attempts.refused(job, stop.overflow, stop.refusal)
        if await self.attempts.mend(job, refusal) is Remedy.GIVE_UP:
            return None
        response, body = await self.attempts.open(job)
        request = ContinuationRequest([], {}, exact=True)
        return None if body is not None else Attempted(response, job.prompt.estimate, request, job.prompt.answer_bound)

    async def _learn_window(self, run: Run) -> None:
        """Learn the window from an answer that ended for its length; else assume one for this answer alone."""
        job, attempt = run.job, run.session.answer.attempt
        self._observe(run)
        await job.read_profile()
        if job.profile.window is None:
            room = room_assumed(attempt.prompt_tokens, attempt.completion_tokens)
            job.state.assumed = Fact(room, "assumed", Trust.FALLBACK)
        job.record_measured()


def _final_notices(job: Job) -> list[Notice]:
    """Build the notices that are shown beside an answer at its end."""
    outcome, budget = job.outcome, job.budget
    notices: list[Notice] = []
    if outcome.left_out:
        notices.append(Notice(done=True, left_out=outcome.left_out, left_out_of=outcome.left_out_of))
    if budget is not None and budget.fixed >= budget.window * _TOO_MUCH and any(outcome.each("compacting")):
        # What no compaction can shorten is the problem.
        notices.append(Notice(done=True, fixed=round(100 * budget.fixed / budget.window)))
    # Open WebUI shows the newest line: this one would replace that of a compaction, on each step of a turn.
    if outcome.recalled and not outcome.compactions and is_user(job.prompt.sent[-1]):
        notices.append(Notice(done=True, recalled=outcome.recalled))
    if any(outcome.each("cut")):
        notices.append(Notice(done=True, cut=True))
    return notices


def _record_out_of_room(job: Job) -> None:
    job.outcome.unfinished = True
    job.outcome.add("out_of_room")


def _notice_of(run: Run, before: int, attempted: Attempted | None) -> Notice:
    """Notice that ends a pause: prompt tokens before and after it, whether the next attempt is open, or an answer ends."""
    if run.failed is not None:
        return Notice(done=True, ended=True, lost=True)
    after = run.estimates[-1].tokens
    ended = attempted is None and run.session.answer.has_output
    return Notice(
        done=True, before=before, after=after, failed=attempted is None or after >= before * _AS_BEFORE, ended=ended
    )

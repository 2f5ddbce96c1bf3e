"""The driver of an answer: reads from the backend, feeds the session, sends its output, and opens the next attempt."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import httpx

from proxy.attempts.attempt import Attempted, Attempts
from proxy.attempts.calls import AnswerCalls, CallLedger
from proxy.attempts.client import ClientStream, final_notices
from proxy.attempts.learning import learn_room
from proxy.attempts.resuming import Resumer, takes_long
from proxy.attempts.too_long import too_long
from proxy.compaction.account import account
from proxy.compactor import growth_needed
from proxy.core.errors import STREAM_FAILED, UpstreamUnavailable
from proxy.core.history.turns import newest_user
from proxy.core.jsontext import dumps
from proxy.core.piece import Piece
from proxy.core.request import text_of
from proxy.core.sse import FrameTooLong
from proxy.dialects.chat.request import may_ask_usage
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.net.transport import InvalidResponse
from proxy.stream import events, status
from proxy.stream.answer import Answer
from proxy.stream.session import StreamSession
from proxy.stream.watch import Watch

Interrupted = events.Interruption | None
"""Reason why another attempt is needed, or None if the answer is complete."""
_CONCLUSIONS = 2
"""Times that a model may be made to answer: once from its thinking, and once anew."""


class AnswerDriver:
    """Relays one answer to its end, over as many attempts as it takes."""

    def __init__(self, job: Job, client: ClientStream, attempts: Attempts, ledger: CallLedger) -> None:
        key, meter = job.key, attempts.counting.meter
        self.answer = Answer(
            job.estimate.tokens,
            lambda text: meter.count_text(key, text, cautious=True),
            bound=job.prompt.answer_bound,
            unique=job.unique,
        )
        self._job = job
        self._client = client
        self._attempts = attempts
        self._counting = attempts.counting
        self._ledger = ledger
        self._calls = AnswerCalls(job, self.answer, ledger)
        watch = replace(
            _watch_of(job, hidden=not client.streams), remarks=self._remarks, usage_details=self._usage_details
        )
        self._session = StreamSession(watch, self.answer, client.writer, self._calls.reader)
        self._estimates = [job.estimate]
        """Estimates of the latest attempts' prompts, from whose usage the meter has not learned yet."""

    async def run(self, received: httpx.Response | Sequence[Piece]) -> None:
        """Relay the answer: a stream, or the pieces of a body."""
        job, session = self._job, self._session
        self._client.follow(session)
        job.outcome.show("answering", answer=self.answer)
        try:
            stop = await self._receive(received)
            while stop is not None:
                event, more = await self._next(stop)
                stop = await self._handle(event)
                if more is not None:
                    stop = await self._receive(more)
        except asyncio.CancelledError:
            if not (job.exchange.halted and self.answer.has_output and job.exchange.take_cancellation()):
                raise
            if session.state is not events.State.DONE:
                await self._handle(events.CutOff(""))
        finally:
            # Record before the body ends: clients hang up at the end mark, while the backend may take its time after it.
            self._end()

    def _usage_details(self) -> dict[str, Any] | None:
        self._calls.record()
        self._job.outcome.usage = self.answer.usage()
        return self._job.usage_details()

    def _remarks(self) -> list[Piece]:
        """Return the pieces to show beside an answer at its end."""
        job, beside = self._job, self._client.beside
        if not beside:
            return []
        self._observe()  # which may show that the prompt was cut
        details = self._usage_details()
        # Headers may have been sent before it was known what was done, so a comment repeats it.
        summary = [Piece(comment=f"spillway {dumps(details).decode()}")] if details and job.outcome.handled else []
        return [form(notice) for notice in final_notices(job) for form in beside] + summary

    def _end(self) -> None:
        """Record the outcome of the answer."""
        answer, session, outcome = self.answer, self._session, self._job.outcome
        self._calls.record(over=True)
        outcome.usage, self._job.exchange.delivered = answer.usage(), session.state in events.DELIVERED
        if session.failed or answer.attempt.errored:
            outcome.fail(0, STREAM_FAILED)
        else:
            self._job.joined_answer = answer.joined
            if session.watch.ended_short(answer) and not outcome.counts["out_of_room"]:
                self._record_ended_early()
        self._observe()
        self._counting.learn_pace(self._job, answer.attempt.timings)

    def _observe(self) -> None:
        """Learn from the usage that the backend reported for ended attempts, once for each."""
        if name := self.answer.model:
            self._job.route.known.answered_as(name)
        estimates, self._estimates = self._estimates, []
        for attempt, estimate in zip(self.answer.attempts[-len(estimates) :], estimates, strict=False):
            if attempt.usage is not None:
                self._counting.observe(self._job, estimate, attempt.usage, finish=attempt.finish)

    # -- reading

    async def _receive(self, received: httpx.Response | Sequence[Piece]) -> Interrupted:
        """Take in one attempt, a stream or the pieces of a body, until it ends or should be left."""
        outcome, first = self._job.outcome, True
        try:
            if not isinstance(received, httpx.Response):
                return await self._handle(events.AnswerReceived(received))
            assert isinstance(received.stream, httpx.AsyncByteStream)
            async for data in received.stream:
                if first:
                    first = False
                    outcome.add("first_byte")
                stop = await self._handle(events.ChunkReceived(data))
                if stop is not None or self._session.state is events.State.DONE:
                    return stop
            return await self._handle(events.UpstreamEnded())
        except (httpx.TransportError, FrameTooLong) as error:
            outcome.add("backend_failed", error=type(error).__name__)
            speaks = isinstance(error, FrameTooLong | InvalidResponse)
            reason = str(error) if speaks else type(error).__name__
            return await self._handle(events.CutOff(f"The backend broke off the answer ({reason})."))
        finally:
            if isinstance(received, httpx.Response):
                await received.aclose()
            self._calls.attempt_over()

    async def _handle(self, event: events.StreamEvent) -> Interrupted:
        """Feed the session, and send its output."""
        data, stop = self._session.handle(event)
        if data and self._client.streams:
            await self._client.write(data)
        return None if isinstance(stop, events.Finish) else stop

    # -- the next attempt

    @cached_property
    def _resumer(self) -> Resumer:
        return Resumer(self._job, self.answer, self._attempts)

    async def _next(
        self, stop: events.Interruption
    ) -> tuple[events.StreamEvent, httpx.Response | Sequence[Piece] | None]:
        """Open the next attempt, and return it with its event, or the event that says there is none.

        Raises:
            ContextOverflow: the prompt is too long, which the backend said inside the stream.
            UpstreamUnavailable: the backend does not continue the answer, of which the client has nothing yet.
        """
        new_paragraph = not isinstance(stop, events.Pause | events.Retry)
        attempted = await (self._open_next(stop) if new_paragraph else self._with_notices(stop))
        if isinstance(stop, events.Correct):
            for form in stop.forms:
                self._ledger.count(self._job, form, "lost" if attempted is None else "retried")
        if isinstance(attempted, UpstreamUnavailable):
            if not self._client.streams:
                self.answer.attempt.errored = True
                raise attempted
            return events.CutOff(attempted.message), None
        if attempted is None and isinstance(stop, events.Retry) and stop.overflow and stop.refusal and self._job.budget:
            self.answer.attempt.errored = True
            raise await too_long(self._job, self._counting.meter, counted=stop.overflow.prompt_tokens or 0)
        if attempted is None:
            return events.ResumeFailed(), None
        self._estimates.append(attempted.estimate)
        event = events.Reopened(
            attempted.estimate.tokens,
            bound=attempted.bound,
            echo=attempted.request.echo,
            quote=attempted.request.quote,
            exact=attempted.request.exact,
            corrects=new_paragraph,
            watch=_with_budget(self._session.watch, self._job, self.answer.delivered_tokens),
        )
        return event, attempted.response

    async def _with_notices(self, stop: events.Interruption) -> Attempted | UpstreamUnavailable | None:
        """Open the next attempt as `_open_next`, between two notices: that this may take long, and what came of it."""
        job, client, answer = self._job, self._client, self.answer
        done, sent = job.outcome.shortened, job.outcome.sent
        last = isinstance(stop, events.Pause) and stop.last
        shown, anew = not (last or answer.attempt.cleared), answer.attempt.restarted
        if anew:
            self._resumer.record_restart()
        if shown and takes_long(job, answer):
            await client.notify(status.COMPACTING)
        compactions, left_out, saved = done.compactions, sent.left_out, done.saved
        async with client.progress(lambda: status.summarising(job.progress.written)):
            attempted = None if last else await self._open_next(stop)
        if shown and done.compactions > compactions:
            await client.notify(status.COMPACTING)  # ignored where it was shown before
        notice, gain = status.ANEW if anew else status.IN_VAIN, done.saved - saved
        if isinstance(attempted, UpstreamUnavailable):
            notice = status.NOT_CONTINUED
        elif attempted is None:
            loops = isinstance(stop, events.Pause) and stop.reason == "the answer repeats itself"
            longest = self._record_ended_early(loops=loops)
            ended = status.NO_ROOM if answer.has_output else status.IN_VAIN
            notice = status.LOOPED if loops else status.LONGEST if longest else ended
        elif gain > 0:
            after, omitted = attempted.estimate.tokens, sent.left_out not in (0, left_out)
            notice = status.compacted(after + gain, after, omitted=omitted)
        await client.notify(await self._with_account(notice) if notice.last else notice)
        return attempted

    async def _with_account(self, notice: status.Notice) -> status.Notice:
        """Add the closing note to the notice that ends an answer, in the length that the user has set."""
        job, answer, wanted = self._job, self.answer, self._job.settings.status
        lines: list[str] = []
        if "minimal" not in wanted:
            lines = await offload_if(
                True,
                account,
                job.prompt.sent,
                answer.text,
                tokens=answer.delivered_tokens,
                window=job.window or 0,
                steps=notice.details,
                detailed="detailed" in wanted,
            )
        return replace(notice, details=tuple(lines))

    async def _open_next(self, stop: events.Interruption) -> Attempted | UpstreamUnavailable | None:
        """Open the next attempt, or return None if there can be none, or the error if the backend did not continue the answer.

        If it failed when it was only asked for more, that is no error: the client still gets the answer so far.
        """
        if isinstance(stop, events.Pause):
            self._job.outcome.add("paused", reason=stop.reason, tokens=self.answer.attempt.used)
            # A paused attempt says nothing about the window.
            if self._session.watch.unknown and self.answer.attempt.finish:
                self._observe()
                await learn_room(self._job, self.answer.attempt)
        try:
            return await self._resumer.open_next(stop)
        except UpstreamUnavailable as error:
            return error if isinstance(stop, events.Pause | events.Retry) else None

    def _record_ended_early(self, *, loops: bool = False) -> bool:
        """Record that the answer ends early, and return whether it has reached the most that Spillway allows."""
        longest = self._session.watch.at_ceiling(self.answer)
        self._job.outcome.add("out_of_room", reason="loop" if loops else "answer_windows" if longest else "window")
        return longest


def _watch_of(job: Job, *, hidden: bool) -> Watch:
    """Build the watch of a job's answer; see the fields of `Watch`."""
    request = job.prompt.request
    newest = newest_user(request.messages)
    watch = Watch(
        max_tokens=request.max_tokens,
        strip_usage=request.wants_usage is None and may_ask_usage(request, reported=job.known_backend.reports_usage),
        show_usage=request.wants_usage is True,
        cancels=job.cancels,
        hidden=hidden,
        tools=job.offers_tools,
        complete_calls=job.prompt.offer is not None,
        unknown=job.resumable,
        builtin={name: tool.passed for name, tool in job.prompt.builtin.items()},
        request=None
        if request.structured or request.choices > 1 or newest is None
        else text_of(request.messages[newest]),
        thinking_bound=job.prompt.thinking_bound,
        conclusions=_CONCLUSIONS if request.choices == 1 else 0,
    )
    return _with_budget(watch, job)


def _with_budget(watch: Watch, job: Job, delivered: int = 0) -> Watch:
    """Return a watch with the budget known now, for an answer of which `delivered` tokens came.

    If the window was unknown before, the answer can be paused from now on.
    """
    budget = job.budget
    if budget is None:
        return watch
    return replace(
        watch,
        window=budget.window,
        pause_point=budget.pause_point,
        # After a short prompt, the answer up to the pause point is always long enough.
        growth=growth_needed(job, delivered) if 2 * job.estimate.upper > budget.window else 0,
        ceiling=status.MOST_WINDOWS * budget.window,
        resumable=watch.resumable or watch.unknown,
        unknown=job.profile.window is None,
    )

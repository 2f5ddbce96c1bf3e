"""Opening the next attempt of a paused answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.addon import make_way
from proxy.attempts.attempt import Attempted, Attempts
from proxy.attempts.room import is_worth_a_summary
from proxy.backends.profile import Continuation
from proxy.backends.refusals import Remedy
from proxy.compaction.continuation import ContinuationRequest, Partial, SummarisedStart, continuation, shorten_partial
from proxy.compactor import Compactor
from proxy.core.errors import ContextOverflow, UpstreamRefused
from proxy.core.request import Message
from proxy.job import Job
from proxy.stream.answer import Answer
from proxy.stream.events import Correct
from proxy.summariser import drive
from proxy.tokens.counting import Counting

_log = logging.getLogger("spillway.resume")

ANSWER_SHARE = 0.15
"""Fraction of the window that what was said so far may take in the next prompt."""


@dataclass(slots=True)
class ResumeState:
    """State of one answer between its resumes."""

    said: SummarisedStart = field(default_factory=SummarisedStart)
    thought: SummarisedStart = field(default_factory=SummarisedStart)
    hidden: bool = False
    """Nobody has seen the answer yet, so its last word can be taken back."""
    gap: str = ""
    """White space before the word that was taken back."""
    how: Continuation | None = None
    """The way in which the running attempt was asked for."""


class Resumer:
    """Compacts and asks the backend to go on. What it refuses, or begins anew, is remembered for its model."""

    def __init__(self, *, compactor: Compactor, attempts: Attempts, counting: Counting) -> None:
        self._compactor = compactor
        self._attempts = attempts
        self._counting = counting

    async def resume(self, job: Job, answer: Answer, state: ResumeState) -> Attempted | None:
        """Open the next attempt; None when there is no way to go on.

        Raises:
            UpstreamUnavailable: the backend can't be reached, is not ready, or refused every way to continue.
        """
        if answer.attempt.spoke:
            job.state.spent.answered()
            await self._counting.count_completion(job, answer)
        if answer.attempt.restarted and state.how is not None:
            await self._refuse(job, state.how, "began its answer anew")
            if state.how is Continuation.QUOTE:
                return None
        for how in job.ways:
            if job.budget is None:  # nothing is known of the model, or not any more, because another one answers
                return None
            opened = await self._go_on(job, answer, state, how)
            if isinstance(opened, Attempted):
                job.outcome.add("resumed", how=how.value)
                state.how = how
                return opened
            if opened is Remedy.GIVE_UP:
                return None
            await self._refuse(job, how, "refused to go on")
        raise UpstreamRefused(f"Backend {job.route.upstream.name} refused every way to continue the answer.")

    def takes_long(self, job: Job, answer: Answer) -> bool:
        """Return whether much has to be shortened before the answer goes on: what was said of it, or the history."""
        budget, said = job.budget, answer.delivered_tokens
        if budget is None:
            return True
        over = said > budget.zone * ANSWER_SHARE or job.prompt.estimate.tokens + said > budget.limit
        return over or is_worth_a_summary(job, budget)

    async def _go_on(self, job: Job, answer: Answer, state: ResumeState, how: Continuation) -> Attempted | Remedy:
        """Ask in one way; the remedy tells whether there may be another."""
        budget = job.budget
        assert budget is not None
        if state.hidden and not answer.attempt.calling:
            state.gap = answer.cut_back()
        partial = await self._shortened(job, answer, state, budget.zone * ANSWER_SHARE)

        def asked() -> ContinuationRequest:
            return continuation(job.prompt.messages, partial, how, thoughts=_thinks_on(job))

        if not answer.attempt.cleared and not await self._make_room(job, answer, asked):
            return Remedy.GIVE_UP
        while await self._record_cut(job):
            request = asked()
            opened = await self._attempts.go_on(job, request, answer.delivered_tokens, how=how)
            if isinstance(opened, Attempted):
                return opened
            done = await self._attempts.mend(job, opened)
            if done not in (Remedy.WAIT, Remedy.SHORTEN):
                return done
        return Remedy.GIVE_UP

    async def _record_cut(self, job: Job) -> bool:
        """Tell what had to be left out of the newest message; False: there is hardly anything left that is to be answered."""
        try:
            await self._attempts.record_message_cut(job)
        except ContextOverflow:
            return False
        return True

    async def _make_room(self, job: Job, answer: Answer, asked: Callable[[], ContinuationRequest]) -> bool:
        """Shorten the history, at any price, so that a request to go on has room behind it with what is said already.

        False: it has none, by a count and not by an estimate.
        """
        budget = job.budget
        assert budget is not None
        await self._counting.confirm_count(job)
        added = await self._added(job, answer, asked())
        goal = max(1, int(budget.goal - added))
        if job.prompt.estimate.tokens <= goal:
            return True
        if not await self._compactor.compact(job, goal=goal):
            await make_way(job, refused=True)
        if job.prompt.estimate.tokens + added > budget.limit:
            await self._compactor.compact(job, goal=goal, limit=max(1, int(budget.limit - added)))
        counted = job.prompt.estimate.source == "backend"
        return not counted or job.prompt.estimate.tokens + min(added, answer.attempt.gained) < budget.window

    async def _added(self, job: Job, answer: Answer, request: ContinuationRequest) -> float:
        """Tokens that a request to go on has beyond the prompt, by the upper bound; by more if more came than was estimated."""
        cost, prompt = self._cost(job), job.prompt
        whole = await self._counting.meter.measure(
            job.key, {**job.body(), "messages": request.messages}, tenant=job.exchange.tenant
        )
        said = sum(cost([{"role": "assistant", "content": answer.unplaced + answer.reasoning}]))
        added = sum(cost(request.messages)) - sum(cost(prompt.messages))
        more = max(1.0, answer.delivered_tokens / max(1.0, said))
        return max(added * more, whole.upper - prompt.estimate.upper)

    async def correct(self, job: Job, answer: Answer, correction: Correct) -> Attempted | None:
        """Ask once more for a tool call that could not be made; None if the backend does not take that.

        Raises:
            UpstreamUnavailable: the backend can't be reached.
        """
        written: Message = {"role": "assistant", "content": answer.unplaced + correction.written}
        complaint: Message = {"role": "user", "content": correction.complaint}
        request = ContinuationRequest([*job.prompt.messages, written, complaint], {}, exact=True)
        opened = await self._attempts.go_on(job, request, answer.delivered_tokens, how=None)
        return opened if isinstance(opened, Attempted) else None

    async def _refuse(self, job: Job, how: Continuation, why: str) -> None:
        """Remember that this way does not work here. Quoting is never ruled out: it is all that remains."""
        _log.info("%s/%s %s: %s", *job.key, why, how.value)
        if how is not Continuation.QUOTE:
            job.route.upstream.prober.refuse_continuation(job.route.model, how, why)
            job.profile = await job.route.profile(job.asked.body)

    def _cost(self, job: Job) -> Callable[[Any], list[float]]:
        return lambda messages: self._counting.meter.costs(job.key, messages)

    async def _shortened(self, job: Job, answer: Answer, state: ResumeState, room: float) -> Partial:
        """Return what was said so far, or thought if nothing was said, in `room` tokens."""
        budget = job.budget
        assert budget is not None
        text = answer.unplaced
        thought = answer.reasoning if not text and answer.thinking else ""
        by = await self._compactor.summariser(job, budget, 0.0)
        so_far = state.thought if thought else state.said
        flow = shorten_partial(text or thought, so_far, room=room, by=by, cost=self._cost(job))
        short = await drive(flow, self._compactor.summaries(job))
        return Partial(thought=short) if thought else Partial(text=short)


def _thinks_on(job: Job) -> bool:
    backend = job.known_backend
    return backend is not None and backend.continues_reasoning

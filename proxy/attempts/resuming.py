"""The next attempt of an answer: after a pause, for a call that could not be made, or behind a search of the conversation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.addon import AddOn, make_way
from proxy.attempts.attempt import Attempted, Attempts
from proxy.attempts.calls import make_id
from proxy.attempts.room import is_worth_a_summary
from proxy.backends.profile import Continuation
from proxy.backends.refusals import Refusal, Remedy
from proxy.compaction.continuation import ContinuationRequest, Partial, SummarisedStart, continuation, shorten_partial
from proxy.compaction.policy import prune_limits
from proxy.compactor import Compactor
from proxy.core.errors import ContextOverflow, UpstreamRefused
from proxy.core.piece import CallPart
from proxy.core.request import Message
from proxy.emulation import calls_as_text
from proxy.job import Job
from proxy.outcome import overriding
from proxy.recall.block import (
    NO_MORE,
    NO_QUERY,
    NO_ROOM,
    NOTHING_FOUND,
    NOTHING_LOST,
    found_text,
    query_in,
    search_messages,
)
from proxy.stream.answer import Answer
from proxy.stream.events import Correct, Search
from proxy.tokens.counting import Counting

_log = logging.getLogger("spillway.resume")

ANSWER_SHARE = 0.15
"""Fraction of the window that the answer so far may take in the next prompt."""
MOST_SEARCHES = 4
"""Messages with searches in one answer; the last of them only learns that it was the last."""
SEARCHES_AT_ONCE = 4
"""Searches in one message that are answered."""
_LEAST_ROOM = 64
"""Tokens; in fewer nothing is looked for."""
_ROOMY = 0.5
"""Share of the room for a block from which on searches do with what is left beside one."""


@dataclass(slots=True)
class ResumeState:
    """State of one answer between its resumes."""

    text: SummarisedStart = field(default_factory=SummarisedStart)
    thought: SummarisedStart = field(default_factory=SummarisedStart)
    how: Continuation | None = None
    """The way in which the running attempt was asked for."""


class Resumer:
    """Makes room and asks the backend to go on. What it refuses, or begins anew, is remembered for its model."""

    def __init__(self, *, compactor: Compactor, attempts: Attempts, counting: Counting) -> None:
        self._compactor = compactor
        self._attempts = attempts
        self._counting = counting
        self._meter = counting.meter

    async def resume(self, job: Job, answer: Answer, state: ResumeState) -> Attempted | None:
        """Open the next attempt after a pause; None when there is no way to go on.

        Raises:
            UpstreamUnavailable: the backend can't be reached, is not ready, or refused every way to continue.
        """
        if answer.attempt.spoke:
            job.state.spent.answered()
            await self._counting.count_completion(job, answer)
        if answer.attempt.restarted and state.how is not None:
            await self._rule_out(job, state.how, "began its answer anew")
            if state.how is Continuation.QUOTE:
                return None
        for how in job.ways:
            if job.budget is None:  # nothing is known of the model, or not any more, because another one answers
                return None
            opened = await self._resume_by(job, answer, state, how)
            if isinstance(opened, Attempted):
                job.outcome.add("resumed", how=how.value)
                state.how = how
                return opened
            if opened is Remedy.GIVE_UP:
                return None
            await self._rule_out(job, how, "refused to go on")
        raise UpstreamRefused(f"Backend {job.route.upstream.name} refused every way to continue the answer.")

    def takes_long(self, job: Job, answer: Answer) -> bool:
        """Return whether much has to be shortened before the answer goes on: the answer itself, or the history."""
        budget, tokens = job.budget, answer.delivered_tokens
        if budget is None:
            return True
        over = tokens > budget.zone * ANSWER_SHARE or job.prompt.estimate.tokens + tokens > budget.limit
        return over or is_worth_a_summary(job, budget)

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

    async def _resume_by(self, job: Job, answer: Answer, state: ResumeState, how: Continuation) -> Attempted | Remedy:
        """Ask in one way; the remedy says whether there may be another."""
        partial = await self._shortened(job, answer, state)
        backend = job.known_backend
        thoughts = backend is not None and backend.continues_reasoning

        def request() -> ContinuationRequest:
            return continuation(job.prompt.messages, partial, how, thoughts=thoughts)

        if not answer.attempt.cleared and not await self._make_room(job, answer, request):
            return Remedy.GIVE_UP
        return await self._open(job, answer, request, how)

    async def _open(
        self,
        job: Job,
        answer: Answer,
        request: Callable[[], ContinuationRequest],
        how: Continuation | None,
        why: str = "",
    ) -> Attempted | Remedy:
        """Ask until it is taken, or refused for good."""
        while True:
            try:
                await self._attempts.record_message_cut(job)
            except ContextOverflow:  # there is hardly anything left of the message that is to be answered
                return Remedy.GIVE_UP
            opened = await self._attempts.go_on(job, request(), answer.delivered_tokens, how=how, why=why)
            if not isinstance(opened, Refusal):
                return opened
            done = await self._attempts.mend(job, opened)
            if done not in (Remedy.WAIT, Remedy.SHORTEN):
                return done

    async def _make_room(self, job: Job, answer: Answer, request: Callable[[], ContinuationRequest]) -> bool:
        """Shorten the history, at any price, so that a request to go on has room behind it and the answer so far.

        False: it has none, by a count and not by an estimate.
        """
        budget = job.budget
        assert budget is not None
        await self._counting.confirm_count(job)
        added = await self._added(job, answer, request())
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
        prompt = job.prompt
        body = {**job.prompt.body(), "messages": request.messages}
        estimate = await self._meter.measure(job.key, body, tenant=job.exchange.tenant)
        estimated = self._cost(job, [{"role": "assistant", "content": answer.unplaced + answer.reasoning}])
        added = self._cost(job, request.messages) - self._cost(job, prompt.messages)
        more = max(1.0, answer.delivered_tokens / max(1.0, estimated))
        return max(added * more, estimate.upper - prompt.estimate.upper)

    def _cost(self, job: Job, messages: Sequence[Message]) -> float:
        return sum(self._meter.costs(job.key, messages))

    async def _rule_out(self, job: Job, how: Continuation, why: str) -> None:
        """Remember that this way does not work here. Quoting is never ruled out: it is all that remains."""
        _log.info("%s/%s %s: %s", *job.key, why, how.value)
        if how is not Continuation.QUOTE:
            job.route.known.learn("refused_continuations", frozenset({how}), why)
            await job.read_profile()

    async def _shortened(self, job: Job, answer: Answer, state: ResumeState) -> Partial:
        """Return the text so far, or the thought if there is no text, within its share of the window."""
        budget = job.budget
        assert budget is not None
        text = answer.unplaced
        thought = answer.reasoning if not text and answer.thinking else ""
        flow = shorten_partial(
            text or thought,
            state.thought if thought else state.text,
            room=budget.zone * ANSWER_SHARE,
            by=await self._compactor.summaries.summariser(job),
            cost=lambda messages: self._meter.costs(job.key, messages),
        )
        short = await self._compactor.summaries.drive(job, flow)
        return Partial(thought=short) if thought else Partial(text=short)

    # -- searches of the model

    async def search(self, job: Job, answer: Answer, search: Search) -> Attempted | None:
        """Put what was found behind the prompt, and open the attempt that goes on with it; None: there can be none.

        Raises:
            UpstreamUnavailable: the backend can't be reached.
        """
        rounds = sum(attempt.searching for attempt in answer.attempts)
        if rounds > MOST_SEARCHES or not search.calls:
            return None
        calls = search.calls
        results = [NO_MORE] * len(calls) if rounds == MOST_SEARCHES else await self._results(job, calls)
        messages = search_messages(answer.unplaced, calls, results, [call.id or make_id() for call in calls])
        job.prompt.searched += messages if job.prompt.offer is None else calls_as_text(messages)
        job.prompt.untouched = False
        await self._counting.recount(job)
        answer.placed = len(answer.text)

        def request() -> ContinuationRequest:
            return ContinuationRequest(job.prompt.messages, {}, exact=True)

        opened = await self._open(job, answer, request, None, "search")
        return opened if isinstance(opened, Attempted) else None

    async def _results(self, job: Job, calls: Sequence[CallPart]) -> list[str]:
        """Return what the searches of one message come to, in the room for one block."""
        room = self._search_room(job)
        if room < _ROOMY * _most(job) and await make_way(job, refused=True):
            # What the model asks for goes before what its turn was thought to need.
            room = self._search_room(job)
        results: list[str] = []
        for number, call in enumerate(calls):
            found = NO_MORE if number >= SEARCHES_AT_ONCE else await self._result(job, call, room, results)
            room -= self._meter.count_text(job.key, found)
            results.append(found)
        return results

    def _search_room(self, job: Job) -> float:
        """Tokens that what is found now may take."""
        spent = self._cost(job, job.prompt.searched)
        return min(_most(job) - spent, job.room)

    async def _result(self, job: Job, call: CallPart, room: float, before: Sequence[str]) -> str:
        """Return what one search comes to, less what those before it have found."""
        if not (text := query_in(call)):
            return NO_QUERY
        if job.prompt.checkpoint is None:
            return NOTHING_LOST
        if room < _LEAST_ROOM:
            return NO_ROOM
        addons = overriding(job.addons, AddOn.search)
        passages = [each for addon in addons for each in await addon.search(job, text, room)]
        passages = [each for each in passages if not any(each.text in found for found in before)]
        job.outcome.add("searched", passages=len(passages))
        return found_text(job.prompt.sent, passages) if passages else NOTHING_FOUND


def _most(job: Job) -> float:
    """Tokens that all searches of an answer may bring: as many as a block."""
    return 0.0 if job.budget is None else prune_limits(job.settings, job.budget.zone).recall

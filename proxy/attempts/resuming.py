"""The next attempt of an answer: after a pause, for a call that could not be read, or after a call that Spillway answers."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import httpx

from proxy.attempts.attempt import Attempted, Attempts
from proxy.attempts.calls import MOST_SEARCHES, answer_calls
from proxy.attempts.too_long import record_message_cut
from proxy.backends.fields import mapping
from proxy.backends.overflow import POOL_FULL
from proxy.backends.profile import Continuation
from proxy.backends.refusals import Refusal, Remedy
from proxy.compaction.budget import ANSWER_SHARE
from proxy.compaction.continuation import (
    CONCLUDE,
    ContinuationRequest,
    Partial,
    SummarisedStart,
    closed,
    continuation,
    from_notes,
    shorten_partial,
)
from proxy.compactor import growth_needed, is_worth_a_summary
from proxy.core.errors import ContextOverflow, UpstreamRefused
from proxy.core.piece import Piece
from proxy.core.request import NONE, Message, Thinking
from proxy.dialects.chat.answers import pieces_of
from proxy.job import Job
from proxy.outcome import ANSWER_RUNGS
from proxy.stream.answer import Answer
from proxy.stream.events import Conclude, Correct, Interruption, Pause, Retry, Search
from proxy.stream.watch import GAIN_SHARE, Watch

_log = logging.getLogger("spillway.resume")


class Resumer:
    """Opens the further attempts of one answer, and remembers for the model which ways to continue do not work."""

    def __init__(self, job: Job, answer: Answer, attempts: Attempts) -> None:
        self._job = job
        self._answer = answer
        self._attempts = attempts
        self._compactor = attempts.compactor
        self._counting = attempts.counting
        self._text, self._thought = SummarisedStart(), SummarisedStart()
        self._way: Continuation | None = None
        """Way to continue that the running attempt uses, or None if it does not continue a text."""

    async def open_next(self, stop: Interruption) -> Attempted | None:
        """Open the next attempt, or return None if there can be none.

        Raises:
            UpstreamUnavailable: the backend can't be reached, is not ready, or refused every way to continue.
        """
        if isinstance(stop, Pause):
            return await self._resume(stop.reason)
        if isinstance(stop, Retry):
            return await self._retry(stop)
        if isinstance(stop, Conclude):
            return await self._conclude(stop)
        return await (self._correct(stop) if isinstance(stop, Correct) else self._search(stop))

    def record_restart(self) -> None:
        """Record that the model began its answer anew, and how that showed."""
        reason = "it said the same again" if self._answer.attempt.copied else "it wrote another version"
        self._job.outcome.add("restarted", how="" if self._way is None else self._way.value, reason=reason)

    async def _resume(self, reason: str) -> Attempted | None:
        """Open the next attempt after a pause, in the first way that the backend accepts."""
        job, answer = self._job, self._answer
        prompt_tokens, upto, seconds = job.estimate.tokens, self._summarised, 0.0
        if not await self._prepare():
            return None
        before = answer.attempt.prompt_tokens + answer.attempt.gained - prompt_tokens
        for way in job.ways:
            if job.budget is None:  # the window is unknown, maybe because another model answers by now
                return None
            partial = self._whole()
            if not await self._leave_out(partial, way):
                since = job.outcome.clock()
                partial = await self._shortened()
                seconds += job.outcome.clock() - since
                if not answer.attempt.cleared and not await self._make_room(partial, way):
                    return None
            opened = await self._open(partial, way, way.value)
            if isinstance(opened, Attempted):
                if self._summarised != upto:
                    self._record_shortened(before, opened.estimate.tokens - job.estimate.tokens, seconds)
                gained = answer.attempt.used - opened.estimate.tokens
                job.outcome.add("resumed", how=way.value, reason=reason, gained=gained)
                self._way = way
                return opened
            if opened is Remedy.GIVE_UP:
                return None
            _log.info("%s/%s refused to continue by %s", job.outcome.backend, job.route.model, way.value)
            await self._rule_out(way, "refused to go on")
        raise UpstreamRefused(f"Backend {job.route.upstream.name} refused every way to continue the answer.")

    async def _prepare(self) -> bool:
        """Learn from the attempt that ended; returns False if the answer should not be resumed."""
        job, attempt = self._job, self._answer.attempt
        if attempt.cleared:
            refusal = Refusal(overflow=POOL_FULL, roomy=True)
            if await self._attempts.mend(job, refusal) is Remedy.GIVE_UP:
                return False
        if attempt.spoke:
            job.spent.answered()
            await self._counting.count_completion(job.route, self._answer)
        if not attempt.restarted or self._way is None:
            return True
        await self._rule_out(self._way, "began its answer anew")
        return self._way is not Continuation.QUOTE

    async def _retry(self, stop: Retry) -> Attempted | None:
        """Send a prompt that was refused inside the stream again, after a remedy."""
        job, attempts, refusal = self._job, self._attempts, Refusal(overflow=stop.overflow)
        if stop.refusal:
            refusal = await attempts.refusal(job, 200, stop.refusal)
        elif not await self._may_not_fit():  # nothing was refused: the answer was empty
            return None
        if await attempts.mend(job, refusal) is Remedy.GIVE_UP:
            return None
        response, body = await attempts.open(job)
        received: httpx.Response | Sequence[Piece] = response if body is None else pieces_of(body)
        if not received:
            return None
        request = ContinuationRequest([], {}, exact=True)
        return Attempted(received, job.estimate, request, job.prompt.answer_bound)

    async def _may_not_fit(self) -> bool:
        """Return whether a prompt with an empty answer may exceed the present window: servers may have reloaded the model."""
        job = self._job
        await job.route.known.loaded_window()
        await job.read_profile()
        return Watch(window=job.window or 0).may_not_fit(self._answer)

    async def _correct(self, correction: Correct) -> Attempted | None:
        """Ask once more for a tool call that could not be read."""
        job, answer = self._job, self._answer
        if job.prompt.request.choices > 1 or not job.spent.corrects():
            return None  # a single one of several choices cannot be repeated
        written: Message = {"role": "assistant", "content": answer.unplaced + correction.written}
        complaint: Message = {"role": "user", "content": correction.complaint}
        request = ContinuationRequest([*job.prompt.messages, written, complaint], {}, exact=True)
        opened = await self._attempts.go_on(job, request, answer.delivered_tokens, None, "correction")
        return opened if isinstance(opened, Attempted) else None

    async def _conclude(self, conclude: Conclude) -> Attempted | None:
        """Have the model answer from its thinking so far, or without any if that led nowhere; if refused, try the other way."""
        job, answer = self._job, self._answer
        job.outcome.add("concluded", why="empty" if conclude.ended else "bound", tokens=answer.completion_tokens)
        # If thinking has used up the client's bound, the answer still gets all of it.
        tokens = 0 if conclude.ended else answer.delivered_tokens
        for request in self._conclusions(anew=conclude.ended):
            opened = await self._attempts.go_on(job, request, tokens, None, "thinking")
            if isinstance(opened, Attempted):
                answer.place()
                return opened
        return None

    def _conclusions(self, *, anew: bool) -> list[ContinuationRequest]:
        """List requests for an answer without more thinking, best first; with `anew`, first those that drop the thinking so far."""
        job, backend, answer = self._job, self._job.known_backend, self._answer
        history, tagged = job.prompt.messages, bool(answer.unplaced.strip())
        thought = answer.unplaced if tagged else answer.reasoning
        off = backend.thinking_options(Thinking(on=False, openai=NONE), job.profile)
        if template := mapping(off.get("chat_template_kwargs")):
            off["chat_template_kwargs"] = mapping(job.prompt.request.body.get("chat_template_kwargs")) | template
        if history[-1:] and history[-1].get("role") == "assistant":
            return []  # the client began the answer itself
        without = [ContinuationRequest(history, off, exact=True)] if off else []
        exact = job.ways[0] is Continuation.FLAGS and (tagged or backend.continues_reasoning)
        behind = [from_notes(history, thought, CONCLUDE, fields) for fields in ([off, {}] if off else [{}])]
        behind = [*([closed(history, thought, tagged=tagged)] if exact else []), *behind]
        return [*without, *behind] if anew else [*behind, *without]

    async def _search(self, search: Search) -> Attempted | None:
        """Answer calls of built-in tools, append the results to the prompt, and go on from there."""
        job, answer = self._job, self._answer
        # The text so far becomes part of the prompt; the next attempt does not continue it.
        self._text, self._thought, self._way = SummarisedStart(), SummarisedStart(), None
        rounds = sum(attempt.searching for attempt in answer.attempts)
        if rounds > MOST_SEARCHES or not search.calls:
            return None
        last = rounds == MOST_SEARCHES
        meter = self._counting.meter
        # Without a count, the estimate's margin alone may leave no room for a result.
        await self._counting.confirm_count(job)
        found = await answer_calls(job, answer, search.calls, meter, self._attempts.addons, last=last)
        job.prompt = replace(job.prompt, searched=[*job.prompt.searched, *found])
        await self._counting.recount(job)
        answer.place()
        opened = await self._open(Partial(), None, "search")
        return opened if isinstance(opened, Attempted) else None

    def _request(self, partial: Partial, way: Continuation | None) -> ContinuationRequest:
        """Build the request to go on with a partial answer in this way, from the prompt as it is now."""
        return continuation(
            self._job.prompt.messages, partial, way, thoughts=self._job.known_backend.continues_reasoning
        )

    async def _open(self, partial: Partial, way: Continuation | None, why: str) -> Attempted | Remedy:
        """Ask until the request is accepted or refused for good; in the latter case the remedy says if another way may work."""
        job, attempts, tokens = self._job, self._attempts, self._answer.delivered_tokens
        while True:
            try:
                await record_message_cut(job, self._counting.meter)
            except ContextOverflow:  # hardly anything would be left of the message to answer
                return Remedy.GIVE_UP
            opened = await attempts.go_on(job, self._request(partial, way), tokens, way, why)
            if isinstance(opened, Attempted):
                return opened
            done = await attempts.mend(job, opened)
            if done not in (Remedy.WAIT, Remedy.SHORTEN, Remedy.UNSTREAM):
                return done

    async def _leave_out(self, partial: Partial, way: Continuation) -> bool:
        """Leave turns out of the prompt instead of shortening it, so that the backend need not read the answer again."""
        job, answer, budget = self._job, self._answer, self._job.budget
        if budget is None or not job.closes_gaps or answer.attempt.cleared or self._summarised:
            return False
        added = await self._added(partial, way)
        # Less room than after a compaction will do, since the next pause costs no more than this one.
        most = budget.pause_point - 2 * budget.window // GAIN_SHARE
        return await self._compactor.leave_out(job, *(max(1, int(tokens - added)) for tokens in (budget.goal, most)))

    async def _make_room(self, partial: Partial, way: Continuation) -> bool:
        """Shorten the history, at any price, to make room for a request to continue and the answer so far.

        Returns False if that gains no room.
        """
        job, budget = self._job, self._job.budget
        assert budget is not None
        await self._counting.confirm_count(job)
        added = await self._added(partial, way)
        goal = max(1, int(budget.goal - added))
        before, attempt = job.estimate.tokens, self._answer.attempt
        if before > goal and not await self._compactor.compact(job, goal=goal):
            await self._attempts.addons.make_way(job, refused=True)
        if job.estimate.tokens + added > budget.limit:
            await self._compactor.compact(job, goal=goal, limit=max(1, int(budget.limit - added)))
        spare, gained = before - job.estimate.tokens, attempt.gained
        if attempt.restarted or attempt.bound is not None or job.profile.window is None:
            return True  # as far as is known, the window did not end the attempt
        return gained >= budget.growth_needed(before, spare, self._answer.delivered_tokens - gained)

    async def _added(self, partial: Partial, way: Continuation) -> float:
        """Return the tokens that a request to continue adds to the prompt (upper bound), scaled up if the answer was underestimated."""
        job, answer, messages = self._job, self._answer, self._request(partial, way).messages
        body = {**job.prompt.body(), "messages": messages}
        estimate = await self._counting.meter.measure(job.key, body, tenant=job.exchange.tenant)
        estimated = self._cost([{"role": "assistant", "content": answer.unplaced + answer.reasoning}])
        added = self._cost(messages) - self._cost(job.prompt.messages)
        more = max(1.0, answer.delivered_tokens / max(1.0, estimated))
        return max(added * more, estimate.upper - job.estimate.upper)

    def _cost(self, messages: Sequence[Message]) -> float:
        return sum(self._counting.meter.costs(self._job.key, messages))

    async def _rule_out(self, way: Continuation, why: str) -> None:
        """Remember that this way does not work with this model. Quoting is never ruled out: it is the last resort."""
        job = self._job
        if way is not Continuation.QUOTE:
            job.route.known.learn("refused_continuations", frozenset({way}), why)
            await job.read_profile()

    async def _shortened(self) -> Partial:
        """Return the text so far, or the reasoning if there is no text, shortened to its share of the window."""
        job, budget = self._job, self._job.budget
        assert budget is not None
        summaries, whole = self._compactor.summaries, self._whole()
        wait = summaries.wait(job)
        flow = shorten_partial(
            whole.text or whole.thought,
            self._thought if whole.thought else self._text,
            room=budget.zone * ANSWER_SHARE,
            by=await summaries.summariser(job, asks=wait > 0),
            cost=lambda messages: self._counting.meter.costs(job.key, messages),
        )
        short = await summaries.drive(job, flow, wait)
        return Partial(thought=short) if whole.thought else Partial(text=short)

    def _whole(self) -> Partial:
        """Return the text so far, or the reasoning if there is no text."""
        text, thinking = self._answer.unplaced, self._answer.thinking
        return Partial(text=text) if text or not thinking else Partial(thought=self._answer.reasoning)

    @property
    def _summarised(self) -> int:
        """Characters of the answer that are replaced by a summary."""
        return self._text.upto + self._thought.upto

    def _record_shortened(self, before: int, after: int, seconds: float) -> None:
        """Record by how many tokens the answer so far was shortened in the prompt that it is resumed with."""
        after = max(0, min(before, after))
        written = (self._text if self._answer.unplaced else self._thought).written
        self._job.outcome.record_compacted(
            kind="compacted",
            messages_before=1,
            messages_after=1,
            tokens_before=before,
            tokens_after=after,
            seconds=seconds,
            summary="written" if written else "extract",
            rungs=ANSWER_RUNGS,
        )


def takes_long(job: Job, answer: Answer) -> bool:
    """Return whether the next attempt will take long, because the answer or the history has to be shortened, and can be."""
    budget, tokens, gained = job.budget, answer.delivered_tokens, answer.attempt.gained
    if budget is None:
        return True
    if gained < growth_needed(job, tokens - gained):
        return False
    over = tokens > budget.zone * ANSWER_SHARE or job.estimate.tokens + tokens > budget.limit
    return over or is_worth_a_summary(job, budget)

"""A search of the conversation that the model can call, and that is answered here, inside the same answer."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.addon import AddOn, make_way
from proxy.attempts.attempt import Attempted, Attempts
from proxy.attempts.emulating import make_id
from proxy.backends.refusals import Remedy
from proxy.compaction.continuation import ContinuationRequest
from proxy.compaction.policy import prune_limits
from proxy.core.piece import CallPart
from proxy.emulation import calls_as_text
from proxy.job import Job
from proxy.outcome import overriding
from proxy.recall.block import found_text
from proxy.recall.tool import NO_MORE, NO_QUERY, NO_ROOM, NOTHING_FOUND, NOTHING_LOST, round_of, wanted
from proxy.stream.answer import Answer
from proxy.stream.events import Search
from proxy.tokens.counting import Counting

MOST = 4
"""Messages with searches in one answer; the last of them is only told that it was the last."""
AT_ONCE = 4
"""Searches in one message that are answered."""
_LEAST_ROOM = 64
"""Tokens; in fewer nothing is looked for."""
_ROOMY = 0.5
"""Share of the room for a block from which on searches do with what is left beside one."""


class Searcher:
    """Answers the searches of models."""

    def __init__(self, *, attempts: Attempts, counting: Counting) -> None:
        self._attempts = attempts
        self._counting, self._meter = counting, counting.meter

    async def go_on(self, job: Job, answer: Answer, search: Search) -> Attempted | None:
        """Put what was found behind the prompt, and open the attempt that goes on with it; None: there can be none.

        Raises:
            UpstreamUnavailable: the backend can't be reached.
        """
        rounds = sum(attempt.searching for attempt in answer.attempts)
        if rounds > MOST or not search.calls:
            return None
        calls = search.calls
        results = [NO_MORE] * len(calls) if rounds == MOST else await self._results(job, calls)
        made = round_of(answer.unplaced, calls, results, [call.id or make_id() for call in calls])
        job.prompt.searched += made if job.prompt.offer is None else calls_as_text(made)
        job.prompt.untouched = False
        await self._counting.recount(job)
        answer.placed = len(answer.text)
        return await self._opened(job, answer)

    async def _results(self, job: Job, calls: Sequence[CallPart]) -> list[str]:
        """Return what the searches of one message come to, in the room for one block."""
        room = self._room(job)
        if room < _ROOMY * _most(job) and await make_way(job, refused=True):
            # What the model asks for goes before what its turn was thought to need.
            room = self._room(job)
        results: list[str] = []
        for number, call in enumerate(calls):
            found = NO_MORE if number >= AT_ONCE else await self._result(job, call, room, results)
            room -= self._meter.count_text(job.key, found)
            results.append(found)
        return results

    def _room(self, job: Job) -> float:
        """Tokens that what is found now may take."""
        spent = sum(self._meter.costs(job.key, job.prompt.searched))
        return min(_most(job) - spent, job.room)

    async def _result(self, job: Job, call: CallPart, room: float, before: Sequence[str]) -> str:
        """Return what one search comes to, less what those before it have found."""
        if not (text := wanted(call)):
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

    async def _opened(self, job: Job, answer: Answer) -> Attempted | None:
        while True:
            ask = ContinuationRequest(job.prompt.messages, {}, exact=True)
            opened = await self._attempts.go_on(job, ask, answer.delivered_tokens, how=None, why="search")
            if isinstance(opened, Attempted):
                return opened
            if await self._attempts.mend(job, opened) not in (Remedy.WAIT, Remedy.SHORTEN):
                return None


def _most(job: Job) -> float:
    """Tokens that all searches of an answer may bring: as many as a block."""
    return 0.0 if job.budget is None else prune_limits(job.settings, job.budget.zone).recall

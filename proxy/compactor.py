"""Compaction with the network: running the pure flow, asking a model, storing the checkpoint."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from proxy.addon import AddOn, make_way
from proxy.attempts.room import for_results, of_history, reduction_of, surely_below
from proxy.compaction.asking import Summariser, SummaryAsk, at_its_end
from proxy.compaction.budget import ContextBudget
from proxy.compaction.compaction import STRATEGIES, Compaction, compact, kind_of
from proxy.compaction.results import cleaned
from proxy.compaction.summary import instruction
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.jsontext import HEAVY, is_heavy
from proxy.core.request import Message
from proxy.core.settings import Settings
from proxy.job import Job, Prompt
from proxy.net.tasks import offload_if, spawn
from proxy.outcome import COMPACTING, Reduced, overriding
from proxy.preparing import narrowing
from proxy.recall.block import NOTHING
from proxy.routing import Route, Router
from proxy.store import Store
from proxy.summariser import Experience, NotWritten, Summaries, WriteSummary, drive
from proxy.tokens.counting import Counting

CLAIM = 120.0
"""Seconds that another replica may take over a compaction before it is done here too."""
COOL_DOWN = 60.0
"""Seconds in which a history that could not be shortened to a goal is not tried again with it."""
_COLD = 0.8
"""Share of a window that an estimate which was never confirmed may fill."""
ADOPTED = ("taken over",)
"""Stands for the rungs of a run by another replica."""
HEAVY_HISTORY = HEAVY // 4
"""Weight from which a history is not shortened on the loop."""

RunResult: TypeAlias = tuple[Compaction, Checkpoint | None]
"""Result of a run, and the checkpoint of it; None: nothing could be done."""


@dataclass(slots=True)
class _Flight:
    job: Job
    """For which it was begun."""
    task: asyncio.Task[RunResult]
    waiting: int = 0


class Compactor:
    """Shortens the history of a job and stores the rewrite as a checkpoint.

    Concurrent requests for the same history share one run; it is cancelled when nobody waits for it any more.
    """

    def __init__(self, *, counting: Counting, store: Store, router: Router, clock: Callable[[], float]) -> None:
        self._counting = counting
        self._store = store
        self._router = router
        self._clock = clock
        self._flights: dict[tuple[str, bytes, int, int, int], _Flight] = {}
        self._experience = Experience()
        self._cooling: dict[tuple[str, bytes, int], float] = {}

    async def compact(self, job: Job, *, goal: int | None = None, limit: int | None = None) -> bool:
        """Bring the job's history down to `goal` prompt tokens (default: the target); False: nothing gained.

        `limit` are the tokens that it must not exceed; by default as many as fit by the upper bound. One is
        given after a refusal, and then what could not be shortened before is tried again, and nothing is recalled. What
        is recalled otherwise is chosen again, since the prompt has another beginning.
        """
        budget = job.budget
        if budget is None or not job.prompt.history:
            return False
        goal = budget.goal if goal is None else goal
        cold = (job.scope, job.prompt.links[-1], goal)
        if limit is None and self._cooling.get(cold, -math.inf) > job.outcome.clock():
            return False
        dropped = limit is not None and await make_way(job, refused=True)
        lowest = min(budget.limit, limit or budget.limit)
        done = await self._shorten(job, budget, goal, lowest)
        unaware = done is not None and done.rungs == ADOPTED and job.is_due
        if done is not None and (unaware or job.prompt.estimate.upper > budget.limit):
            # What was counted by the backend is rewritten, so that the bound is wider than before. And another's run did
            # not know of the newest messages.
            await self._counting.confirm_count(job)
            if unaware or job.prompt.estimate.upper > budget.limit:
                await self._shorten(job, budget, goal, surely_below(budget.limit, job))
        if done is None:
            self._cool(cold, job.outcome.clock())
        elif limit is None:
            reserve = max(budget.goal - goal, for_results(job, budget))
            for addon in overriding(job.addons, AddOn.after_rewrite):
                await addon.after_rewrite(job, reserve=reserve)
        return done is not None or dropped

    async def _shorten(self, job: Job, budget: ContextBudget, goal: int, limit: int) -> Compaction | None:
        """Have the history shortened; None: nothing could be done."""
        since = job.outcome.clock()
        job.outcome.action = COMPACTING
        job.outcome.add("compacting", tokens=of_history(job.prompt))
        done, checkpoint = await self._shared(job, budget, goal, limit)
        seconds = job.outcome.clock() - since
        before, after = round(done.before), round(done.after)
        reduced = Reduced(
            kind=done.kind,
            results_cleaned=done.cleaned,
            messages_before=len(job.prompt.history),
            messages_after=len(done.messages),
            tokens_before=before,
            tokens_after=after,
            ratio=round(after / max(1, before), 4),
            seconds=round(seconds, 3),
        )
        cut = (math.ceil(done.cut[0]), math.ceil(done.cut[1]))
        job.outcome.record_compacted(reduced, summary=done.summary, rungs=done.rungs, cut=cut)
        if checkpoint is None:
            return None
        if job.window_is_known:
            job.outcome.show("checkpoint_kept", checkpoint=checkpoint)
        job.prompt.checkpoint = checkpoint
        job.prompt.history = done.messages
        prompt = job.prompt
        prompt.fields |= narrowing(job, prompt.request, prompt.offer, prompt.sent[: checkpoint.covered])
        job.prompt.untouched = False
        before, job.prompt.recalled = of_history(job.prompt), NOTHING
        await self._counting.recount(job)
        job.outcome.saved += max(0, before - job.prompt.estimate.tokens)
        return done

    async def _shared(self, job: Job, budget: ContextBudget, goal: int, limit: int) -> RunResult:
        # A run that was started ahead of time, before this client's newest message came, may be enough.
        ahead = (flight for flight in self._flights.values() if _continues(job, flight.job))
        running = None if job.managed.hands_over else next(ahead, None)
        if running is not None:
            _, checkpoint = await self._waited(running, job)
            if checkpoint is not None and _is_longer(checkpoint, job):
                return self._adopt(job, checkpoint), checkpoint
        # The same run serves who has the same to shorten: the client's history, as far as it is shortened yet.
        key = (f"{job.scope}|{_instructions(job)}", job.prompt.links[-1], len(job.prompt.history), goal, limit)
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(job, spawn(self._alone(job, budget, goal, limit), name="compaction"))
            self._flights[key] = flight
            flight.task.add_done_callback(lambda _: self._land(flight))
        return await self._waited(flight, job)

    async def _waited(self, flight: _Flight, job: Job) -> RunResult:
        """Wait for the result of a run; it is cancelled when nobody waits for it any more."""
        flight.waiting += 1
        job.state.progress = flight.job.state.progress
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                # Who comes now must not be cancelled with it.
                self._land(flight)
                flight.task.cancel()

    def _land(self, flight: _Flight) -> None:
        self._flights = {key: other for key, other in self._flights.items() if other is not flight}

    async def _alone(self, job: Job, budget: ContextBudget, goal: int, limit: int) -> RunResult:
        """Run it here, unless another replica is at it, or was since the job was prepared: then adopt its checkpoint."""
        answered = _answered(job.prompt) if job.expected is None else job.expected.link
        async with self._store.claim(f"{job.scope}|{answered.hex()}", CLAIM):
            if (stored := await self._longer(job)) is not None:
                return self._adopt(job, stored), stored
            try:
                done = await self._run(job, budget, goal, limit, self.summaries(job))
            except NotWritten:
                return _nothing(job), None
            checkpoint = self._checkpoint(job, done) if done.covered else None
            # A client's own compaction is filled to the brim, for one answer.
            if checkpoint is not None and job.window_is_known and not job.managed.hands_over:
                await self._store.put(checkpoint)
            return done, checkpoint

    async def _longer(self, job: Job) -> Checkpoint | None:
        """A stored checkpoint that covers more than the job's own; none is for a client's own compaction."""
        if job.managed.hands_over:
            return None
        found = await self._store.find(job.scope, job.prompt.links[-2::-1])
        return found if found is not None and _is_longer(found, job) else None

    async def _run(
        self, job: Job, budget: ContextBudget, goal: int, limit: int, write_summary: WriteSummary
    ) -> Compaction:
        heavy = is_heavy(job.prompt.history, HEAVY_HISTORY)
        reduction, overhead = await offload_if(heavy, reduction_of, job, budget, goal, self._counting.meter)
        by = await self.summariser(job, budget, overhead)
        summarised = job.asked.compaction is not None or job.managed.hands_over
        flow = compact(
            reduction,
            by,
            limit=max(1.0, limit - overhead),
            summarised=summarised,
            strategy=STRATEGIES[job.settings.strategy],
        )
        return await drive(flow, write_summary, heavy=heavy)

    async def summary_route(self, settings: Settings, route: Route) -> Route:
        """Find the route of the summariser: the same model unless another is configured."""
        named = settings.summary_model if STRATEGIES[settings.strategy].asks else None
        return route if named is None else await self._router.route(named)

    async def summariser(self, job: Job, budget: ContextBudget, overhead: float) -> Summariser:
        """Size the summariser: an eighth of the smaller window for a summary, within bounds.

        A request that it refuses for its size is a part of the history that nobody reads, so what it reads is no more than
        surely fits. What is not known of the estimate yet may cost a fifth of its window, no more.
        """
        route = await self.summary_route(job.settings, job.route)
        same = route.upstream is job.route.upstream and route.model == job.route.model
        window = budget.window
        if not same:
            profile = await route.upstream.prober.profile(route.model)
            window = profile.window.value if profile.window is not None else budget.window
        room = int(budget.goal - overhead) // 5
        return Summariser(
            window=window,
            tokens=max(96, min(2048, budget.window // 8, window // 8, room)),
            overhead=overhead,
            same_model=same and self._experience.is_worth_trying("append", route),
            trust=max(_COLD, surely_below(window, job) / window) if same else _COLD,
            prompt=_instructions(job),
        )

    async def write_summary(self, job: Job) -> str:
        """Have the history summarised without rewriting it; empty if the model writes nothing."""
        budget = job.budget
        tokens = 1024 if budget is None else max(96, min(2048, budget.window // 8))
        ask: Message = {"role": "user", "content": instruction(tokens=tokens, prompt=_instructions(job))}
        request = SummaryAsk(at_its_end(list(job.prompt.history), ask), append=True, max_tokens=tokens)
        return await self.summaries(job)(request)

    def summaries(self, job: Job) -> Summaries:
        """Build the writer of one summary, by the model that summarises for this job."""
        return Summaries(job, partial(self.summary_route, job.settings, job.route), self._experience)

    def _checkpoint(self, job: Job, done: Compaction) -> Checkpoint:
        """Build the checkpoint of a rewrite, in terms of the client's own messages, so that the next job finds it."""
        old = job.prompt.checkpoint
        covered, replaced = done.covered, done.replaced
        if old is not None:
            # Where it ends inside the earlier rewrite, it covers as much as that did.
            beyond = max(0, len(old.replacement) - covered)
            covered, replaced = covered + beyond, replaced + beyond
            covered += old.covered - len(old.replacement)
        return Checkpoint(
            scope=job.scope,
            digest=job.prompt.links[covered - 1],
            covered=covered,
            replacement=tuple(done.messages[:replaced]),
            tokens_before=int(done.before),
            tokens_after=int(done.after),
            kind=done.kind,
            created=self._clock(),
            window=0 if job.budget is None else job.budget.window,
        )

    def _adopt(self, job: Job, stored: Checkpoint) -> Compaction:
        """Turn a checkpoint that another replica stored into a compaction, as if it had been made here."""
        old = job.prompt.checkpoint
        shift = old.covered - len(old.replacement) if old is not None else 0
        messages = [*stored.replacement, *job.prompt.shown[stored.covered :]]
        return Compaction(
            messages=messages,
            covered=stored.covered - shift,
            replaced=len(stored.replacement),
            kind=kind_of(stored.kind),
            before=sum(self._counting.meter.costs(job.key, job.prompt.history)),
            after=sum(self._counting.meter.costs(job.key, messages)),
            rungs=ADOPTED,
            cleaned=cleaned(job.prompt.history, messages),
        )

    def _cool(self, key: tuple[str, bytes, int], now: float) -> None:
        self._cooling = {k: until for k, until in self._cooling.items() if until > now}
        self._cooling[key] = now + COOL_DOWN


def _is_longer(other: Checkpoint, job: Job) -> bool:
    """Tell whether a checkpoint covers more than the job's own; one for a smaller window was left out on purpose."""
    current, budget = job.prompt.checkpoint, job.budget
    return (current is None or other.covered > current.covered) and (budget is None or other.window >= budget.window)


def _continues(job: Job, other: Job) -> bool:
    """Return whether another job was done ahead of time for this one."""
    if other.expected is None or job.expected is not None or job.scope != other.scope:
        return False
    return other.expected.is_proper_prefix_of(job.prompt.links)


def _instructions(job: Job) -> str:
    """Client's own instructions for a summary; empty: Spillway's."""
    return "" if job.asked.compaction is None else job.asked.compaction.instructions


def _nothing(job: Job) -> Compaction:
    tokens = of_history(job.prompt)
    return Compaction(
        messages=job.prompt.history, covered=0, replaced=0, kind="pruned", before=tokens, after=tokens, rungs=()
    )


def _answered(prompt: Prompt) -> bytes:
    """The link of the history that the newest answer in it was an answer to; the last one if there is no answer.

    It is the same before the client's next message and after it, so that one replica knows what another does ahead of time.
    """
    place = len(prompt.sent)
    while place and prompt.sent[place - 1].get("role") != "assistant":
        place -= 1
    while place and prompt.sent[place - 1].get("role") == "assistant":
        place -= 1
    return prompt.links[place - 1]

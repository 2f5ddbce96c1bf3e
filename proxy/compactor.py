"""Compaction with the network: running the pure flow, asking a model, storing the checkpoint."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from proxy.addon import AddOn, AddOns
from proxy.compaction.budget import ContextBudget, Growth, growth
from proxy.compaction.compaction import STRATEGIES, Compaction, compact, leave_out
from proxy.compaction.condensing import head_end
from proxy.compaction.ladder import Reduction
from proxy.compaction.policy import prune_limits
from proxy.compaction.results import Cost, cleaned
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.history.turns import first_user, is_result, newest_user
from proxy.core.jsontext import HEAVY, is_heavy
from proxy.counting import Counting
from proxy.flights import Adopted, Flights, NothingDone, RunResult, Shortened
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.outcome import COMPACTING
from proxy.store import Store
from proxy.summariser import NotWritten, Summaries, instructions
from proxy.tokens.models import Estimate

CLAIM = 120.0
"""Seconds that another replica may take over a compaction before it is done here too."""
COOL_DOWN = 60.0
"""Seconds in which a history that could not be shortened to a goal is not tried again with it."""
HEAVY_HISTORY = HEAVY // 4
"""Weight from which a history is shortened in a thread, off the event loop."""

_ESTIMATED = 0.97
"""Share of a budget's `enough` that may be filled going by an estimate."""
UNREAD = 0.4
"""Share of the window up to which unread results stay whole."""
LATEST = 32
"""Latest messages from which the growth with the next turn is predicted."""


class _Aim(NamedTuple):
    """Targets of a run, in prompt tokens."""

    budget: ContextBudget
    goal: int
    limit: int
    """The most that may be left."""
    summarised: bool
    """Whether there has to be a summary, even where pruning would do."""


class Compactor:
    """Shortens the history of a job and stores the rewrite as a checkpoint. Concurrent requests for one history share a run."""

    def __init__(
        self, *, counting: Counting, store: Store, summaries: Summaries, addons: AddOns, clock: Callable[[], float]
    ) -> None:
        """`clock` gives seconds since the epoch."""
        self.summaries = summaries
        self.addons = addons
        self._counting = counting
        self._store = store
        self._clock = clock
        self.flights = Flights(summaries)
        self._cooling: dict[tuple[str, bytes, int], float] = {}

    async def compact(
        self, job: Job, *, goal: int | None = None, limit: int | None = None, summarised: bool = False
    ) -> bool:
        """Bring the job's history down to `goal` prompt tokens (default: the target); returns False if nothing was gained.

        `summarised`: there has to be a summary, even where pruning would do.
        `limit` is the most tokens that may be left, by default what surely fits. It is given after a refusal: then a history
        that could not be shortened recently is tried again, and nothing is recalled. Otherwise recall chooses anew, since
        the prompt has another beginning.
        """
        budget = job.budget
        if budget is None or not job.prompt.history:
            return False
        goal, now = self.goal(job, budget) if goal is None else goal, job.outcome.clock()
        cold = (job.scope, job.prompt.links[-1], goal)
        if limit is None and self._cooling.get(cold, -math.inf) > now:
            return False
        dropped = limit is not None and await self.addons.make_way(job, refused=True)
        most = min(limit or budget.limit, budget.limit, budget.window - budget.answer)
        aim = _Aim(budget, goal, most, summarised or job.request.compaction is not None)
        result = await self._shorten(job, aim)
        if isinstance(result, NothingDone):
            now = job.outcome.clock()
            self._cooling = {key: until for key, until in self._cooling.items() if until > now}
            self._cooling[cold] = now + COOL_DOWN
            return dropped

        def is_too_long() -> bool:
            # The backend's exact count was for the old prompt, so the new upper bound has a wider margin. And a run shared
            # with another request did not know this one's newest messages.
            return job.estimate.upper > budget.limit or (isinstance(result, Adopted) and job.is_due)

        await job.read_profile()
        if job.window != budget.window and job.is_due:  # a refused summary has named a smaller window
            return await self.compact(job, limit=limit) or dropped
        if is_too_long():
            await self._counting.confirm_count(job)
            if is_too_long():
                await self._shorten(job, aim._replace(limit=job.surely_below(budget.limit)))
        if limit is None:
            reserve = max(budget.goal - goal, _reserve(job, budget))
            for addon in self.addons.at(AddOn.enrich):
                await addon.enrich(job, reserve=reserve)
        return True

    async def leave_out(self, job: Job, goal: int, most: int) -> bool:
        """Leave turns out of the prompt for the rest of an answer, down to `goal` tokens, or at least to `most`; else returns False.

        Where the backend closes the gap, nothing is read, so the answer goes on at once. Nothing is stored: the next message finds
        the whole history, and has a summary of it.
        """
        prompt, budget = job.prompt, job.budget
        if budget is None or job.request.compaction is not None:  # which asks for a summary
            return False
        since, place = job.outcome.clock(), 0 if prompt.checkpoint is None else prompt.checkpoint.place
        reduction, *_ = await self._reduction(job, _Aim(budget, goal, budget.limit, summarised=False))
        found = leave_out(replace(reduction, enough=reduction.budget + max(0, most - goal)), place)
        if found is None:
            return False
        done, kept = found
        checkpoint = replace(self._checkpoint(job, budget, done, until=0), place=bisect_left(kept, place))
        self.begin(job)
        await self._apply(job, Shortened(done, checkpoint), since, stored=False)
        blocks = {new: block for new, old in enumerate(kept) if (block := prompt.recalled.blocks.get(old)) is not None}
        job.prompt = replace(job.prompt, recalled=replace(prompt.recalled, blocks=blocks))
        await self._counting.recount(job)
        return True

    async def compact_if_due(self, job: Job) -> bool:
        """Compact the history if the prompt, which was just prepared or measured again, needs it; returns False otherwise."""
        return job.is_due and await self.compact(job)

    async def foresee(self, job: Job) -> None:
        """Find out how far a pause could shorten the prompt, unless shortening the answer alone would gain enough room."""
        budget, job.prompt = job.budget, replace(job.prompt, spare=0)
        if budget is None or not job.resumable:
            return
        room = budget.pause_point - job.estimate.tokens
        if growth_needed(job) <= room:
            return
        room = max(0, room)
        wanted = job.request.compaction is not None
        aim = _Aim(budget, max(1, budget.goal - room), max(1, budget.limit - room), wanted)
        done = await self._condense(job, aim, asks=False)
        spare = round(done.before - done.after) or job.prompt.recalled.tokens
        job.prompt = replace(job.prompt, spare=spare)

    def growth(self, job: Job, budget: ContextBudget) -> Growth:
        """Return the expected growth of the prompt with a turn of the job's conversation."""
        latest = job.prompt.sent[-LATEST:]
        return growth(latest, self._counting.meter.costs(job.key, latest), budget.zone)

    def goal(self, job: Job, budget: ContextBudget) -> int:
        """Return the prompt tokens to compact to.

        Where tools are called, that is the budget's own goal: their results are pruned step by step, and may be needed again.
        """
        if _reserve(job, budget):
            return budget.goal
        history, first = job.prompt.history, first_user(job.prompt.history)
        opening = 0.0 if first is None else sum(self._counting.meter.costs(job.key, [history[first]]))
        return budget.goal_for(self.growth(job, budget), opening)

    async def _shorten(self, job: Job, aim: _Aim) -> RunResult:
        """Have the history shortened, and apply and record the result."""
        since = self.begin(job)
        result = await self._run(job, aim)
        await self._apply(job, result, since)
        return result

    def begin(self, job: Job) -> float:
        """Record that shortening the history has begun, unless that is recorded already, and return the time."""
        if job.outcome.action != COMPACTING:
            job.outcome.action = COMPACTING
            job.outcome.add("compacting", tokens=job.lasting_tokens)
        return job.outcome.clock()

    async def find(self, scope: str, link: bytes) -> Checkpoint | None:
        """Find a checkpoint that covers the history exactly up to this link."""
        return await self._store.find(scope, [link])

    async def replace(self, job: Job, budget: ContextBudget, done: Compaction | Checkpoint, since: float) -> None:
        """Apply a rewrite made elsewhere to the history, and store it if it is new."""
        if isinstance(done, Checkpoint):
            await self._apply(job, Adopted(done), since)
        else:
            await self._apply(job, Shortened(done, await self._store_checkpoint(job, budget, done)), since)
        for addon in self.addons.at(AddOn.enrich):
            await addon.enrich(job)

    async def _apply(self, job: Job, result: RunResult, since: float, *, stored: bool = True) -> None:
        """Apply the checkpoint of a run that began at `since`, if there is one, and record the gain."""
        outcome, history = job.outcome, job.prompt.history
        done = result.compaction if isinstance(result, Shortened) else None
        checkpoint = None if isinstance(result, NothingDone) else result.checkpoint
        if checkpoint is not None:
            job.prompt = job.prompt.begun_with(checkpoint)
        if done is not None:
            costs = [done.before, done.after]
        else:
            costs = [sum(self._counting.meter.costs(job.key, each)) for each in (history, job.prompt.history)]
        taken_over = ("taken over",) if checkpoint is not None else ()
        outcome.record_compacted(
            kind="pruned" if checkpoint is None else checkpoint.kind,
            results_cleaned=cleaned(history, job.prompt.history) if done is None else done.cleaned,
            messages_before=len(history),
            messages_after=len(job.prompt.history),
            tokens_before=round(costs[0]),
            tokens_after=round(costs[1]),
            seconds=outcome.clock() - since,
            summary="" if done is None else done.summary,
            rungs=taken_over if done is None else done.rungs,
            cut=(0, 0) if done is None else (math.ceil(done.cut[0]), math.ceil(done.cut[1])),
        )
        if checkpoint is not None:
            if stored and job.window_is_known:
                outcome.show("checkpoint_kept", checkpoint=checkpoint)
            await self._counting.recount(job)

    async def _run(self, job: Job, aim: _Aim) -> RunResult:
        """Shorten the history, in a run that others may share if this job may wait for a model, else alone and by code."""
        wait = self.summaries.wait(job)
        if not wait:
            return await self._run_alone(job, aim)
        result = await self.flights.ahead_of(job, wait)
        if isinstance(result, Shortened | Adopted) and _is_longer(result.checkpoint, job):
            return Adopted(result.checkpoint)
        # Requests with the same history to shorten, by the same instructions and to the same size, share one run.
        key = (f"{job.scope}|{instructions(job)}", job.prompt.links[-1], len(job.prompt.history), aim.goal, aim.limit)
        run = partial(self._run_once, aim=aim)
        return await self.flights.join(key, job, run, wait) or await self._run_alone(job, aim)

    async def _run_once(self, job: Job, aim: _Aim) -> RunResult:
        """Run with a model, unless another replica does so, or did since the job was prepared: then adopt its checkpoint."""
        answered = job.ahead.expected if job.ahead else job.prompt.answered
        async with self._store.claim(f"{job.scope}|{answered.hex()}", CLAIM):
            stored = await self._store.find(job.scope, job.prompt.links[-2::-1])
            if stored is not None and _is_longer(stored, job):
                return Adopted(stored)
            try:
                return await self._run_alone(job, aim, asks=True)
            except NotWritten:
                return NothingDone()

    async def _run_alone(self, job: Job, aim: _Aim, *, asks: bool = False) -> RunResult:
        """Shorten the history here and store the checkpoint; `asks`: a model may be asked for a summary."""
        done = await self._condense(job, aim, asks=asks)
        if not done.covered or (job.rewrites and done.summary != "written"):
            return NothingDone()
        return Shortened(done, await self._store_checkpoint(job, aim.budget, done))

    async def _store_checkpoint(self, job: Job, budget: ContextBudget, done: Compaction) -> Checkpoint:
        # On a job run ahead, the last two messages are the answer and a placeholder, which the client has not sent.
        until = len(job.prompt.sent) - 2 * bool(job.ahead)
        checkpoint = self._checkpoint(job, budget, done, until=until)
        if job.window_is_known:
            await self._store.put(checkpoint)
        return checkpoint

    def _checkpoint(self, job: Job, budget: ContextBudget, done: Compaction, *, until: int) -> Checkpoint:
        return job.prompt.rewritten(
            done, until, scope=job.scope, window=budget.window, created=self._clock(), after_tail=job.closes_gaps
        )

    async def _condense(self, job: Job, aim: _Aim, *, asks: bool) -> Compaction:
        """Carry out the pure flow, with summaries from a model where it asks for them."""
        reduction, overhead, added = await self._reduction(job, aim)
        flow = compact(
            reduction,
            await self.summaries.summariser(job, overhead, goal=aim.goal, asks=asks),
            limit=max(1.0, aim.limit - overhead - added),
            summarised=aim.summarised,
            strategy=STRATEGIES[job.settings.strategy],
        )
        heavy = is_heavy(job.prompt.history, HEAVY_HISTORY)
        return await self.summaries.drive(job, flow, job.settings.read_timeout, heavy=heavy)

    async def _reduction(self, job: Job, aim: _Aim) -> tuple[Reduction, float, float]:
        """Build the reduction of a job's history, as `_reduction_of`."""
        # Measure again first: the overhead is the whole prompt less its messages, and a count that came in the meantime has
        # changed both.
        await self._counting.recount(job)
        cost, estimate = self._counting.meter.pricing(job.key), job.estimate
        heavy = is_heavy(job.prompt.history, HEAVY_HISTORY)
        return await offload_if(heavy, _reduction_of, job, aim, estimate, cost)


def is_worth_a_summary(job: Job, budget: ContextBudget) -> bool:
    """Return whether a model may be asked to shorten the history, which takes a while, by its size alone."""
    return job.lasting_tokens - budget.fixed >= prune_limits(job.settings, budget.zone).worth


def growth_needed(job: Job, delivered: int = 0) -> int:
    """Return the tokens that the next attempt has to generate before a pause gains room; `delivered` came in earlier attempts."""
    tokens, budget = job.estimate.tokens, job.budget
    return 0 if budget is None else budget.growth_needed(tokens, job.prompt.spare, delivered)


def _reserve(job: Job, budget: ContextBudget) -> int:
    """Return the tokens that recall leaves for tool results, if tools are called: it would have to give way to them anyway."""
    called = any(map(is_result, job.prompt.sent))
    return budget.due - int(budget.enough * _ESTIMATED) if called else 0


def _reduction_of(job: Job, aim: _Aim, estimate: Estimate, cost: Cost) -> tuple[Reduction, float, float]:
    """Build the reduction of a job's history; return it, the tokens of the rest of the prompt, and those that the layout adds.

    The two are apart because a summary's size depends on the rest: the second summary must not be smaller than the first.
    """
    prompt, history, budget, goal = job.prompt, job.prompt.history, aim.budget, aim.goal
    costs = cost(history)
    added = sum(cost(prompt.laid_out(history))) - sum(cost(prompt.system)) - sum(costs)
    tokens, fixed = estimate.tokens - prompt.recalled.tokens - added, estimate.fixed
    # The estimate exceeds the sum of its parts by `beyond`. For a prompt of many windows that is an error in the texts, which
    # shrinks as they do, so count only the share of it that one window has.
    beyond = (tokens - sum(costs) - fixed) * min(1.0, budget.window / max(1, tokens))
    overhead = max(0.0, fixed + beyond)
    limits = prune_limits(job.settings, budget.zone)
    around = overhead + added
    room = max(1.0, goal - around)
    gain = min(limits.minimum_gain, round(room / 4))
    limits = replace(limits, message=min(limits.message, room / 4), minimum_gain=gain)
    newest = newest_user(prompt.sent)
    reduction = Reduction(
        messages=history,
        uncut=None if newest is None else prompt.sent[newest],
        costs=costs,
        floor=head_end(history),
        budget=room,
        enough=max(1.0, goal + budget.enough - budget.goal - around),
        unread=budget.zone * UNREAD,
        roomy=max(1.0, budget.pause_point - around),
        recallable=room if job.settings.recall != "off" and not job.undisturbed else math.inf,
        limits=limits,
        cost=cost,
        closes=job.closes_gaps,
    )
    return reduction, overhead, added


def _is_longer(other: Checkpoint, job: Job) -> bool:
    """Return whether a checkpoint covers more than the job's own, and was not made for a smaller window."""
    current, budget, other = job.prompt.checkpoint, job.budget, job.prompt.placed(other)
    if job.rewrites and other.by == "extract":
        return False
    return (current is None or other.covered > current.covered) and (budget is None or other.window >= budget.window)

"""Compaction ahead of time: after an answer, while nobody waits, do what the next turn would wait for.

Only a conversation with an earlier turn answered here is compacted, so made-up credentials and conversations cause no work. Each
backend runs one such job at a time, and only while it is idle. Any other request to it cancels the job at once; it starts again when
the backend is quiet. If the next turn finds its job half done, it waits for the result instead of starting over.

First, code shortens the next prompt and the backend reads it into its cache. A model writes a summary afterwards, and only if it can
finish before the user is back: the turn after a cancelled one waits for the engine, which then reads most of its prompt again.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import httpx
from typing_extensions import override

from proxy.addon import AddOn
from proxy.compaction.budget import Pauses, history_next
from proxy.compaction.compaction import STRATEGIES
from proxy.compaction.decision import NEAR, Compact, decide_next
from proxy.compactor import Compactor
from proxy.core.errors import ClientError
from proxy.core.history.turns import is_user, newest_user
from proxy.core.jsontext import dumps, is_heavy
from proxy.core.piece import as_count
from proxy.core.request import Message
from proxy.counting import Counting
from proxy.dialects.chat.request import reading_only
from proxy.job import Ahead, Job
from proxy.net.tasks import spawn
from proxy.net.transport import body_of
from proxy.net.upstream import ChatBody, Upstream
from proxy.outcome import Event, Outcome, Telemetry
from proxy.preparing import Preparer
from proxy.tokens.cache import Cache

QUIET = 0.5
"""Seconds without a request after which a backend counts as idle: background tasks and the next step of a loop come sooner."""
BUSY = 2.0
"""Seconds until a backend that works for other clients is checked again. llama.cpp (b11549) does not notice that a client has left
while it is polled more often than every 1.5 s."""
MOST_TRIES = 4
"""Times a job is started if it is cancelled each time."""
MOST_OF_ONE = 8
"""Most plans of one credential, waiting or done; beyond that the oldest is forgotten."""
MOST = 64
"""Most plans of all credentials together."""
HEAVIEST = 4 * 2**20
"""Weight above which a history is not kept for a compaction ahead."""
_BLOCK = 128
"""Tokens that the next turn of a shortened conversation may recall: it was compacted in the turn for these."""
_ANSWER_BYTES = 2**20
"""Bytes of an answer of one token, generously."""
_SHARE = 4
"""Waiting plans take at most one fourth of the bytes that caches may."""

AheadResult = Literal["done", "cancelled", "failed", "useless"]
_Work: TypeAlias = Callable[[Job], Coroutine[Any, Any, AheadResult | None]]


@dataclass(slots=True, kw_only=True)
class _Plan:
    """Plan to compact one conversation as its client will send it next, kept after it is carried out."""

    scope: str
    expected: bytes
    """Link of the history as it was answered."""
    stem: bytes
    """Link where its newest turn begins: a history with this link but without `expected` has another newest turn."""
    answered: Outcome
    """Outcome of the request whose answer it follows."""
    size: int
    """Bytes of the history as JSON."""
    used: int
    """Tokens of the prompt and its answer."""
    came: int = field(init=False)
    """Number of requests that had come until then."""
    task: asyncio.Task[None] = field(init=False)
    """Task that carries it out; it keeps the request alive until it ends."""
    running: bool = False
    """Whether the job has started, rather than waiting for the backends to be quiet."""
    digest: str = ""
    """Digest of the checkpoint that was made, as `Prompt.beginning`; empty if none was."""
    patience: float = 0.0
    """Seconds that the user has to stay away before a model is asked for a summary; 0 if none is put off."""


class AheadCompactor(AddOn):
    """Plans compactions after answers, and runs them when backends are quiet, which it knows from observing requests."""

    def __init__(self, telemetry: Telemetry, preparer: Preparer, compactor: Compactor, counting: Counting) -> None:
        self._telemetry = telemetry
        self._preparer, self._compactor = preparer, compactor
        self._counting, self._meter = counting, counting.meter
        self._summaries = compactor.summaries
        self._serving: dict[Outcome, str] = {}
        """Backends of the requests being answered."""
        self._arrivals = 0
        self._ended = asyncio.Event()
        self._plans: OrderedDict[tuple[str, bytes], _Plan] = OrderedDict()
        """Plans by scope and link, oldest first."""
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """Locks by backend, held by the plan it works for."""
        self._closed = False
        self._answered = Cache[tuple[str, bytes], float](self._meter.memory)
        """Times at which histories were answered, by scope and link."""
        self._habits = Cache[tuple[str, bytes, bool], Pauses](self._meter.memory)
        """Pauses in conversations, those of their users and those between the steps of a loop."""
        self._tried = Cache[tuple[str, str], Literal[True]](self._meter.memory)
        """Extracts, by scope and digest, for which a model was already asked for a summary instead."""

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        """Note the backend that serves a client."""
        if event.name == "routed" and outcome.cause is None:
            self._serving[outcome] = outcome.key[0]
            self._arrivals += 1

    @override
    def ended(self, outcome: Outcome) -> None:
        """Note that a backend may be quiet now."""
        if self._serving.pop(outcome, None) is not None:
            self._ended.set()

    @override
    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True

    # -- how clients' requests affect plans

    @override
    async def before_room(self, job: Job) -> None:
        """End the plans for this conversation, whose next turn has come, unless the turn can wait for a running one."""
        if job.background:
            return
        if len(job.prompt.links) > 1:
            self._note_pause(job)
        for planned, plan in list(self._plans.items()):
            if plan.scope != job.scope or plan.stem not in job.prompt.links:
                continue  # of another conversation
            del self._plans[planned]
            found = job.prompt.checkpoint
            joins = plan.running and not plan.digest and plan.expected in job.prompt.links[:-1]
            if not (joins and self._summaries.wait(job)):
                plan.task.cancel()
            if plan.digest and found is not None and job.prompt.beginning == plan.digest:
                before, after = found.tokens_before, found.tokens_after
                job.outcome.add("adopted", messages=found.covered, summary=found.by or "", before=before, after=after)
            elif plan.digest:
                outcome = self._open(plan)
                outcome.add("compacted_ahead", became="useless", seconds=0.0)
                outcome.close(0)

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Give up plans for a history of this chain: they would bring back what is deleted."""
        await self._compactor.flights.stop(scope, links)
        for plan in list(self._plans.values()):
            if plan.scope == scope and plan.stem in links:
                self._drop(plan)
                await asyncio.wait({plan.task})

    @override
    def after_answer(self, job: Job) -> None:
        """Plan for the next turn, if it might otherwise have to wait."""
        if job.may_move or job.managed.hands_over or self._closed or not _is_conversation(job):
            return  # the next request goes to another model, has another history, or there is none
        budget, usage, join = job.budget, job.outcome.usage, job.joined_answer
        if budget is None or usage is None or join is None:
            return
        links, newest = job.prompt.links, newest_user(job.prompt.sent) or 1
        stem = links[newest - 1]
        for link in (stem, links[-1]):  # clients rewrite their newest message later
            self._answered.put((job.scope, link), job.outcome.clock(), 0)
        used = as_count(usage.get("prompt_tokens")) + as_count(usage.get("completion_tokens"))
        due = used >= budget.due * NEAR or (job.prompt.checkpoint is not None and self._extract_in(job))
        if not (due and self._summaries.may_work_ahead(job, job.route.upstream)):
            return
        if not any(self._answered.get((job.scope, link)) for link in links[:-1] if link != stem):
            return  # no earlier turn was answered here: a conversation's first request, or only its beginning is shared with others
        history, rest = history_next(job.request.messages, join(), parsed=job.dialect.parses_calls)
        if is_heavy(history, HEAVIEST):
            return
        size = len(dumps(history))
        plan = _Plan(scope=job.scope, expected=links[-1], stem=stem, answered=job.outcome, size=size, used=used)
        plan.came = self._arrivals
        following = job.fresh(
            exchange=job.exchange.detached(), request=job.request.changed(messages=history), ahead=Ahead(plan.expected)
        )
        self._add(plan)
        recalled = job.prompt.recalled.newest_tokens or _BLOCK * (job.prompt.lost > 0)
        plan.task = spawn(self._carry_out(plan, following, rest, recalled), name="ahead")

    def _add(self, plan: _Plan) -> None:
        key = plan.scope, plan.expected
        if key in self._plans:
            self._drop(self._plans[key])
        self._plans[key] = plan
        of_one = [each for each in self._plans.values() if each.answered.credential == plan.answered.credential]
        if len(of_one) > MOST_OF_ONE:
            self._drop(of_one[0])
        elif len(self._plans) > MOST:
            self._drop(next(iter(self._plans.values())))
        waiting = [each for each in self._plans.values() if each is plan or not each.task.done()]
        while len(waiting) > 1 and _SHARE * sum(each.size for each in waiting) > self._meter.memory.limit:
            self._drop(waiting.pop(0))

    def _drop(self, plan: _Plan) -> None:
        del self._plans[plan.scope, plan.expected]
        plan.task.cancel()

    def _note_pause(self, job: Job) -> None:
        """Record how long the user of a conversation was away, or how long a step of a loop took."""
        since = next(filter(None, (self._answered.get((job.scope, each)) for each in job.prompt.links[-2::-1])), None)
        if since is not None:
            pauses = self._habits.get(key := _pauses(job)) or Pauses()
            self._habits.put(key, pauses.followed_by(job.outcome.clock() - since), 0)

    def _extract_in(self, job: Job) -> bool:
        """Return whether a prompt begins with an extract that no model has been asked to replace yet."""
        checkpoint = job.prompt.checkpoint
        if checkpoint is None or checkpoint.by != "extract" or not STRATEGIES[job.settings.strategy].asks:
            return False
        return not self._tried.get((job.scope, job.prompt.beginning))

    # -- the work

    async def _carry_out(self, plan: _Plan, job: Job, rest: Sequence[Message], recalled: int) -> None:
        """Carry out a plan: compact, and later summarise if that was put off."""
        upstream, summariser = job.route.upstream, (await self._summaries.route(job)).upstream
        if self._summaries.may_work_ahead(job, summariser):
            await self._in_turn(plan, job, {upstream, summariser}, partial(self._compact, plan, rest, recalled))
            if plan.patience:
                await asyncio.sleep(plan.patience)
                await self._in_turn(plan, job, {upstream, summariser}, partial(self._summarise_later, plan, rest))
        if not plan.digest and self._plans.get((plan.scope, plan.expected)) is plan:
            del self._plans[plan.scope, plan.expected]

    async def _in_turn(self, plan: _Plan, job: Job, upstreams: set[Upstream], work: _Work) -> None:
        """Run a part of a plan when the backends are quiet, and again each time it is cancelled for other requests."""
        quiet = QUIET
        for _ in range(MOST_TRIES):
            async with self._turns[job.route.upstream.key]:
                await self._wait_until_quiet(job, upstreams, quiet)
                since = job.outcome.clock()
                result = await self._try(plan, job, upstreams, work)
            if result != "cancelled":
                break
            quiet += job.outcome.clock() - since  # such a pause was too short for it

    async def _wait_until_quiet(self, job: Job, upstreams: set[Upstream], quiet: float) -> None:
        """Return after `quiet` seconds in which none of these backends had a request, if the job's own works for no other client."""
        while True:
            while self._is_serving(upstreams):
                self._ended.clear()
                await self._ended.wait()
            before = self._arrivals
            await asyncio.sleep(quiet)
            if before == self._arrivals and not self._is_serving(upstreams):
                if await job.route.known.is_busy():
                    await asyncio.sleep(BUSY)
                elif not self._is_serving(upstreams):
                    return

    def _is_serving(self, upstreams: set[Upstream]) -> bool:
        return not {upstream.key for upstream in upstreams}.isdisjoint(self._serving.values())

    async def _try(self, plan: _Plan, job: Job, upstreams: set[Upstream], work: _Work) -> AheadResult | None:
        """Run the work once; any other request to one of the backends cancels it. Returns None if there was nothing to do."""
        outcome = self._open(plan)
        run = spawn(work(job.fresh(outcome=outcome, ahead=Ahead(plan.expected, plan.patience > 0))), name="ahead-run")
        plan.running = True
        for upstream in upstreams:
            upstream.ahead.add(run)
        try:
            await asyncio.wait({run})
        finally:
            plan.running = False
            for upstream in upstreams:
                upstream.ahead.discard(run)
            run.cancel()
            await asyncio.wait({run})
            result: AheadResult | None = (
                "cancelled" if run.cancelled() else "failed" if run.exception() else run.result()
            )
            if result is not None:
                outcome.add("compacted_ahead", became=result, seconds=outcome.clock() - outcome.since)
            outcome.close(0)
        return result

    def _open(self, plan: _Plan) -> Outcome:
        return self._telemetry.background(f"ahead_{plan.answered.id}", plan.answered)

    async def _compact(self, plan: _Plan, rest: Sequence[Message], recalled: int, job: Job) -> AheadResult | None:
        """Prepare the next prompt as if the client had asked, then have a model summarise; returns None if there was no need."""
        result = await self._shorten(plan, job, rest, recalled)
        patience = self._patience(plan, job, loop=bool(rest)) if (lacks_summary := self._extract_in(job)) else None
        # If there surely is time for both, the summary comes first: the backend still caches the prompt that it is appended to.
        job.ahead = Ahead(plan.expected, displaced=result != "done" or patience != 0)
        if result == "done" and job.ahead.displaced:
            await self._have_read(job, rest)
        if patience:
            plan.patience = patience
        elif lacks_summary:
            return await self._summarise(plan, job, rest) or result
        return result

    def _patience(self, plan: _Plan, job: Job, *, loop: bool) -> float | None:
        """Return the seconds the client has to stay away before a summary is requested, or None; see `Pauses.patience`."""
        pauses, pace = self._habits.get(_pauses(job, loop=loop)), self._counting.pace(job.key)
        needed = (plan.used + job.estimate.tokens) / pace.read + (job.window or 0) / 8 / pace.written
        passed = job.outcome.clock() - plan.answered.since - plan.answered.seconds
        return None if pauses is None else pauses.patience(passed, needed)

    async def _summarise_later(self, plan: _Plan, rest: Sequence[Message], job: Job) -> AheadResult | None:
        """Have a model replace an extract by a summary, now that the user has stayed away long enough."""
        await self._preparer.prepare(job)
        return await self._summarise(plan, job, rest) if self._extract_in(job) else None

    async def _summarise(self, plan: _Plan, job: Job, rest: Sequence[Message]) -> AheadResult | None:
        """Have a model replace the extract that a prompt begins with; without a summary: None if this plan made the extract."""
        shortened, extract = job, job.prompt.beginning
        assert shortened.ahead is not None
        job = job.fresh(ahead=replace(shortened.ahead, rewrites=True))
        await self._preparer.prepare(job)
        try:
            written = await self._compactor.compact(job, goal=self._goal(job))
        except asyncio.CancelledError:
            pauses = self._habits.get(key := _pauses(job, loop=bool(rest))) or Pauses()
            self._habits.put(key, pauses._replace(vain=pauses.vain + 1), 0)
            raise
        if not any(job.outcome.each("backend_failed")):
            self._tried.put((job.scope, extract), True, 0)
        if not written:
            shortened.record_measured()  # the outcome has the figures of the other job's prompt, measured last
            await self._have_read(shortened, rest)
            return None if plan.digest else "failed"
        plan.digest = job.prompt.beginning
        job.ahead = shortened.ahead  # the prompt to read next begins with the new summary
        await self._have_read(job, rest)
        return "done"

    async def _shorten(self, plan: _Plan, job: Job, rest: Sequence[Message], recalled: int) -> AheadResult | None:
        """Shorten the history now if the next turn would be due, by code alone where a turn would not wait for a model either."""
        await self._preparer.prepare(job)
        if plan.digest:
            return "done"  # before another request cancelled the rest
        if (budget := job.budget) is None or not job.window_is_known:
            return None
        grown, added = self._compactor.growth(job, budget), round(sum(self._meter.costs(job.key, rest)))
        if not isinstance(decide_next(budget, job.facts.plus(added), grown, recalled=recalled), Compact):
            return None
        if job.closes_gaps and self._arrivals > plan.came and 2 * (plan.answered.sent.reused or 0) > plan.used:
            # Open WebUI's tasks were read in between. The server still has the prompt in its memory, as it had in this turn, but finds it
            # only by its beginning: without this, 919 tokens of the shorter one are read instead of 19 and then 232.
            await self._have_read(job, rest)
        if not await self._compactor.compact(job, goal=self._goal(job, added)):
            return "failed" if job.progress.failed else "useless"
        plan.digest = job.prompt.beginning
        return "done"

    def _goal(self, job: Job, added: int = 0) -> int:
        """Return the prompt tokens to compact to, less room for the next message and for tokens `added` to the history by then."""
        budget = job.budget
        assert budget is not None  # it was known a moment ago
        return max(1, self._compactor.goal(job, budget) - self._compactor.growth(job, budget).requested - added)

    async def _have_read(self, job: Job, rest: Sequence[Message]) -> None:
        """Have the backend read the new prompt, so that the next request finds all but its newest message cached."""
        if job.known_backend.hosted or self._is_serving({job.route.upstream}):
            return
        rest = () if job.prompt.offer is not None else rest
        await self._compactor.addons.place(job)
        body = ChatBody(reading_only(job.prompt.body(), [*job.prompt.messages, *rest]))
        with suppress(ClientError, httpx.TransportError):
            headers = job.backend_headers(job.route)
            response = await job.route.upstream.send_chat(job.route.known, headers, body, ahead=True)
            await body_of(response, _ANSWER_BYTES)


def _pauses(job: Job, *, loop: bool | None = None) -> tuple[str, bytes, bool]:
    """Return the key of a conversation's pauses, those of its user or in a `loop` of calls (default: as before this request).

    Turns of one conversation share the scope and the first link, and other conversations rarely do.
    """
    return job.scope, job.prompt.links[0], not is_user(job.prompt.sent[-1]) if loop is None else loop


def _is_conversation(job: Job) -> bool:
    """Return whether a turn may follow that continues from this answer."""
    request, exchange = job.request, job.exchange
    answered = job.outcome.error is None and (exchange.ended or exchange.delivered)
    single = request.choices == 1 and not request.continues and request.compaction is None and not job.background
    return answered and single and bool(job.prompt.links)

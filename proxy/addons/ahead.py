"""Compaction ahead of time: what the next turn would wait for is done after an answer, while nobody waits.

One conversation at a time on each backend, and only while that has nothing else to do. Whatever else is sent there goes first,
at once; what was cancelled for it is begun again when it is quiet. What the next turn finds half done it waits for, instead of doing it anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import httpx
from typing_extensions import override

from proxy.addon import AddOn
from proxy.attempts.sending import ChatBody, send_chat
from proxy.compaction.budget import growth, history_next, is_due_next, may_be_due
from proxy.core.dialect import Dialect
from proxy.core.errors import ClientError
from proxy.core.history.turns import newest_user
from proxy.core.jsontext import is_heavy
from proxy.core.piece import whole_number
from proxy.core.request import Message, Request
from proxy.core.settings import Settings
from proxy.dialects.chat.request import reading_only
from proxy.exchange import Exchange
from proxy.job import Expected, Job
from proxy.net.tasks import spawn
from proxy.net.upstream import Upstream
from proxy.outcome import Event, Outcome, Telemetry
from proxy.pipeline import Pipeline
from proxy.routing import Route
from proxy.summariser import credential_headers

QUIET = 0.5
"""Seconds without a request after which a backend is taken to have nothing to do: chores and the next step of a loop come sooner."""
BUSY = 2.0
"""Seconds after which a backend that is at work for others is looked at again. llama.cpp (b11549) does not see that a client has
left as long as it is asked more often than every 1.5 s."""
MOST_TRIES = 4
"""How often one is begun that gives way each time."""
MOST_OF_ONE = 8
"""Conversations of one credential that wait to be compacted, or were; of more the oldest is forgotten."""
MOST = 64
"""The same of all credentials together."""
HEAVIEST = 4 * 2**20
"""Weight of a history up to which it is kept until it is compacted."""

LATEST = 32
"""Messages by which it is told what the next turn will add."""

Became = Literal["done", "cancelled", "failed", "useless"]


@dataclass(frozen=True, slots=True)
class _Ask:
    """Request to make in the client's name, as if the client had sent it."""

    exchange: Exchange
    dialect: Dialect
    request: Request
    rest: Sequence[Message]
    """What comes after its history, and is not compacted."""
    route: Route
    settings: Settings


@dataclass(slots=True, kw_only=True)
class _Plan:
    """One conversation that is to be compacted, as its client will send it next."""

    ask: _Ask | None
    """None once it is over: then only what became of it is remembered."""
    tenant: str
    scope: str
    expected: Expected
    stem: Expected
    """Where the newest turn began: a history that shares this and does not go on with `expected` has another newest turn."""
    recalled: int
    """Tokens that were recalled for its latest turn."""
    unique: str
    """Of the job that was answered, and its outcome."""
    cause: Outcome
    tries: int = 0
    reading: bool = False
    """Whether the backend reads the new prompt, which is all that is left to do."""
    digest: bytes = b""
    """Digest of the checkpoint that was made."""

    @property
    def key(self) -> tuple[str, bytes]:
        """Under which it is kept: of one history there is one."""
        return self.scope, self.expected.link

    def is_replaced_by(self, job: Job) -> bool:
        """Return whether a job is of the same conversation: resumed, repeated or edited."""
        return self.scope == job.scope and self.stem.is_prefix_of(job.prompt.links)

    def is_resumed_by(self, job: Job) -> bool:
        """Return whether a job resumes the conversation of this one."""
        return self.scope == job.scope and self.expected.is_proper_prefix_of(job.prompt.links)


@dataclass(slots=True)
class _Place:
    """A backend, and what is planned there."""

    upstream: Upstream
    plans: OrderedDict[tuple[str, bytes], _Plan] = field(default_factory=OrderedDict)
    """By scope and link; those that are over among them."""
    working: bool = False
    running: tuple[_Plan, asyncio.Task[Became | None]] | None = None

    def waiting(self) -> _Plan | None:
        """The one that has waited longest."""
        return next((plan for plan in self.plans.values() if plan.ask is not None), None)


class AheadCompactor(AddOn):
    """Plans after answers, and works when it is quiet. It observes requests, to know when."""

    def __init__(self, *, telemetry: Telemetry, near: Collection[str]) -> None:
        """`near` are the names of backends on this machine or in its network."""
        self._telemetry = telemetry
        self._near = near
        self._serving: dict[Outcome, str] = {}
        """The backends of requests that are being answered."""
        self._came = 0
        self._ended = asyncio.Event()
        self._places: dict[str, _Place] = {}
        self._closed = False

    @override
    def install(self, pipeline: Pipeline) -> None:
        """Prepare and compact as the pipeline does."""
        self._preparer, self._compactor = pipeline.preparer, pipeline.compactor
        self._meter = pipeline.counting.meter

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        """Note the backend that serves a client."""
        if event.name == "routed" and outcome.cause is None:
            self._serving[outcome] = outcome.backend
            self._came += 1

    @override
    def ended(self, outcome: Outcome) -> None:
        """Note that a backend may be quiet now."""
        if self._serving.pop(outcome, None) is not None:
            self._ended.set()

    @override
    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True

    # -- what requests of clients mean for it

    @override
    async def before_room(self, job: Job) -> None:
        """End what was planned for this conversation, whose next turn is here; what is nearly done is waited for."""
        place = self._places.get(job.route.upstream.name)
        if place is None or job.background:
            return
        for key in [key for key, plan in place.plans.items() if plan.is_replaced_by(job)]:
            plan = place.plans.pop(key)
            if plan.digest:
                found = job.prompt.checkpoint
                if found is None or found.digest != plan.digest:
                    outcome = self._open(plan)
                    outcome.add("compacted_ahead", became="useless", seconds=0.0)
                    outcome.close(0)
            elif place.running is not None and place.running[0] is plan:
                _, task = place.running
                if not plan.is_resumed_by(job):
                    task.cancel()
                elif plan.reading:
                    await asyncio.wait({task})

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes]) -> None:
        """Give up what is planned for a history of this chain, which would bring back what is deleted."""
        for place in self._places.values():
            for key, plan in list(place.plans.items()):
                if plan.scope == scope and plan.stem.is_prefix_of(links):
                    del place.plans[key]
                    if place.running is not None and place.running[0] is plan:
                        _, task = place.running
                        task.cancel()
                        await asyncio.wait({task})

    @override
    def after_answer(self, job: Job) -> None:
        """Plan for the turn that will follow, if that may have to wait otherwise."""
        if job.managed.hands_over or len(job.asked.messages) < 2 or self._closed:
            return  # another history follows, or a question that stands alone is no conversation yet
        upstream, budget, usage = job.route.upstream, job.budget, job.outcome.usage
        if budget is None or usage is None:
            return
        used = whole_number(usage.get("prompt_tokens")) + whole_number(usage.get("completion_tokens"))
        if not (may_be_due(budget, used) and self._may(upstream, job.settings) and _is_conversation(job)):
            return
        assert job.state.joined_answer is not None  # or it is no conversation
        links, newest = job.prompt.links, newest_user(job.prompt.sent) or 1
        history, rest = history_next(job.asked.messages, job.state.joined_answer(), parsed=job.dialect.parses_calls)
        if is_heavy(history, HEAVIEST):
            return
        request = job.asked.changed(messages=history)
        plan = _Plan(
            ask=_Ask(job.exchange.detached(), job.dialect, request, rest, job.route, job.settings),
            tenant=job.exchange.tenant,
            scope=job.scope,
            expected=Expected(len(links), links[-1]),
            stem=Expected(newest, links[newest - 1]),
            recalled=job.prompt.recalled.newest_tokens,
            unique=job.state.unique,
            cause=job.outcome,
        )
        place = self._places.setdefault(upstream.name, _Place(upstream))
        self._keep(place, plan)
        if not place.working:
            place.working = True
            spawn(self._work(place), name="ahead")

    def _keep(self, place: _Place, plan: _Plan) -> None:
        plans = place.plans
        plans[plan.key] = plan
        of_one = [key for key, other in plans.items() if other.tenant == plan.tenant]
        if len(of_one) > MOST_OF_ONE:
            del plans[of_one[0]]
        while len(plans) > MOST:
            plans.popitem(last=False)

    def _may(self, upstream: Upstream, settings: Settings) -> bool:
        """Return whether work may be done ahead at a backend; by default only where tokens are not paid for."""
        if settings.ahead != "auto":
            return settings.ahead == "on"
        backend = upstream.prober.known_backend
        return upstream.name in self._near and (backend is None or backend.kind != "openrouter")

    # -- the work

    async def _work(self, place: _Place) -> None:
        """Do what is planned for a backend, one after the other, while it is quiet."""
        try:
            while (plan := place.waiting()) is not None:
                assert plan.ask is not None  # or it would not be waiting
                route, settings = plan.ask.route, plan.ask.settings
                summariser = (await self._compactor.summary_route(settings, route)).upstream
                if not self._may(summariser, settings):
                    place.plans.pop(plan.key)
                    continue
                upstreams = {place.upstream, summariser}
                await self._quiet(upstreams)
                if await place.upstream.prober.busy(route.model):
                    await asyncio.sleep(BUSY)
                elif place.waiting() is plan and not self._is_serving(upstreams):
                    await self._try(place, plan, upstreams)
        finally:
            place.working = False

    async def _quiet(self, upstreams: set[Upstream]) -> None:
        """Return when nothing was asked of any of them for a while."""
        while True:
            while self._is_serving(upstreams):
                self._ended.clear()
                await self._ended.wait()
            before = self._came
            await asyncio.sleep(QUIET)
            if before == self._came and not self._is_serving(upstreams):
                return

    def _is_serving(self, upstreams: set[Upstream]) -> bool:
        names = {upstream.name for upstream in upstreams}
        return not names.isdisjoint(self._serving.values())

    async def _try(self, place: _Place, plan: _Plan, upstreams: set[Upstream]) -> None:
        plan.tries += 1
        outcome = self._open(plan)
        task = spawn(self._run(plan, outcome), name="ahead-run")
        place.running = (plan, task)
        try:
            with _giving_way(upstreams, task):
                await asyncio.wait({task})
        finally:
            place.running = None
            task.cancel()
        became = "cancelled" if task.cancelled() else "failed" if task.exception() else task.result()
        if became is not None:
            outcome.add("compacted_ahead", became=became, seconds=outcome.clock() - outcome.since)
        outcome.close(0)
        again = became == "cancelled" and plan.tries < MOST_TRIES and not plan.digest
        if not again:
            plan.ask = None
        if not (again or plan.digest) and place.plans.get(plan.key) is plan:
            del place.plans[plan.key]

    def _open(self, plan: _Plan) -> Outcome:
        return self._telemetry.background(f"ahead_{plan.unique}", plan.cause)

    async def _run(self, plan: _Plan, outcome: Outcome) -> Became | None:
        """Prepare what the client will ask, as if it had asked; None: it would not have to wait."""
        ask = plan.ask
        assert ask is not None  # it has waited
        job = await self._preparer.prepare(
            ask.exchange, outcome, ask.dialect, ask.request, ask.route, expected=plan.expected
        )
        budget, prompt = job.budget, job.prompt
        if budget is None or not job.window_is_known:
            return None
        latest = prompt.sent[-LATEST:]
        grown = growth(latest, self._meter.costs(job.key, latest), budget.zone)
        rest = round(sum(self._meter.costs(job.key, ask.rest)))
        tokens, upper = prompt.estimate.tokens + rest, prompt.estimate.upper + rest
        passing = prompt.recalled.newest_tokens
        if not is_due_next(budget, tokens, upper, grown, recalled=plan.recalled, passing=passing):
            return None
        if not await self._compactor.compact(job, goal=max(1, budget.goal - grown.requested - rest)):
            return "failed" if job.state.unsummarised else "useless"
        checkpoint = job.prompt.checkpoint
        assert checkpoint is not None
        plan.digest = checkpoint.digest
        plan.reading = True
        await self._have_read(job, () if prompt.offer is not None else ask.rest)
        return "done"

    async def _have_read(self, job: Job, rest: Sequence[Message]) -> None:
        """Have the backend read the new prompt, so that it will find all but the newest message in its cache."""
        upstream = job.route.upstream
        backend = upstream.prober.known_backend
        if backend is None or not backend.keeps_prompts or self._is_serving({upstream}):
            return
        headers = credential_headers(job, same=True)
        body = reading_only(job.body(), [*job.prompt.messages, *rest])
        with suppress(ClientError, httpx.TransportError):
            response = await send_chat(upstream, headers, ChatBody(body), ahead=True)
            stream = response.stream
            assert isinstance(stream, httpx.AsyncByteStream)
            try:
                async for _ in stream:
                    pass
            finally:
                await response.aclose()


@contextmanager
def _giving_way(upstreams: set[Upstream], task: asyncio.Task[Became | None]) -> Iterator[None]:
    """While inside, whatever is sent to one of these backends cancels the task."""
    for upstream in upstreams:
        upstream.ahead.add(task)
    try:
        yield
    finally:
        for upstream in upstreams:
            upstream.ahead.discard(task)


def _is_conversation(job: Job) -> bool:
    """Return whether a turn is likely to follow that resumes this answer: not after a question that stands alone."""
    request, exchange = job.asked, job.exchange
    answered = (
        job.state.joined_answer is not None and job.outcome.error is None and (exchange.ended or job.outcome.delivered)
    )
    single = request.choices == 1 and not request.continues and request.compaction is None and not job.background
    has_answer = any(message.get("role") == "assistant" for message in request.messages)
    return answered and single and has_answer and bool(job.prompt.links)

"""The pipeline: what happens to a chat request, from top to bottom, and the only place that knows the order.

read → route → profile, valid history, checkpoint, recall, count → compact if due → attempt → watch
→ (pause → compact → resume)* → answer → outcome. Add-ons do the rest at moments of it, see `proxy.addon`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import httpx

from proxy.addon import AddOn, AddOns
from proxy.attempts.attempt import Attempts
from proxy.attempts.client import ClientStream
from proxy.attempts.replies import ClientReply, Replies
from proxy.attempts.too_long import record_message_cut, too_long
from proxy.backends.errors import is_refusal
from proxy.compaction.decision import Compact, Decision, Refuse, decide
from proxy.compactor import Compactor, is_worth_a_summary
from proxy.conversation_state import ConversationState, conversation_of
from proxy.core.dialect import Dialect
from proxy.core.errors import BadRequest, UpstreamUnavailable
from proxy.core.history.client_compaction import asks_to_compact
from proxy.core.request import Managed, Request
from proxy.core.settings import Policy, Settings
from proxy.core.settings.entries import Recall
from proxy.counting import Counting
from proxy.exchange import Exchange
from proxy.job import Job
from proxy.outcome import Outcome
from proxy.preparing import Preparer
from proxy.routing import Route, Router
from proxy.stream.status import COMPACTING, DONE, IN_VAIN, compacted, moved, shortened_ahead, summarising

_CHOICES: dict[str, tuple[str, ...]] = {"policy": get_args(Policy), "recall": get_args(Recall)}
"""Settings that a request may choose for itself in headers, with their values."""
_OF_REQUEST = frozenset({400, 413, 422})
"""Statuses that blame the request, which another model would refuse too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Serves chat requests."""

    settings: Settings
    state: ConversationState
    router: Router
    preparer: Preparer
    counting: Counting
    compactor: Compactor
    attempts: Attempts
    replies: Replies
    addons: AddOns

    async def serve(self, exchange: Exchange, outcome: Outcome, dialect: Dialect, wire: bytes) -> None:
        """Serve the request of this dialect in a body that came as `wire`.

        Raises:
            ClientError: it can't be served; nothing was sent yet.
            NotManaged: it asks for what only its backend can do.
        """
        job = await self.prepare(exchange, outcome, dialect, wire)
        try:
            async with self.replies.open(job) as reply:
                try:
                    opened = await self._opened(job, reply)
                except UpstreamUnavailable:
                    if job.moved_from is None:
                        raise
                    await job.held.aclose()
                    job = job.moved_from
                    outcome.record_route(job.route.key, job.route.upstream.name, listed=job.route.listed is not None)
                    await self.preparer.prepare(job)
                    reply.serve(job)
                    outcome.show("returned", job=job)
                    opened = await self._opened(job, reply)
                if opened is not None:
                    await reply.relay(*opened)
        finally:
            await job.held.aclose()
            for addon in self.addons.at(AddOn.after_answer):
                addon.after_answer(job)

    async def _opened(self, job: Job, reply: ClientReply) -> tuple[httpx.Response, bytes | None] | None:
        """Make room for a prompt, and send it; return the response as `Attempts.open`, or None if Spillway itself has answered.

        Raises:
            UpstreamUnavailable: the backend does not answer, or one that the job was moved to refuses what it did not have to.
        """
        make_room = partial(self._make_room, job, reply)
        words = "".join([await each.answer(job, make_room) for each in self.addons.at(AddOn.answer)])
        if not words:
            await make_room()
        if words or job.managed.ended:
            await reply.write(words)
            return None
        if job.budget is not None and 2 * job.estimate.upper > job.budget.window:
            await self.compactor.foresee(job)
        response, body = await self.attempts.open(job)
        if job.moved_from is not None:
            status = response.status_code
            if body is not None and status not in _OF_REQUEST and (status >= 400 or is_refusal(body)):
                raise UpstreamUnavailable(f"Backend {job.route.upstream.name} answered {status}.")
            if any(job.outcome.each("moved")):
                await reply.client.notify(moved(job.route.model, job.window or 0))
        return response, body

    async def prepare(self, exchange: Exchange, outcome: Outcome, dialect: Dialect, wire: bytes) -> Job:
        """Read, route and prepare a request up to the decision what to do with it; raises as `serve`."""
        request = await self.state.read(exchange, wire, dialect.read)
        if not dialect.native:
            exchange.speak_openai()
        request, route = await self.router.routed(request)
        if named := conversation_of(exchange, request):
            outcome.conversation = named
            outcome.add("named", conversation=named)
        prepared = partial(self._prepared, request, exchange=exchange, outcome=outcome, dialect=dialect)
        job = await prepared(route)
        for addon in self.addons.at(AddOn.reroute):
            job = await addon.reroute(job, partial(prepared, moved_from=job, managed=job.managed))
        outcome.show("taken", job=job, request=request, size=len(wire))
        return job

    async def _prepared(
        self, received: Request, route: Route, *, exchange: Exchange, outcome: Outcome, **fields: Any
    ) -> Job:
        """Prepare a job for the request that was `received`, as the model of this route needs it; `fields`: the job's others."""
        outcome.record_route(route.key, route.upstream.name, listed=route.listed is not None)
        settings = with_requested(exchange, self.settings.for_model(route.model))
        request = translated = await route.with_options(received)
        for addon in self.addons.at(AddOn.shape):
            request = addon.shape(request, route, settings, outcome)
        job = Job(
            exchange=exchange,
            outcome=outcome,
            received=translated,
            request=request,
            route=route,
            settings=settings,
            **{"managed": Managed(hands_over=asks_to_compact([*request.restored, *request.messages])), **fields},
        )
        await self.preparer.prepare(job)
        return job

    async def _make_room(self, job: Job, reply: ClientReply) -> None:
        """Compact before sending, if the client asks for that, or if the prompt is due or might not fit."""
        if job.profile.provisional:
            await self.preparer.load(job)
        for addon in self.addons.at(AddOn.before_room):
            await addon.before_room(job)
        wanted, outcome = job.request.compaction, job.outcome
        for fields in outcome.each("adopted") if wanted is None else ():
            page = job.exchange.page()
            link = page and f"{page}#/r/{job.exchange.id}"
            await reply.client.notify(shortened_ahead(**fields, link=link))
        await self.counting.refresh(job)
        decision = self.decide(job)
        if isinstance(decision, Compact):
            for addon in self.addons.at(AddOn.before_compaction):
                await addon.before_compaction(job, reply.client)
            decision = self.decide(job)
        if isinstance(decision, Compact) and decision.too_large and await self.addons.make_way(job, refused=False):
            decision = self.decide(job)
        if isinstance(decision, Compact):
            await self._compact(job, reply.client, decision.goal)
        if wanted is None or not wanted.sealed:
            return
        compacted = outcome.shortened.kind not in ("", "pruned")
        if wanted.now or compacted:
            words = await self.compactor.summaries.write(job) if wanted.worded and not compacted else ""
            tenant, history = job.exchange.tenant, job.prompt.history
            job.managed.sealed_compaction = await self.state.seal_history(tenant, job.request, history, words)
            job.managed.ended = wanted.now or wanted.pauses

    def decide(self, job: Job, *, compacted: bool = False) -> Decision:
        """Decide what to do with the prompt of a client's request."""
        wanted, was_cut = job.request.compaction, self.counting.was_cut(job)
        return decide(job.budget, job.facts._replace(requested=wanted, was_cut=was_cut), compacted=compacted)

    async def _compact(self, job: Job, client: ClientStream, goal: int | None) -> None:
        """Compact the history, with a notice before it and one after.

        Raises:
            ContextOverflow: the prompt is still too long.
        """
        wanted, before, budget = job.request.compaction, job.estimate.tokens, job.budget
        assert budget is not None  # or there is no reason to compact
        if goal is not None or is_worth_a_summary(job, budget):
            await client.notify(COMPACTING)
        async with client.progress(lambda: summarising(job.progress.written)):
            gained = await self.compactor.compact(job, goal=goal, summarised=goal is not None)
        if gained:
            self.counting.compacted(job)
            await client.notify(COMPACTING)  # ignored where one was shown before
        omitted = await record_message_cut(job, self.counting.meter) or job.outcome.shortened.cut_earlier[0]
        if wanted is not None and wanted.now:  # nothing of it is sent, and the answer says what was done
            await client.notify(DONE)
            return
        before = job.outcome.sent.tokens_before or before  # it may have been counted meanwhile
        done = compacted(before, job.estimate.tokens, omitted=omitted > 0)
        await client.notify(done if gained else IN_VAIN)
        if job.estimate.tokens >= budget.window:
            await self.counting.confirm_count(job)
        if job.facts.cuts:
            await self.attempts.make_fit(job, budget.window)
        if isinstance(self.decide(job, compacted=True), Refuse):
            raise await too_long(job, self.counting.meter)


def with_requested(exchange: Exchange, settings: Settings) -> Settings:
    """Return the settings with what the request chooses for itself in `x-spillway-policy` and `x-spillway-recall`.

    The single limits of a policy still hold.

    Raises:
        BadRequest: there is no such value.
    """
    chosen: dict[str, str] = {}
    for name, values in _CHOICES.items():
        value = exchange.header(b"x-spillway-" + name.encode())
        if value is not None and value not in values:
            raise BadRequest(f"`x-spillway-{name}` must be one of {', '.join(values)}, not {value[:40]!r}.")
        chosen |= {} if value is None else {name: value}
    return settings.model_copy(update=chosen) if chosen else settings

"""The pipeline: what happens to a chat request, from top to bottom, and the only place that knows the order.

read → route → profile, valid history, checkpoint, recall, count → compact if due → attempt → watch
→ (pause → compact → resume)* → answer → outcome. Add-ons do the rest at moments of it, see `proxy.addon`.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.addon import AddOn, make_way
from proxy.attempts.attempt import Attempts, leave
from proxy.attempts.client import ClientStream
from proxy.attempts.replies import Replies
from proxy.attempts.room import cannot_fit, is_worth_a_summary, too_long
from proxy.compaction.budget import ContextBudget
from proxy.compactor import Compactor
from proxy.conversation_state import ConversationState, conversation_of
from proxy.core.dialect import Dialect
from proxy.dialects import CHAT
from proxy.exchange import Exchange
from proxy.job import Job
from proxy.net.headers import openai_headers
from proxy.outcome import Outcome, overriding
from proxy.preparing import Preparer
from proxy.routing import Router
from proxy.stream.status import Notice
from proxy.tokens.counting import Counting


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Serves chat requests."""

    state: ConversationState
    router: Router
    preparer: Preparer
    counting: Counting
    compactor: Compactor
    attempts: Attempts
    replies: Replies
    addons: tuple[AddOn, ...]

    async def serve(self, exchange: Exchange, outcome: Outcome, dialect: Dialect, wire: bytes) -> None:
        """Serve the request of this dialect in a body that came as `wire`.

        Raises:
            ClientError: it can't be served; nothing was sent yet.
            NotManaged: it asks for what only its backend can do.
        """
        job = await self.prepare(exchange, outcome, dialect, wire)
        try:
            async with self.replies.open(job) as reply:
                await self._make_room(job, reply.client)
                if job.managed.ended:
                    await reply.write_nothing()
                else:
                    response, body = await self.attempts.open(job)
                    await reply.relay(response, body)
        finally:
            await leave(job)
            for addon in overriding(self.addons, AddOn.after_answer):
                addon.after_answer(job)

    async def prepare(self, exchange: Exchange, outcome: Outcome, dialect: Dialect, wire: bytes) -> Job:
        """Read, route and prepare a request up to the decision what to do with it; raises as `serve`."""
        request = await self.state.read(exchange, wire, dialect.read)
        if dialect is not CHAT:
            exchange.headers, exchange.query = openai_headers(exchange.headers), b""
        request, route = await self.router.routed(request)
        if named := conversation_of(exchange, request):
            outcome.conversation = named
            outcome.add("named", conversation=named)
        outcome.record_route(route.upstream.name, route.model)
        if request.unsupported:
            outcome.add("left_out", kinds=request.unsupported)
        job = await self.preparer.prepare(exchange, outcome, dialect, request, route)
        outcome.show("taken", job=job, request=request, size=len(wire))
        return job

    async def _make_room(self, job: Job, client: ClientStream) -> None:
        """Compact before sending, if the client asks for that, or if the prompt is due or might not fit."""
        await self.preparer.load(job)
        for addon in overriding(self.addons, AddOn.before_room):
            await addon.before_room(job)
        await self._compact_if_due(job, client)
        wanted = job.asked.compaction
        compacted = job.outcome.compactions > 0 and job.outcome.kind != "pruned"
        if wanted is not None and (wanted.now or compacted):
            words = await self.compactor.write_summary(job) if wanted.worded and not compacted else ""
            job.managed.sealed_compaction = await self.state.seal_history(
                job.exchange.tenant, job.asked, job.prompt.history, words
            )
            job.managed.ended = wanted.now or wanted.pauses

    async def _compact_if_due(self, job: Job, client: ClientStream) -> None:
        may_be_due = await self.counting.refine(job)
        if (budget := job.budget) is None:
            return
        goal = budget.requested_goal(
            job.prompt.estimate.tokens, job.asked.compaction, hands_over=job.managed.hands_over and job.is_due
        )
        due = may_be_due and job.is_due and not await make_way(job, refused=False)
        if not due and goal is None and not self.counting.was_cut(job):
            return
        before = job.prompt.estimate.tokens
        await self._compact(job, budget, goal, client)
        if job.asked.compaction is not None and job.asked.compaction.now:
            return  # nothing of it is sent
        if job.prompt.estimate.tokens >= budget.window:
            await self.counting.confirm_count(job)
        if cannot_fit(job, budget.window):
            raise too_long(job, self.counting.meter, before)

    async def _compact(self, job: Job, budget: ContextBudget, goal: int | None, client: ClientStream) -> None:
        """Compact the history, with a notice before it and one after."""
        before = job.prompt.estimate.tokens
        if goal is not None or is_worth_a_summary(job, budget):
            await client.notify(Notice(done=False))
        async with client.progress(lambda: job.state.progress.written):
            gained = await self.compactor.compact(job, goal=goal)
        if gained:
            self.counting.compacted(job)
            await client.notify(Notice(done=False))  # ignored where one was shown before
        after, extract = job.prompt.estimate.tokens, job.outcome.summary == "extract"
        omitted = await self.attempts.record_message_cut(job) or job.outcome.cut_earlier[0]
        await client.notify(Notice(True, before, after, not gained, extract=extract, left_out=omitted))

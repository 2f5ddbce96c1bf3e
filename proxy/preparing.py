"""From a client's request to a job: profile, policy, clean and valid history, checkpoint, count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.addon import AddOn
from proxy.compaction.budget import budget_for
from proxy.compaction.cap import within_limits
from proxy.compaction.continuation import with_resume_flags
from proxy.compaction.policy import prune_limits
from proxy.conversation_state import ConversationState
from proxy.core.dialect import Dialect
from proxy.core.history.checkpoint import Checkpoint, chain
from proxy.core.history.client_compaction import asks_to_compact, unfolded
from proxy.core.jsontext import HEAVY, is_heavy
from proxy.core.request import Message, Request, leading_system
from proxy.core.settings import Settings
from proxy.emulation import Offer
from proxy.emulation.offer import offer_to_emulate
from proxy.emulation.prompt import emulated
from proxy.exchange import Exchange
from proxy.job import Expected, Job, Prompt
from proxy.net.tasks import offload_if
from proxy.outcome import Outcome, overriding
from proxy.routing import Route
from proxy.shaping.repair import RepairRules, repair, rules_for, tidied
from proxy.shaping.shape import ShapedPart, narrowed, shaped, steps, with_search
from proxy.store import Store
from proxy.tokens.counting import Counting

HEAVY_BODY = 4 * HEAVY
"""Weight of a body from which it is not shaped, cleaned and chained on the loop."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A request in the form that its backend takes, as far as the request alone decides it."""

    request: Request
    """As the policy has it, and with its tools as text where they are emulated."""
    offer: Offer | None
    search: str
    shaped_parts: Sequence[ShapedPart]
    mended: Sequence[str]
    """Kinds of repairs that its history needed."""
    system: Sequence[Message]
    sent: Sequence[Message]
    links: Sequence[bytes]
    untouched: bool
    """Whether the messages are the client's own."""


class Preparer:
    """Prepares jobs."""

    def __init__(
        self,
        *,
        counting: Counting,
        store: Store,
        state: ConversationState,
        settings: Settings,
        addons: tuple[AddOn, ...] = (),
    ) -> None:
        self._counting = counting
        self._state = state
        self._store = store
        self._settings = settings
        self._addons = addons

    async def prepare(
        self,
        exchange: Exchange,
        outcome: Outcome,
        dialect: Dialect,
        request: Request,
        route: Route,
        *,
        expected: Expected | None = None,
    ) -> Job:
        """Prepare a job up to the decision what to do; `expected`: it is done before a client asks for it."""
        settings = self._settings.for_model(route.model)
        request = await route.with_options(request)
        for addon in overriding(self._addons, AddOn.shape):
            request = addon.shape(request, route, settings, outcome)
        job = Job(
            exchange=exchange,
            outcome=outcome,
            dialect=dialect,
            asked=request,
            route=route,
            settings=settings,
            profile=await route.profile(request.body),
            addons=self._addons,
            expected=expected,
        )
        job.managed.hands_over = asks_to_compact(request.messages)
        await self._prepare_to_read(job)
        return job

    async def load(self, job: Job) -> None:
        """Load the model that a job is about to be sent to, and prepare the job for its true window.

        Not where it is loaded, nor where a window is known, leaves room, and is enforced by an error: llama-swap tells
        clients of the loading.
        """
        before, backend = job.profile.window, job.known_backend
        cuts = backend is not None and backend.shifts_silently
        if job.profile.provisional and (before is None or cuts or job.is_due):
            job.profile = await job.route.profile(job.asked.body, load=True)
            window = job.profile.window
            if window is not None and (before is None or before.value != window.value):
                await self._prepare_to_read(job)

    async def prepare_emulated(self, job: Job) -> None:
        """Start over with tools as text, because the backend has just refused them."""
        job.profile = await job.route.profile(job.asked.body)
        await self._prepare(job, emulate=True)

    async def _prepare_to_read(self, job: Job) -> None:
        """Prepare a job, without its tools where the client asks for a compaction of its own that has no room for them."""
        request = job.asked
        await self._prepare(job)
        if job.managed.hands_over and job.is_due:
            # A model that is to call no tools needs no definitions of them, which leaves more room for the history.
            less = dict.fromkeys(("tools", "tool_choice") & request.body.keys())
            # What the policy makes of the rest hangs on the tools.
            shaped_parts = steps(request, job.settings, job.window)
            front = shaped_parts[-1].after if shaped_parts else request
            job.asked = request.changed(**less, messages=unfolded(front.messages))
            await self._prepare(job)

    async def _prepare(self, job: Job, *, emulate: bool = False) -> None:
        form = await offload_if(is_heavy(job.asked.body, HEAVY_BODY), _form, job, emulate=emulate)
        if form.mended:
            job.outcome.add("mended", kinds=tuple(form.mended))
        request, system, sent = form.request, form.system, form.sent
        edited, job.managed.cleared = await self._state.edit(job.route, request, system, sent)
        shown = await _limited(job, edited)
        checkpoint = await self._checkpoint(job, form, shown)
        history = _rewritten(shown, checkpoint)
        fields: dict[str, Any] = {} if job.route.model == request.model else {"model": job.route.model}
        if checkpoint is not None:
            fields |= narrowing(job, request, form.offer, sent[: checkpoint.covered])
        untouched = form.untouched and shown is sent and checkpoint is None
        body = request.body if untouched else {**request.body, **fields, "messages": [*system, *history]}
        job.prompt = Prompt(
            request=request,
            offer=form.offer,
            search=form.search,
            system=system,
            sent=sent,
            links=form.links,
            shown=shown,
            history=history,
            checkpoint=checkpoint,
            estimate=await self._counting.measure(job.route, job.profile, body, tenant=job.exchange.tenant),
            untouched=untouched,
            fields=fields,
        )
        job.outcome.saved = 0 if checkpoint is None else max(0, checkpoint.tokens_before - checkpoint.tokens_after)
        if form.shaped_parts or shown is not edited:
            await self._record_savings(job, edited, form.shaped_parts)
        job.record_measured()
        if checkpoint is not None:
            for addon in overriding(job.addons, AddOn.after_rewrite):
                await addon.after_rewrite(job)

    async def _checkpoint(self, job: Job, form: _Form, shown: Sequence[Message]) -> Checkpoint | None:
        """Find the checkpoint to apply: the longest, unless it was made for a smaller window and this one takes more.

        Then the next shorter one is applied, or none, as long as the prompt stays below the trigger.
        """
        # A client's own compaction is of all that it sends. Else the newest message is never covered, not even where the
        # same loop has been run before.
        links = () if job.managed.hands_over else form.links[:-1]
        found = await self._store.find(job.scope, links[::-1]) if links else None
        window = job.profile.window
        while found is not None and window is not None and found.window < window.value:
            links = links[: found.covered - 1]
            shorter = await self._store.find(job.scope, links[::-1]) if links else None
            body = {**form.request.body, "messages": [*form.system, *_rewritten(shown, shorter)]}
            estimate = await self._counting.measure(job.route, job.profile, body)
            budget = budget_for(job.settings, window.value, estimate.fixed)
            if budget.needs_compaction(estimate.tokens, estimate.upper):
                break
            found = shorter
        return found

    async def _record_savings(self, job: Job, edited: Sequence[Message], parts: Sequence[ShapedPart]) -> None:
        """Record the tokens saved by the policy: on `parts`, and on results of the `edited` history that were capped."""
        shown, checkpoint, meter = job.prompt.shown, job.prompt.checkpoint, self._counting.meter
        begins = len(shown) if shown is edited else 0 if checkpoint is None else checkpoint.covered
        capped = [at for at in range(begins, len(shown)) if shown[at] is not edited[at]]
        pairs = {str(part.kind): (part.removed, part.added) for part in parts}
        if capped:
            pairs["results"] = [edited[at] for at in capped], [shown[at] for at in capped]

        def saved() -> dict[str, int]:
            costs = {kind: [sum(meter.costs(job.key, each)) for each in pair] for kind, pair in pairs.items()}
            return {kind: round(before - after) for kind, (before, after) in costs.items()}

        if pairs:
            job.outcome.shaped = await offload_if(is_heavy(edited), saved)
            job.outcome.add("shaped", saved=tuple(job.outcome.shaped.items()))


def narrowing(job: Job, request: Request, offer: Offer | None, covered: Sequence[Message]) -> dict[str, Any]:
    """Shorten the tools of a request by what was called in the covered part of its history; empty where nothing is gained.

    Only that part counts, so the tools change only where the prompt does anyway.
    """
    window = job.profile.window
    return {} if offer is not None or window is None else narrowed(request, covered, job.settings, window.value)


def _form(job: Job, *, emulate: bool) -> _Form:
    """Shape the request by the policy, and bring its tools and messages into the form that the backend takes.

    May take long; usable from a thread.
    """
    model, settings = job.route.model, job.settings
    request, parts = shaped(job.asked, settings, job.window)
    search = ""
    if settings.recall == "tool" and not job.background:
        request, search = with_search(request, job.profile, alone=not emulate)
    offer = offer_to_emulate(request, job.profile, settings, now=emulate)
    # An answer that the client wants continued stays, even if empty.
    rules = replace(rules_for(model), keep_last=True) if request.continues else rules_for(model)
    # Where tools become text, calls and results are repaired before that, while they are distinct; roles afterwards.
    messages, mended = tidied(request.messages, rules if offer is None else RepairRules())
    if offer is not None:
        request = emulated(request, offer, messages, system=not rules.alternate)
        messages, more = repair(request.messages, rules)
        mended = (*mended, *more)
    untouched = messages is request.messages and not request.restored
    if request.continues:
        request = with_resume_flags(request, job.ways[0])
    lead = leading_system(messages)
    sent = messages[lead:]
    if request.restored:
        sent, _ = repair([*request.restored, *sent], rules)
    return _Form(request, offer, search, parts, mended, messages[:lead], sent, chain(sent), untouched)


async def _limited(job: Job, messages: Sequence[Message]) -> Sequence[Message]:
    """Bring the results of a history within the limits, where these hold from the first request on."""
    window = job.profile.window
    limits = None if window is None else prune_limits(job.settings, window.value)
    if limits is None or not limits.from_the_first:
        return messages
    return await offload_if(is_heavy(messages), within_limits, messages, limits)


def _rewritten(shown: Sequence[Message], checkpoint: Checkpoint | None) -> Sequence[Message]:
    return shown if checkpoint is None else [*checkpoint.replacement, *shown[checkpoint.covered :]]

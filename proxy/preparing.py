"""From a client's bytes to a job: route, profile, policy, clean and valid history, checkpoint, count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from proxy.addon import AddOn
from proxy.attempts.emulating import emulated, offer_to_emulate
from proxy.client_histories import ClientHistories
from proxy.compaction.budget import budget_for
from proxy.compaction.continuation import with_resume_flags
from proxy.core.dialect import Dialect
from proxy.core.history.chain import chain
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.history.client_compaction import asks_to_compact, unfolded
from proxy.core.jsontext import HEAVY, is_heavy
from proxy.core.request import Message, Request, leading_system
from proxy.core.settings import Settings
from proxy.emulation import Offer
from proxy.exchange import Exchange
from proxy.job import Expected, Job, Prompt
from proxy.net.tasks import offload_if
from proxy.routing import Route, with_backend_options
from proxy.shaping.clean import tidied
from proxy.shaping.repair import RepairRules, repair, rules_for
from proxy.shaping.shape import ShapedPart, shaped, steps, with_search
from proxy.stages.recalling import Recaller
from proxy.stages.shaping import limited, limits_from_the_first, narrowing, record_savings
from proxy.store import Store
from proxy.telemetry.outcome import Outcome
from proxy.tokens.counting import Counting

_LONG = 2 * 2**20
"""Characters of a history from which its digests are left to a thread: 4 ms."""
_SMALL = 16 * 1024
"""Bytes of a body."""
HEAVY_TOOLS = 4 * HEAVY
HEAVY_TEXT = 8 * HEAVY
"""Weights from which tools and messages in which tools become text are not gone through on the loop."""


class _Form(NamedTuple):
    """A request as the policy has it, what it offers as text, its messages as backends take them, the search, and what was shaped."""

    request: Request
    offer: Offer | None
    messages: Sequence[Message]
    search: str
    steps: Sequence[ShapedPart]


class Preparer:
    """Prepares jobs."""

    def __init__(
        self,
        *,
        counting: Counting,
        store: Store,
        recaller: Recaller,
        client_histories: ClientHistories,
        settings: Settings,
        addons: Sequence[AddOn] = (),
    ) -> None:
        self._counting = counting
        self._client_histories = client_histories
        self._recaller = recaller
        self._store = store
        self._settings = settings
        self._addons = addons

    async def prepare(
        self,
        exchange: Exchange,
        outcome: Outcome,
        dialect: Dialect,
        client_request: Request,
        route: Route,
        *,
        expected: Expected | None = None,
    ) -> Job:
        """Prepare a job up to the decision what to do; `expected`: it is done before a client asks for it."""
        settings = self._settings.for_model(route.model)
        client_request = await with_backend_options(client_request, route)
        for addon in self._addons:
            client_request = addon.shape(client_request, route, settings, outcome)
        job = Job(
            exchange=exchange,
            outcome=outcome,
            dialect=dialect,
            asked=client_request,
            route=route,
            settings=settings,
            profile=await route.profile(client_request.body),
            addons=self._addons,
            expected=expected,
        )
        if client_request.sealed_compaction is not None:
            job.managed.restored = await self._client_histories.restore(
                exchange.tenant, client_request.sealed_compaction
            )
        job.managed.hands_over = asks_to_compact(client_request.messages)
        await self._prepare_to_read(job)
        return job

    async def _prepare_to_read(self, job: Job) -> None:
        """Prepare a job, without its tools where the client asks for a compaction of its own that has no room for them."""
        client_request = job.asked
        await self._prepare(job, emulate=False)
        if job.managed.hands_over and job.is_due:
            # A model that is to call no tools needs no definitions of them, which leaves more room for the history.
            less = dict.fromkeys(("tools", "functions", "tool_choice", "function_call") & client_request.body.keys())
            # What the policy makes of the rest hangs on the tools.
            shaped_parts = steps(
                client_request, job.settings, None if job.profile.window is None else job.profile.window.value
            )
            front = shaped_parts[-1].after if shaped_parts else client_request
            job.asked = client_request.changed(**less, messages=unfolded(front.messages))
            await self._prepare(job, emulate=False)

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

    async def _prepare(self, job: Job, *, emulate: bool) -> None:
        request, offer, messages, search, shaped_parts = await self._in_form(job, emulate=emulate)
        if request.continues:
            request = with_resume_flags(request, job.ways[0])
        lead = leading_system(messages)
        system: Sequence[Message] = messages[:lead]
        sent: Sequence[Message] = messages[lead:]
        if job.managed.restored:
            sent, _ = repair([*job.managed.restored, *sent], _rules(job.route.model, request))
        links = await offload_if(is_heavy(sent, _LONG), chain, sent)
        edited = await self._client_histories.edit(job, request, system, sent) if request.edits else sent
        limits = limits_from_the_first(job)
        shown = edited if limits is None else await limited(edited, limits)
        checkpoint = await self._checkpoint(job, request, system, shown, links)
        history = _rewritten(shown, checkpoint)
        fields = {} if checkpoint is None else narrowing(job, request, offer, sent, checkpoint)
        same = messages is request.messages and shown is sent
        untouched = same and checkpoint is None and not job.managed.restored
        body = request.body if untouched else {**request.body, **fields, "messages": [*system, *history]}
        job.prompt = Prompt(
            request=request,
            offer=offer,
            search=search,
            system=system,
            sent=sent,
            links=links,
            shown=shown,
            history=history,
            checkpoint=checkpoint,
            saved=0 if checkpoint is None else max(0, checkpoint.tokens_before - checkpoint.tokens_after),
            estimate=await self._counting.measure(job.route, job.profile, body, tenant=job.exchange.tenant),
            untouched=untouched,
            fields=fields,
        )
        if shaped_parts or shown is not edited:
            await record_savings(job, self._counting, edited, shaped_parts)
        job.measured()
        if checkpoint is not None:
            await self._recaller.recall(job)

    async def _checkpoint(
        self, job: Job, request: Request, system: Sequence[Message], shown: Sequence[Message], links: Sequence[bytes]
    ) -> Checkpoint | None:
        """Find the checkpoint to apply: the longest, unless it was made for a smaller window and this one takes more.

        Then the next shorter one is applied, or none, as long as the prompt stays below the trigger.
        """
        if job.managed.hands_over:  # a client's own compaction is of all that it sends
            return None
        # The newest message is never covered, not even where the same loop has been run before.
        found = await self._find(job, links[:-1])
        window = job.profile.window
        while found is not None and window is not None and found.window < window.value:
            shorter = await self._find(job, links[: found.covered - 1])
            body = {**request.body, "messages": [*system, *_rewritten(shown, shorter)]}
            estimate = await self._counting.measure(job.route, job.profile, body)
            budget = budget_for(job.settings, window.value, estimate.fixed)
            if budget.needs_compaction(estimate.tokens, estimate.upper):
                break
            found = shorter
        return found

    async def _find(self, job: Job, links: Sequence[bytes]) -> Checkpoint | None:
        return await self._store.find(job.scope, links[::-1]) if links else None

    async def _in_form(self, job: Job, *, emulate: bool) -> _Form:
        """Shape the request by the policy, and bring its tools and messages into the form that the backend takes."""
        profile, model = job.profile, job.route.model
        window = profile.window.value if profile.window is not None else None
        small = _is_small(job.asked)
        heavy = not small and is_heavy([job.asked.body.get(form) for form in ("tools", "functions")], HEAVY_TOOLS)
        client_request, settings = job.asked, job.settings
        if heavy:
            request, shaped_parts = await offload_if(heavy, shaped, client_request, settings, window)
        else:
            request, shaped_parts = shaped(client_request, settings, window)
        search = ""
        if settings.recall == "tool" and not job.is_task:
            request, search = with_search(request, profile, alone=not emulate)
        backend = job.known_backend
        drops = backend is not None and backend.drops_functions
        offer = offer_to_emulate(request, profile, settings, now=emulate, drops_functions=drops)
        rules = _rules(model, request)
        # Where tools become text, calls and results are repaired before that, while they are distinct; roles afterwards.
        first_rules = rules if offer is None else RepairRules()
        long = not small and is_heavy(request.messages, HEAVY_TEXT)
        messages, kinds = await offload_if(long, tidied, request.messages, first_rules)
        _record_mended(job.outcome, kinds)
        if offer is None:
            return _Form(request, None, messages, search, shaped_parts)
        heavy = heavy or (not small and is_heavy(messages, HEAVY_TEXT))
        request, messages, kinds = await offload_if(heavy, _as_text, request, offer, messages, rules)
        _record_mended(job.outcome, kinds)
        return _Form(request, offer, messages, search, shaped_parts)


def _rewritten(shown: Sequence[Message], checkpoint: Checkpoint | None) -> Sequence[Message]:
    return shown if checkpoint is None else [*checkpoint.replacement, *shown[checkpoint.covered :]]


def _is_small(request: Request) -> bool:
    """Return whether the body is so small that its weight need not be measured."""
    return request.raw is not None and len(request.raw) <= _SMALL


def _as_text(
    request: Request, offer: Offer, messages: Sequence[Message], rules: RepairRules
) -> tuple[Request, Sequence[Message], Sequence[str]]:
    request = emulated(request, offer, messages, system=not rules.alternate)
    return request, *repair(request.messages, rules)


def _record_mended(outcome: Outcome, kinds: Sequence[str]) -> None:
    if kinds:
        outcome.add("mended", kinds=tuple(kinds))


def _rules(model: str, request: Request) -> RepairRules:
    """Choose the repair rules for this model; an answer that the client wants continued stays, even if empty."""
    return replace(rules_for(model), keep_last=True) if request.continues else rules_for(model)

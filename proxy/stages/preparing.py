"""From a client's bytes to a job: route, profile, policy, clean and valid history, checkpoint, count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from proxy.exchange import Exchange
from proxy.history.chain import chain
from proxy.history.checkpoint import Checkpoints
from proxy.neutral.dialect import Dialect
from proxy.neutral.request import Message, Request, leading_system
from proxy.options import Options
from proxy.shaping.clean import clean_history
from proxy.shaping.repair import RepairRules, repair, rules_for
from proxy.shaping.shape import shape
from proxy.stages.counting import Counting
from proxy.stages.emulating import emulated, offer_to_emulate
from proxy.stages.job import Job
from proxy.stages.routing import Route
from proxy.telemetry.events import Mended
from proxy.telemetry.journal import Journal


class Preparer:
    """Prepares jobs."""

    def __init__(self, *, counting: Counting, store: Checkpoints, options: Options) -> None:
        self._counting = counting
        self._store = store
        self._options = options

    async def prepare(
        self,
        exchange: Exchange,
        journal: Journal,
        dialect: Dialect,
        asked: Request,
        route: Route,
        *,
        emulate: bool = False,
    ) -> Job:
        """Everything up to the decision what to do. `emulate`: the backend has just refused the tools."""
        profile = await route.upstream.prober.profile(route.model)
        key = (route.upstream.name, route.model)
        options = self._options.for_model(route.model)
        request = shape(asked, options, profile.window.value if profile.window is not None else None)
        backend = route.upstream.prober.known_backend
        drops = backend is not None and backend.drops_functions
        offer = offer_to_emulate(request, profile, options, now=emulate, drops_functions=drops)
        rules = _rules(route.model, request)
        messages = _without_status(request.messages)
        if offer is not None:
            # Calls and results are mended while they can be told apart, roles once they are text.
            messages = _mended(journal, messages, RepairRules())
            request = emulated(request, offer, messages, system=not rules.alternate)
            messages = request.messages
        messages = _mended(journal, messages, rules)
        lead = leading_system(messages)
        system, sent = messages[:lead], messages[lead:]
        links = chain(sent)
        scope = "|".join((tenant(exchange), *key))
        # The newest message is never covered, not even where the same loop has been run before.
        checkpoint = await self._store.find(scope, links[-2::-1]) if links else None
        history = sent if checkpoint is None else [*checkpoint.replacement, *sent[checkpoint.covered :]]
        job = Job(
            exchange=exchange,
            journal=journal,
            dialect=dialect,
            asked=asked,
            request=request,
            offer=offer,
            route=route,
            options=options,
            profile=profile,
            scope=scope,
            system=system,
            sent=sent,
            links=links,
            history=history,
            checkpoint=checkpoint,
            saved=0 if checkpoint is None else max(0, checkpoint.tokens_before - checkpoint.tokens_after),
            estimate=await self._counting.measure(
                route, profile, {**request.body, "messages": [*system, *history]}
            ),
            untouched=checkpoint is None and messages is request.messages,
        )
        job.measured()
        return job

    async def prepare_anew(self, job: Job) -> None:
        """Start over with tools as text, because the backend has just refused them."""
        prepare = self.prepare(job.exchange, job.journal, job.dialect, job.asked, job.route, emulate=True)
        job.become(await prepare)


def _mended(journal: Journal, messages: Sequence[Message], rules: RepairRules) -> Sequence[Message]:
    """The messages as backends take them; the same list where there is nothing to mend."""
    mended, kinds = repair(messages, rules)
    if kinds:
        journal.tell(Mended(tuple(kinds)))
    return mended


def _rules(model: str, request: Request) -> RepairRules:
    """What has to be mended for this model; an answer that the client wants continued stays, though it be empty."""
    return replace(rules_for(model), keep_last=True) if request.continues else rules_for(model)


def _without_status(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without status text; the client's own list where there is none."""
    clean = clean_history(messages)
    return messages if all(a is b for a, b in zip(messages, clean, strict=True)) else clean


def tenant(exchange: Exchange) -> str:
    """A digest of the client's credential: histories of different credentials never meet."""
    credential = exchange.header(b"authorization") or exchange.header(b"x-api-key") or ""
    return blake2b(credential.encode(), digest_size=12, person=b"spillway-tenant").hexdigest()

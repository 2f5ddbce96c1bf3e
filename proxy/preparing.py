"""Preparing a request: shape and repair it, write tools as text where they are emulated, apply a checkpoint, count."""

from collections.abc import Sequence
from dataclasses import replace

from proxy.addon import AddOn, AddOns
from proxy.backends.profile import RepairRules, value_of
from proxy.compaction.continuation import with_resume_flags
from proxy.compaction.ladder import within_limits
from proxy.compaction.policy import prune_limits
from proxy.conversation_state import ConversationState, conversation_of
from proxy.core.history.checkpoint import NO_DIGITS, RUN, Checkpoint, links, message_digest, overlap, run_ends
from proxy.core.jsontext import HEAVY, is_heavy
from proxy.core.request import Message, Request, leading_system, text_of
from proxy.counting import Counting
from proxy.emulation.offer import offer_to_emulate
from proxy.emulation.prompt import emulated
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.prompt import OfferedTools, Prompt
from proxy.shaping.repair import repair, tidied, without_binary
from proxy.shaping.shape import ShapedPart, shaped, steps
from proxy.store import Store

HEAVY_BODY = 4 * HEAVY
"""Weight of a body above which it is shaped, cleaned and chained in a thread, off the event loop."""

_NEWEST = 256
"""Places, from the newest message back, at which a history is searched for messages that it shares with an earlier one."""


def may_offer(job: Job, request: Request) -> bool:
    """Return whether a request may be given tools that Spillway answers.

    The criteria give the same result on every turn of a conversation, so its prompts always begin with the same tools. Background
    tasks, structured answers and several choices get none.
    """
    prefilled = request.continues or not request.messages or request.messages[-1].get("role") == "assistant"
    odd = request.structured or prefilled or request.body.get("logprobs") or request.choices > 1
    listed = isinstance(request.body.get("tools") or [], list)
    return job.profile.window is not None and listed and not (odd or job.background or request.background)


def build_prompt(job: Job, offered: OfferedTools, *, emulate: bool) -> tuple[Prompt, Sequence[str]]:
    """Build the prompt of a job, and the kinds of repairs that its history needed.

    `emulate`: the backend has refused tools. May take long; usable from a thread.
    """
    model, request, restored = job.route.model, offered.request, job.request.restored
    lacks_tools = emulate or value_of(job.profile.tools) is False
    offer = offer_to_emulate(request) if lacks_tools and job.settings.tool_mode != "native" else None
    # An answer that the client wants continued stays, even if it is empty.
    rules = replace(job.template_rules, keep_last=request.continues)
    # If tools become text, repair calls and results first, while they can still be recognised, and roles afterwards.
    messages, repairs = tidied(request.messages, rules if offer is None else RepairRules())
    if offer is not None:
        request = emulated(request, offer, messages, system=not rules.alternate)
        messages, more = repair(request.messages, rules)
        repairs = (*repairs, *more)
    if job.window is not None and (request.raw is None or len(request.raw) > job.window // 4):
        messages = without_binary(messages, job.window)
    as_received = messages is request.messages and not restored
    if request.continues and not rules.ends_with_user:
        request = with_resume_flags(request, job.ways[0])
    lead = leading_system(messages)
    sent = messages[lead:]
    if restored:
        sent, _ = repair([*restored, *sent], rules)
    shown = limited(job, sent)
    digests, recognised = [*map(message_digest, sent)], len(sent) > RUN and not job.managed.hands_over
    prompt = Prompt(
        request=request,
        offer=offer,
        builtin=offered.builtin,
        system=messages[:lead],
        sent=sent,
        digests=digests,
        known={id(message): (message, digest) for message, digest in zip(sent, digests, strict=True)},
        links=links(digests),
        run_ends=run_ends(sent, digests, _owner_of_runs(job)) if recognised else {},
        shown=shown,
        as_received=as_received,
        capped=frozenset(i for i, (old, new) in enumerate(zip(sent, shown, strict=True)) if new is not old),
        fields={} if model == request.model else {"model": model},
        rules=rules,
    )
    return prompt, repairs


def _owner_of_runs(job: Job) -> str:
    """Return what a history has to share with one that it goes on with, so that runs of messages tell."""
    # The same system prompt, apart from digits (it may contain a clock), and the same name from the client.
    system = job.request.messages[: leading_system(job.request.messages)]
    return "\n".join([conversation_of(job.exchange, job.request), *(text_of(m).translate(NO_DIGITS) for m in system)])


def limited(job: Job, messages: Sequence[Message]) -> Sequence[Message]:
    """Bring the results of a history within the limits, if these apply from the first request on."""
    limits = None if job.profile.window is None else prune_limits(job.settings, job.profile.window.value)
    if limits is None or not limits.from_the_first:
        return messages
    return within_limits(messages, limits)


class Preparer:
    """Prepares jobs."""

    def __init__(self, *, counting: Counting, store: Store, state: ConversationState, addons: AddOns) -> None:
        self._counting = counting
        self._addons = addons
        self._store = store
        self._state = state

    async def prepare(self, job: Job) -> None:
        """Prepare a job until its prompt can be decided on.

        If the client runs a compaction of its own and there is no room for its tools, they are left out, unless the model has to call one.
        """
        await job.read_profile()
        await self.prepare_again(job)
        request = job.request
        if job.managed.hands_over and job.is_due and request.body.get("tool_choice") in (None, "auto", "none"):
            # A model that need not call tools needs no definitions of them, so their room goes to the history.
            less = dict.fromkeys(("tools", "tool_choice") & request.body.keys())
            # The policy shapes the rest depending on the tools, so shape before they are removed.
            parts = steps(request, job.settings, job.window)
            front = parts[-1].after if parts else request
            job.request = request.changed(**less, messages=front.messages)
            await self.prepare_again(job)

    async def load(self, job: Job) -> None:
        """Load a model whose profile is provisional, and prepare the job for its true window.

        A known window with room to spare needs no loading here if the backend enforces it by an error: then the request
        itself loads the model, and llama-swap can show the client its progress.
        """
        # Unless a model is loaded first, a default is taken for its window: a chat of 9,300 tokens for a model with 32k
        # was shortened to 2,000, with five summaries, and the checkpoint was applied for 30 days.
        before = job.profile.window
        if before is None or job.is_due or job.known_backend.shifts_silently:
            request, earlier = job.route.known.window_request, job.route.known.window_request.became
            await job.read_profile(load=True)
            if request.became != earlier:
                job.outcome.add("window_requested", became=request.became, tokens=request.granted)
            window = job.profile.window
            if window is not None and (before is None or before.value != window.value):
                await self.prepare(job)

    async def prepare_again(self, job: Job, *, emulate: bool = False) -> None:
        """Prepare a job by its present profile.

        `emulate`: write its tools as text, because the backend has refused them.
        """
        heavy = is_heavy(job.request.body, HEAVY_BODY)
        offered = OfferedTools(*await offload_if(heavy, shaped, job.request, job.settings, job.window))
        for addon in self._addons.at(AddOn.offer):
            await addon.offer(job, offered, emulate=emulate)
        parts = offered.parts
        job.prompt, repairs = await offload_if(heavy, build_prompt, job, offered, emulate=emulate)
        if repairs:
            job.outcome.add("mended", kinds=tuple(repairs))
        resumed = await self._resumed(job) if job.prompt.run_ends else None
        for addon in self._addons.at(AddOn.complete):
            await addon.complete(job)
        prompt, edited = job.prompt, job.prompt.sent
        if prompt.request.edits:
            edited, job.managed.cleared = await self._state.edit(job.route, prompt.request, prompt.system, edited)
            job.prompt = replace(prompt, shown=await offload_if(heavy, limited, job, edited))
        checkpoint = await self._checkpoint(job, resumed)
        if checkpoint is not None:
            job.prompt = job.prompt.begun_with(checkpoint)
        tenant, body = job.exchange.tenant, job.prompt.body()
        job.estimate = await self._counting.measure(job.route, job.profile, body, tenant=tenant, known=job.prompt.known)
        if parts or job.prompt.shown is not edited:
            await self._record_savings(job, edited, parts)
        job.record_measured()
        for addon in self._addons.at(AddOn.enrich):
            await addon.enrich(job)

    async def _resumed(self, job: Job) -> Checkpoint | None:
        """Recognise a conversation whose client left out or replaced messages; return the checkpoint of the missing part."""
        # A client that sends the newest forty messages had its history shortened on every turn, since no checkpoint
        # begins such a history. Over 70 turns in a window of 8k, this brought 35 reductions in the last 35 turns down
        # to 6.
        prompt, ends = job.prompt, job.prompt.run_ends
        names = [key for key, end in ends.items() if end < len(prompt.sent)][: -_NEWEST - 1 : -1]
        while (found := await self._store.find(job.scope, names)) is not None:
            names = names[names.index(found.digest) + 1 :]
            origin = await self._store.find(job.scope, [bytes.fromhex(found.replacement[0]["checkpoint"])])
            if origin is None:
                continue
            first = overlap(origin.run, prompt.sent, prompt.digests, end := ends[found.digest])
            # An overlap alone may be that of an edited branch; the checkpoint's link in the chain shows that it leads there.
            resumed = None if first is None else prompt.resumed(origin.run, end, first, origin.digest)
            if resumed is not None:
                job.prompt = resumed
                return origin
        return None

    async def _checkpoint(self, job: Job, resumed: Checkpoint | None) -> Checkpoint | None:
        """Find the checkpoint to apply: the longest one, unless it was made for a smaller window and this one has more room.

        In that case the next shorter one is applied, or none, as long as the prompt stays below the trigger.
        """
        # A client's own compaction needs everything that it sends, so no checkpoint is applied. Otherwise the newest
        # message is never covered, not even if the same conversation was run before.
        prompt, window = job.prompt, job.profile.window

        async def longest(end: int) -> Checkpoint | None:
            found = await self._store.find(job.scope, prompt.links[: max(0, end)][::-1])
            return None if found is None else prompt.placed(found)

        found = None if job.managed.hands_over else await longest(len(prompt.sent) - 1)
        if found is None and resumed is not None and resumed.digest not in prompt.links:
            found = prompt.placed(resumed)
        if resumed is not None and found is not None and 4 * prompt.run_end < 3 * len(prompt.sent):
            await self._store.put(prompt.recognised_by(found, len(prompt.sent)))
        # A job that replaces extracts skips them, unless the client no longer sends the messages: then nothing else is
        # left of them.
        while found is not None and job.rewrites and found.by == "extract" and not prompt.misses_messages:
            found = await longest(found.covered - 1)
        while found is not None and window is not None and found.window < window.value:
            shorter = await longest(found.covered - 1)
            history = prompt.shown if shorter is None else prompt.with_checkpoint(shorter)
            body = {**prompt.request.body, "messages": [*prompt.system, *history]}
            job.estimate = await self._counting.measure(job.route, job.profile, body)
            if job.is_due:
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
            job.outcome.sent.shaped = await offload_if(is_heavy(edited), saved)
            job.outcome.add("shaped", saved=tuple(job.outcome.sent.shaped.items()))

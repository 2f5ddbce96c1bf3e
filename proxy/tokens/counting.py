"""Counting prompts: the meter, what the store remembers of it, and exact counts from the backend."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from proxy.backends.profile import ModelKey, ModelProfile, Trust
from proxy.core.history.turns import is_result
from proxy.core.piece import whole_number
from proxy.net.tasks import spawn
from proxy.store import Store
from proxy.tokens.meter import Estimate, Meter, Observation
from proxy.tokens.windows import CutSeen, Filled

if TYPE_CHECKING:
    from proxy.compaction.budget import ContextBudget
    from proxy.job import Job
    from proxy.routing import Route
    from proxy.stream.answer import Answer

EXACT_TIMEOUT = 0.5
"""Seconds that an exact count near a threshold may hold up a request."""
SAVE_EVERY = 60.0
"""Seconds between two writes of what was learned of a model."""
MOST_CUT = 4096
"""Conversations remembered as cut."""


class Counting:
    """Measures jobs and learns from what backends report. Learned weights survive in the store."""

    def __init__(self, *, meter: Meter, store: Store) -> None:
        self.meter = meter
        self._store = store
        self._loaded: set[ModelKey] = set()
        self._unsaved: dict[ModelKey, float] = {}
        """Models of which something new was learned, and since when."""
        self._counted_tools: set[tuple[ModelKey, bytes]] = set()
        self._cut: dict[tuple[str, bytes], None] = {}

    async def measure(
        self, route: Route, profile: ModelProfile, body: Mapping[str, Any], *, tenant: str = ""
    ) -> Estimate:
        """Estimate the prompt tokens of a body for a model.

        Raises:
            BadRequest: something in it is nested too deeply to be counted.
        """
        key, tokenizer = route.key, profile.tokenizer
        if tokenizer is None:
            self.meter.set_tokenizer(key)
        elif tokenizer.trust is Trust.USER:
            self.meter.set_tokenizer(key, override=tokenizer.value)
        else:
            self.meter.set_tokenizer(key, hint=tokenizer.value)
        if key not in self._loaded:
            self._loaded.add(key)
            try:
                await self._load(key)
            except asyncio.CancelledError:  # the client has left: the next one finds it not loaded yet
                self._loaded.discard(key)
                raise
        return await self.meter.measure(key, body, tenant=tenant)

    async def exact_count(self, route: Route, body: Mapping[str, Any]) -> int:
        """Prompt tokens of a body as the backend counts them; an estimate where it does not, or not soon."""
        prober, model = route.upstream.prober, route.model
        named = {**body, "model": model}
        try:
            async with asyncio.timeout(10 * EXACT_TIMEOUT):
                if (exact := await prober.count(named)) is not None:
                    return exact
        except TimeoutError:
            pass
        return (await self.measure(route, await route.profile(named), named)).tokens

    async def refine(self, job: Job, budget: ContextBudget) -> bool:
        """Refresh the facts before a decision to compact: the current window, and the exact count.

        The backend counts, for a moment, where the decision hangs on the estimate's error, or how much of a result has to go
        that the model has not read. The first request with other tools than before is counted exactly in the background.

        Returns whether the prompt may be due; most are so far from it that neither has to be looked at.
        """
        estimate, recalled = job.prompt.estimate, job.prompt.recalled
        most, passing = estimate.upper, recalled.newest_tokens
        if not (recalled.cramped or budget.needs_compaction(most, most, passing=passing)):
            self._count_new_tools(job, estimate)
            return False
        if job.is_due:
            if (now := await self._read_window(job)) is None:
                return True
            budget = now
        due = partial(budget.needs_compaction, passing=passing)
        doubt = estimate.upper - estimate.tokens
        surely = due(estimate.tokens - doubt, estimate.tokens)
        doubtful = not surely or any(map(is_result, job.prompt.sent[-1:]))
        if due(most, most) and doubtful and estimate.source != "backend":
            await self._count_exactly(job, EXACT_TIMEOUT)
        else:
            self._count_new_tools(job, estimate)
        return True

    def _count_new_tools(self, job: Job, estimate: Estimate) -> None:
        """Have the first request with these tools counted, unless it is."""
        if estimate.source == "backend" or not job.prompt.request.body.get("tools"):
            return
        known = (job.key, estimate.scope)
        if known not in self._counted_tools:
            self._counted_tools.add(known)
            self.count_soon(job)

    async def _read_window(self, job: Job) -> ContextBudget | None:
        """Read the current budget: the model may have been reloaded since its window was read."""
        before = job.profile.window
        job.profile = await job.route.profile(job.asked.body, fresh=True)
        if job.profile.window != before:
            job.measured()
        return job.budget

    async def confirm_count(self, job: Job) -> None:
        """Have the backend count, for a moment, a prompt that is about to be refused by its estimate."""
        if not job.prompt.estimate.counted:
            await self._count_exactly(job, EXACT_TIMEOUT)

    async def count_completion(self, job: Job, answer: Answer) -> None:
        """Have the backend count the first attempt's completion of an answer that is to be resumed.

        It was counted delta by delta, and one may hold several tokens: vLLM puts all into it that were made since the last.
        """
        attempt = answer.attempt
        counted = attempt.counted or attempt.calling or attempt.completion_tokens != answer.completion_tokens
        if counted or not answer.size:
            return
        # Between other words, because of templates that trim.
        texts = (f"a\n{text}\na" for text in (answer.reasoning + answer.text, "a"))
        bodies = ({"model": job.route.model, "messages": [{"role": "user", "content": each}]} for each in texts)
        try:
            async with asyncio.timeout(EXACT_TIMEOUT):
                with_it, without = await asyncio.gather(*map(job.route.upstream.prober.count, bodies))
        except TimeoutError:
            return
        if with_it is not None and without is not None:
            attempt.completion_tokens = max(1, with_it - without + 1) + attempt.dropped

    def count_soon(self, job: Job) -> None:
        """Have the backend count in the background: its figure anchors what comes after."""
        spawn(self._count_exactly(job, 10 * EXACT_TIMEOUT), name="exact-count")

    async def _count_exactly(self, job: Job, seconds: float) -> None:
        estimate = job.prompt.estimate
        try:
            async with asyncio.timeout(seconds):
                exact = await job.route.upstream.prober.count(job.body())
        except TimeoutError:
            return
        if exact is not None:
            self.meter.anchor_exact(estimate, exact)
            job.prompt.estimate = await self.meter.measure(job.key, job.body(), tenant=job.exchange.tenant)
            job.measured()

    def observe(self, job: Job, estimate: Estimate, usage: Mapping[str, Any], *, finish: str | None = None) -> None:
        """Learn from the usage that a backend reported for a request, and from why its answer ended (`finish`)."""
        reported = usage.get("prompt_tokens")
        if not isinstance(reported, int) or reported <= 0:
            return
        _record_reused(job, usage)
        if not self._believed(job, estimate, reported):
            return
        self._fitted(job, reported, whole_number(usage.get("completion_tokens")), finish)

    def named(self, job: Job, model: str) -> None:
        """Record the model's name in the backend's answer; empty: it had none."""
        if model:
            job.route.upstream.prober.answered_as(job.route.model, model)

    def was_cut(self, job: Job) -> bool:
        """Return whether the backend cut an earlier prompt of this conversation, so that it is due for compaction."""
        return bool(self._cut) and any((job.scope, link) in self._cut for link in job.prompt.links)

    def compacted(self, job: Job) -> None:
        """Forget that the backend cut this conversation before it was compacted, and have the new prompt counted."""
        for link in job.prompt.links:
            self._cut.pop((job.scope, link), None)
        self.count_soon(job)

    async def save(self) -> None:
        """Write what is not written yet."""
        for key in list(self._unsaved):
            await self._save(key)

    def _was_cut(self, job: Job, estimate: Estimate, reported: int) -> None:
        job.outcome.add("cut", expected=estimate.tokens, reported=reported)
        job.state.cut = True
        conversation = b""
        if job.prompt.links:
            conversation = job.scope.encode() + job.prompt.links[0]
            self._cut[job.scope, job.prompt.links[-1]] = None
            while len(self._cut) > MOST_CUT:
                del self._cut[next(iter(self._cut))]
        if job.loads_window:
            return
        seen = CutSeen(estimate.tokens, reported, conversation)
        self._learned(job, job.route.upstream.prober.learn_cut(job.route.model, seen), "silent cut")

    def _believed(self, job: Job, estimate: Estimate, reported: int) -> bool:
        """Check a report against the estimate and learn from it; False: it is not believed."""
        prober = job.route.upstream.prober
        backend = prober.known_backend
        window = job.profile.window if job.loads_window else prober.reported_window(job.route.model)
        verdict = self.meter.observe(
            estimate,
            reported,
            window=window.value if window is not None else None,
            may_cut=backend is not None and backend.shifts_silently,
        )
        if verdict is Observation.CUT:
            self._was_cut(job, estimate, reported)
        if window is not None and reported > window.value:
            prober.expire(job.route.model)
        if verdict is not Observation.ACCEPTED:
            return False
        key, now = job.key, job.outcome.clock()
        if now - self._unsaved.setdefault(key, now) >= SAVE_EVERY:
            spawn(self._save(key), name="save-weights")
        return True

    def _fitted(self, job: Job, prompt: int, completion: int, finish: str | None) -> None:
        """Learn from a prompt and answer that fitted: the window is no smaller, and if they filled it no larger."""
        if job.loads_window:
            return
        route, request = job.route, job.prompt.request
        prober, model = route.upstream.prober, route.model
        backend = prober.known_backend
        # Where the window shifts, a long answer proves nothing; of several, each had the window to itself.
        together = backend is not None and not backend.shifts_silently and request.choices == 1
        tokens = prompt + completion if together else prompt
        ended = finish == "length" and together and not request.capped and completion > 0
        if (disproved := prober.answered(model, tokens, ended=ended)) is not None:
            job.outcome.add("window_disproved", window=disproved, tokens=tokens)
        if ended and job.profile.window is None:
            self._learned(job, prober.learn_filled(model, Filled(prompt, completion)), "filled")

    def _learned(self, job: Job, window: int | None, origin: str) -> None:
        believed = job.profile.window.value if job.profile.window is not None else None
        if window is not None and window != believed:
            job.outcome.add("window_learned", window=window, origin=origin, before=believed)

    async def _save(self, key: ModelKey) -> None:
        self._unsaved.pop(key, None)
        await self._store.value(_state_key(key), self.meter.dump(key))

    async def _load(self, key: ModelKey) -> None:
        if (learned := await self._store.value(_state_key(key))) is not None:
            self.meter.load(key, learned)


def _state_key(key: ModelKey) -> str:
    return "meter|" + "|".join(key)


def _record_reused(job: Job, usage: Mapping[str, Any]) -> None:
    """Record how many tokens of the first attempt's prompt the backend had in its cache."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if isinstance(cached, int) and cached >= 0 and job.outcome.reused is None:
        job.outcome.record_reused(cached)

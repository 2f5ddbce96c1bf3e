"""Counting prompts: the meter, its learned weights in the store, and exact counts from the backend."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.backends.base import UNKNOWN
from proxy.backends.profile import ModelKey, ModelProfile, Trust, value_of
from proxy.backends.windows import CutSeen
from proxy.compaction.decision import Forward, decide
from proxy.core.history.checkpoint import NO_DIGESTS, Digests
from proxy.core.jsontext import dig
from proxy.core.piece import as_count
from proxy.job import Job
from proxy.net.tasks import spawn
from proxy.routing import Route
from proxy.store import Store
from proxy.stream.answer import Answer
from proxy.tokens.cache import Cache
from proxy.tokens.meter import Estimate, Meter, Observation

EXACT_TIMEOUT = 0.5
"""Seconds that an exact count near a threshold may delay a request."""
SAVE_EVERY = 60.0
"""Seconds between two writes of a model's learned weights."""
MOST_CUT = 4096
"""Most conversations remembered as cut."""
_LEAST_READ, _LEAST_WRITTEN = 50, 16
"""Fewest tokens, read and written, whose time says anything about the pace: for fewer, overheads dominate."""
_TIMES = (("prompt_ms", "prompt_eval_duration"), ("predicted_ms", "eval_duration"))
"""Names of the times to read the prompt and to write the answer, in llama-server's timings and in Ollama's usage."""
_REUSED_SHARE, _CACHE_BLOCKS = 0.8, 32
"""Cached tokens below this share of the repeated ones, less whole cache blocks (vLLM: 16 tokens), count as not reused."""


class Pace(NamedTuple):
    """Tokens that a backend reads and writes per second; infinite if unknown."""

    read: float = math.inf
    written: float = math.inf


class Counting:
    """Measures jobs and learns from what backends report. Learned weights survive in the store."""

    def __init__(self, *, meter: Meter, store: Store) -> None:
        self.meter = meter
        self._store = store
        self._unsaved: dict[ModelKey, float] = {}
        """Models with unsaved weights, each with the time of its first unsaved report, in seconds."""
        self._cut: dict[tuple[str, bytes], None] = {}
        self._paces = Cache[ModelKey, Pace](meter.memory)

    async def measure(
        self,
        route: Route,
        profile: ModelProfile,
        body: Mapping[str, Any],
        *,
        tenant: str = "",
        known: Digests = NO_DIGESTS,
    ) -> Estimate:
        """Estimate the prompt tokens of a body for a model."""
        key, tokenizer = route.key, profile.tokenizer
        name = value_of(tokenizer)
        chosen = tokenizer is not None and tokenizer.trust is Trust.USER
        model = self.meter.model(key)
        model.resolve(hint=None if chosen else name, override=name if chosen else None)
        if not model.restored:
            learned = await self._store.value(_state_key(key))
            model.restored = True
            if learned is not None:
                model.load(learned)
        return await self.meter.measure(key, body, tenant=tenant, known=known)

    async def recount(self, job: Job) -> None:
        """Count the prompt of a job again, after a change."""
        prompt = job.prompt
        estimate = await self.meter.measure(job.key, prompt.body(), tenant=job.exchange.tenant, known=prompt.known)
        if job.prompt is prompt:  # otherwise who replaced it meanwhile counts it
            job.estimate = estimate
            job.record_measured()

    async def exact_count(self, route: Route, body: Mapping[str, Any]) -> int:
        """Return a body's prompt tokens as counted by the backend, or an estimate if it does not count, or not in time."""
        named = {**body, "model": route.model}
        exact = await _count(route, named, 10 * EXACT_TIMEOUT)
        return (await self.measure(route, await route.profile(named), named)).tokens if exact is None else exact

    async def refresh(self, job: Job) -> None:
        """Refresh the facts before a decision about a prompt, as far as they matter: the current window, and the count.

        Most prompts are so far from a compaction that nothing is refreshed. The backend gets a moment to count the others.
        """
        facts = job.facts
        if isinstance(decide(job.budget, facts._replace(tokens=facts.upper)), Forward):
            return
        if job.is_due:  # the model may have been reloaded since its window was read
            before = job.profile.window
            await job.read_profile(fresh=True)
            if job.profile.window != before:
                job.record_measured()
        if job.budget is not None and job.estimate.source != "backend":
            # Also where the history has to be shortened in any case: how far is planned by what the count teaches.
            await asyncio.wait({self.count_soon(job)}, timeout=EXACT_TIMEOUT)

    async def confirm_count(self, job: Job) -> None:
        """Give the backend a moment to count a prompt on whose estimate a decision depends."""
        if not job.estimate.counted:
            await self._count_exactly(job, EXACT_TIMEOUT)

    async def count_completion(self, route: Route, answer: Answer) -> None:
        """Have the backend count the first attempt's completion before the answer is resumed.

        Until now it was counted by deltas, but a delta may hold several tokens: vLLM puts all new ones into the next.
        """
        attempt = answer.attempt
        counted = attempt.counted or attempt.calling or attempt.completion_tokens != answer.completion_tokens
        if counted or not answer.size:
            return
        # Put the text between other words, because templates trim white space.
        texts = (f"a\n{text}\na" for text in (answer.reasoning + answer.text, "a"))
        bodies = ({"model": route.model, "messages": [{"role": "user", "content": each}]} for each in texts)
        counts = (_count(route, body, EXACT_TIMEOUT) for body in bodies)
        with_it, without = await asyncio.gather(*counts)
        if with_it is not None and without is not None:
            attempt.completion_tokens = max(1, with_it - without + 1) + attempt.dropped

    def count_soon(self, job: Job) -> asyncio.Task[None]:
        """Have the backend count in the background: its figure becomes the anchor of later prompts."""
        return spawn(self._count_exactly(job, 10 * EXACT_TIMEOUT), name="exact-count")

    async def _count_exactly(self, job: Job, seconds: float) -> None:
        body = job.prompt.body()
        exact = await _count(job.route, body, seconds)
        if exact is not None:
            # A job's estimate may still be that of its last prompt.
            self.meter.anchor_exact(await self.meter.measure(job.key, body, tenant=job.exchange.tenant), exact)
            await self.recount(job)

    def observe(self, job: Job, estimate: Estimate, usage: Mapping[str, Any], *, finish: str | None = None) -> None:
        """Learn from the usage that a backend reported for a request, and from why its answer ended (`finish`)."""
        reported = usage.get("prompt_tokens")
        if not isinstance(reported, int) or reported <= 0:
            return
        _record_reused(job, usage)
        known = job.route.known
        window = job.profile.window if job.loads_window else known.reported_window
        may_cut = job.known_backend.shifts_silently
        verdict = self.meter.observe(estimate, reported, window=value_of(window), may_cut=may_cut)
        if window is not None and reported > window.value:
            known.doubt(window)
        if verdict is Observation.CUT:
            self._learn_cut(job, estimate, reported)
        if verdict is not Observation.ACCEPTED:
            return
        key, now = job.key, job.outcome.clock()
        if now - self._unsaved.setdefault(key, now) >= SAVE_EVERY:
            spawn(self._save(key), name="save-weights")
        if not job.loads_window:
            _learn_fitted(job, reported, as_count(usage.get("completion_tokens")), finish)

    def pace(self, key: ModelKey) -> Pace:
        """Return the recent pace of a model; infinite if unknown."""
        return self._paces.get(key) or Pace()

    def learn_pace(self, job: Job, timings: Mapping[str, Any]) -> None:
        """Learn a model's pace from what the engine says it took, or the time of a streamed turn to its first word, and after it."""
        outcome, usage = job.outcome, job.outcome.usage
        if outcome.first_byte is None or outcome.counts["sent"] != 1 or usage is None:
            return
        sent = outcome.sent
        reused = (sent.repeated or 0) if sent.reused is None else sent.reused
        waited, took = (as_count(timings.get(name)) / 1e3 or as_count(usage.get(other)) / 1e9 for name, other in _TIMES)
        if not (waited and took):
            if not job.request.stream:
                return
            waited = outcome.first_byte - outcome.shortened.compaction_seconds
            took = outcome.clock() - outcome.since - outcome.first_byte
        read, written = as_count(usage.get("prompt_tokens")) - reused, as_count(usage.get("completion_tokens"))
        before = self._paces.get(job.key) or Pace()
        pace = Pace(
            _smoothed(before.read, read, waited) if read >= _LEAST_READ else before.read,
            _smoothed(before.written, written, took) if written >= _LEAST_WRITTEN else before.written,
        )
        self._paces.put(job.key, pace, 0)

    def was_cut(self, job: Job) -> bool:
        """Return whether the backend cut an earlier prompt of this conversation, so that it is due for compaction."""
        return bool(self._cut) and any((job.scope, link) in self._cut for link in job.prompt.links)

    def compacted(self, job: Job) -> None:
        """Forget that the backend cut this conversation before the compaction, and have the new prompt counted."""
        for link in job.prompt.links:
            self._cut.pop((job.scope, link), None)
        self.count_soon(job)

    async def save(self) -> None:
        """Save all unsaved weights."""
        for key in list(self._unsaved):
            await self._save(key)

    def _learn_cut(self, job: Job, estimate: Estimate, reported: int) -> None:
        """Learn from a prompt that the backend silently cut."""
        job.outcome.add("cut", expected=estimate.tokens, reported=reported)
        conversation = b""
        if job.prompt.links:
            conversation = job.scope.encode() + job.prompt.links[0]
            self._cut[job.scope, job.prompt.links[-1]] = None
            while len(self._cut) > MOST_CUT:
                del self._cut[next(iter(self._cut))]
        if not job.loads_window:
            seen = CutSeen(estimate.tokens, reported, conversation)
            before, window = value_of(job.profile.window), job.route.known.learn_cut(seen)
            if window not in (None, before):
                job.outcome.add("window_learned", window=window, origin="silent cut", before=before)

    async def _save(self, key: ModelKey) -> None:
        self._unsaved.pop(key, None)
        await self._store.value(_state_key(key), self.meter.model(key).dump())


async def _count(route: Route, body: dict[str, Any], seconds: float) -> int | None:
    """Have the backend count a body; returns None if it can't, or not within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await route.prober.count(body)
    except TimeoutError:
        return None


def _learn_fitted(job: Job, prompt: int, completion: int, finish: str | None) -> None:
    """Learn from a prompt and an answer that fitted together: the window is at least as large."""
    known, request = job.route.known, job.prompt.request
    backend = job.known_backend
    # Where the window shifts, a long answer proves nothing. Several answers prove nothing either: each had the window
    # to itself.
    together = backend is not UNKNOWN and not backend.shifts_silently and request.choices == 1
    tokens = prompt + completion if together else prompt
    ended = finish == "length" and together and request.max_tokens is None and completion > 0
    if (disproved := known.answered(tokens, ended=ended)) is not None:
        job.outcome.add("window_disproved", window=disproved, tokens=tokens)


def _record_reused(job: Job, usage: Mapping[str, Any]) -> None:
    """Record how many tokens of the first attempt's prompt the backend had in its cache."""
    cached, sent = dig(usage, "prompt_tokens_details", "cached_tokens"), job.outcome.sent
    if isinstance(cached, int) and cached >= 0 and sent.reused is None:
        sent.reused = cached
        if not sent.unlike and cached < (sent.repeated or 0) * _REUSED_SHARE - _CACHE_BLOCKS:
            sent.unlike = "backend"
        job.outcome.add("reused", tokens=cached)


def _smoothed(before: float, tokens: int, seconds: float) -> float:
    """Return the mean of a pace's earlier value and the present one."""
    now = tokens / max(1e-3, seconds)
    return now if math.isinf(before) else (before + now) / 2


def _state_key(key: ModelKey) -> str:
    return "meter|" + "|".join(key)

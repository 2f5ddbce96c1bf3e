"""Opening the next attempt of a paused answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from proxy.answer.answer import Answer
from proxy.answer.events import Correct
from proxy.backends.overflow import Overflow, recognise
from proxy.backends.profile import Continuation
from proxy.errors import UpstreamUnavailable
from proxy.net.headers import uncompressed
from proxy.net.inflate import readable
from proxy.neutral.request import Message
from proxy.shortening.continuation import ContinuationRequest, Partial, Said, continuation, shorten_said
from proxy.stages.compacting import Compactor
from proxy.stages.job import Job
from proxy.stages.pooling import was_cleared
from proxy.stages.sending import Sender, bounded_answer, buffered, is_event_stream
from proxy.stages.summarising import drive
from proxy.telemetry import Telemetry
from proxy.tokens.meter import Estimate, Meter
from proxy.wire.jsontext import dumps

_log = logging.getLogger("spillway.resume")

SAID_SHARE = 0.15
"""Fraction of the window that what was said so far may take in the next prompt."""
_NOT_COPIED = (
    *("max_tokens", "max_completion_tokens", "n_predict", "stream_options", "stream"),
    *("continue_final_message", "add_generation_prompt"),
)


@dataclass(slots=True)
class Attempted:
    """A next attempt that is open."""

    response: httpx.Response
    estimate: Estimate
    request: ContinuationRequest
    bound: int | None
    """`max_tokens` it was sent with."""


@dataclass(slots=True)
class Progress:
    """What is kept of one answer between its resumes."""

    said: Said = field(default_factory=Said)
    thought: Said = field(default_factory=Said)
    hidden: bool = False
    """Nobody has seen the answer yet, so its last word can be taken back."""
    gap: str = ""
    """White space before the word that was taken back."""
    how: Continuation | None = None
    """The way in which the running attempt was asked for."""


class Resumer:
    """Compacts and asks the backend to go on. What it refuses, or begins anew, is remembered for its model."""

    def __init__(self, *, compactor: Compactor, sender: Sender, meter: Meter, telemetry: Telemetry) -> None:
        self._compactor = compactor
        self._sender = sender
        self._meter = meter
        self._telemetry = telemetry

    async def resume(self, job: Job, answer: Answer, progress: Progress) -> Attempted | None:
        """Open the next attempt; None when there is no way to go on.

        Raises:
            UpstreamUnavailable: the backend can't be reached.
        """
        budget = job.budget
        if budget is None:
            return None
        if answer.attempt.restarted and progress.how is not None:
            await self._refuse(job, progress.how, "began its answer anew")
            if progress.how is Continuation.QUOTE:
                return None
        for how in self._ways(job):
            tried = await self._go_on(job, answer, progress, how)
            if isinstance(tried, Attempted):
                self._telemetry.resumed(job.key, how.value)
                progress.how = how
                return tried
            if isinstance(tried, Overflow):
                return None
            await self._refuse(job, how, "refused to go on")
        return None

    async def _go_on(
        self, job: Job, answer: Answer, progress: Progress, how: Continuation
    ) -> Attempted | Overflow | None:
        """Ask in one way; None if it is not understood."""
        budget = job.budget
        assert budget is not None
        if progress.hidden and not answer.attempt.calling and not _goes_on_exactly(job, answer, how):
            progress.gap = answer.cut_back()
        partial = await self._shortened(job, answer, progress, budget.window * SAID_SHARE)
        said = sum(self._cost(job)([{"role": "assistant", "content": partial.text or partial.thought}]))
        if job.estimate.tokens + said > budget.goal and not answer.attempt.cleared:
            await self._compactor.compact(job, goal=max(1, int(budget.goal - said)))
        shortened = False
        while True:
            request = continuation(job.messages, partial, how, thoughts=_thinks_on(job))
            tried = await self._try(job, answer, request)
            if not isinstance(tried, Overflow):
                return tried
            if was_cleared(job, tried):
                await self._sender.pool.wait(job)
            elif shortened or not await self._sender.shorten(job, tried, 1):
                return tried
            else:
                shortened = True

    async def correct(self, job: Job, answer: Answer, correction: Correct) -> Attempted | None:
        """Ask once more for a tool call that could not be made; None if the backend does not take that.

        Raises:
            UpstreamUnavailable: the backend can't be reached.
        """
        written: Message = {"role": "assistant", "content": answer.text + correction.written}
        complaint: Message = {"role": "user", "content": correction.complaint}
        request = ContinuationRequest([*job.messages, written, complaint], {}, exact=True)
        tried = await self._try(job, answer, request)
        return tried if isinstance(tried, Attempted) else None

    def _ways(self, job: Job) -> list[Continuation]:
        backend = job.route.upstream.prober.known_backend
        return job.profile.ways(backend.continuations if backend is not None else ())

    async def _refuse(self, job: Job, how: Continuation, why: str) -> None:
        """Remember that this way does not work here. Quoting is never ruled out: it is all that remains."""
        _log.info("%s/%s %s: %s", *job.key, why, how.value)
        if how is not Continuation.QUOTE:
            prober = job.route.upstream.prober
            prober.refuse_continuation(job.route.model, how, why)
            job.profile = await prober.profile(job.route.model)

    def _cost(self, job: Job) -> Callable[[Any], list[float]]:
        return lambda messages: self._meter.costs(job.key, messages)

    async def _shortened(self, job: Job, answer: Answer, progress: Progress, room: float) -> Partial:
        """What was said so far, or thought if nothing was said, in `room` tokens."""
        budget = job.budget
        assert budget is not None
        text = answer.text
        thought = answer.reasoning if not text and answer.thinking else ""
        by = await self._compactor.summariser(job, budget, 0.0)
        so_far = progress.thought if thought else progress.said
        flow = shorten_said(text or thought, so_far, room=room, by=by, cost=self._cost(job))
        short = await drive(flow, partial(self._compactor.ask, job))
        return Partial(thought=short) if thought else Partial(text=short)

    async def _try(
        self, job: Job, answer: Answer, request: ContinuationRequest
    ) -> Attempted | Overflow | None:
        body = _body(job, request)
        estimate = await self._meter.measure(job.key, body)
        bound: dict[str, int] = {}
        if (budget := job.budget) is not None:
            end = budget.window if job.cancels else budget.pause_point
            bound = bounded_answer(job, end - estimate.upper, answer.said_tokens) or {}
        body |= bound
        upstream, exchange = job.route.upstream, job.exchange
        headers = uncompressed(exchange.headers)
        response = await upstream.send(
            "POST", exchange.target, headers, dumps(body), drop={b"content-encoding"}
        )
        plain = readable(response) if is_event_stream(response) else None
        if plain is not None:
            return Attempted(plain, estimate, request, min(bound.values(), default=None))
        response, refusal = await buffered(response)
        await response.aclose()
        if (overflow := recognise(response.status_code, refusal)) is not None:
            return overflow
        if response.status_code >= 500 or response.status_code in (401, 402, 403, 408, 429):
            raise UpstreamUnavailable(
                f"Backend {upstream.name} refused to go on: status {response.status_code}."
            )
        return None


def _goes_on_exactly(job: Job, answer: Answer, how: Continuation) -> bool:
    """Whether the next attempt can finish half a word."""
    return how is Continuation.FLAGS and (answer.has_text or _thinks_on(job))


def _thinks_on(job: Job) -> bool:
    backend = job.route.upstream.prober.known_backend
    return backend is not None and backend.continues_reasoning


def _body(job: Job, request: ContinuationRequest) -> dict[str, Any]:
    body = {name: value for name, value in job.body().items() if name not in _NOT_COPIED}
    messages: list[Message] = request.messages
    backend = job.route.upstream.prober.known_backend
    # These frames are rewritten in any case, so the backend may as well count in each of them.
    counts = dict(backend.ask_running_counts) if backend is not None else {}
    options = {"include_usage": True, **counts.pop("stream_options", {})}
    return {
        **body,
        **counts,
        "stream": True,
        "stream_options": options,
        **request.fields,
        "messages": messages,
    }

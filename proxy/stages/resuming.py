"""Opening the next attempt of a paused answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from proxy.core.continuation import ContinuationRequest, Said, continuation, shorten_said
from proxy.core.jsontext import dumps
from proxy.core.overflow import Overflow, recognise
from proxy.core.profile import Continuation
from proxy.core.request import Message
from proxy.core.stream.answer import Answer
from proxy.errors import UpstreamUnavailable
from proxy.net.headers import uncompressed
from proxy.net.inflate import readable
from proxy.stages.compacting import Compactor
from proxy.stages.sending import Sender, bounded_answer, buffered, is_event_stream
from proxy.stages.summarising import drive
from proxy.stages.turn import Turn
from proxy.telemetry import Telemetry
from proxy.tokens.meter import Estimate, Meter

_log = logging.getLogger("spillway.resume")

SAID_SHARE = 0.15
"""Fraction of the window that what was said so far may take in the next prompt."""
_NOT_COPIED = ("max_tokens", "max_completion_tokens", "n_predict", "stream_options", "stream")


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
    hidden: bool = False
    """Nobody has seen the answer yet, so its last word can be taken back."""
    gap: str = ""
    """White space before the word that was taken back."""


class Resumer:
    """Compacts and asks the backend to go on. Which way it understands is remembered per backend and model."""

    def __init__(self, *, compactor: Compactor, sender: Sender, meter: Meter, telemetry: Telemetry) -> None:
        self._compactor = compactor
        self._sender = sender
        self._meter = meter
        self._telemetry = telemetry
        self._refused: dict[tuple[str, str], set[Continuation]] = {}

    async def resume(self, turn: Turn, answer: Answer, progress: Progress) -> Attempted | None:
        """Open the next attempt; None when there is no way to go on.

        Raises:
            UpstreamUnavailable: the backend can't be reached.
        """
        budget = turn.budget
        if budget is None:
            return None
        ways = self._ways(turn)
        if progress.hidden and ways[0] is not Continuation.FLAGS:
            progress.gap = answer.cut_back()
        room = budget.window * SAID_SHARE
        partial = await self._shortened(turn, answer.text, progress, room)
        said = sum(self._cost(turn)([{"role": "assistant", "content": partial}]))
        if turn.estimate.tokens + said > budget.goal:
            await self._compactor.compact(turn, goal=max(1, int(budget.goal - said)))
        for how in ways:
            tried = await self._try(turn, answer, continuation(turn.messages, partial, how))
            if isinstance(tried, Overflow) and await self._sender.shorten(turn, tried, 1):
                tried = await self._try(turn, answer, continuation(turn.messages, partial, how))
            if isinstance(tried, Attempted):
                self._telemetry.resumed(turn.key, how.value)
                return tried
            if isinstance(tried, Overflow):
                return None
            self._refused.setdefault(turn.key, set()).add(how)
        return None

    def _ways(self, turn: Turn) -> list[Continuation]:
        backend = turn.route.upstream.prober.known_backend
        offered = backend.continuations if backend is not None else (Continuation.QUOTE,)
        chosen = turn.profile.continuation
        first = [chosen.value] if chosen is not None else []
        refused = self._refused.get(turn.key, set())
        ways = [*first, *(way for way in offered if way not in first)]
        if Continuation.QUOTE not in ways:
            ways.append(Continuation.QUOTE)
        return [way for way in ways if way not in refused] or [Continuation.QUOTE]

    def _cost(self, turn: Turn) -> Callable[[Any], list[float]]:
        return lambda messages: self._meter.costs(turn.key, messages)

    async def _shortened(self, turn: Turn, text: str, progress: Progress, room: float) -> str:
        budget = turn.budget
        assert budget is not None
        by = await self._compactor.summariser(turn, budget, 0.0)
        flow = shorten_said(text, progress.said, room=room, by=by, cost=self._cost(turn))
        return await drive(flow, partial(self._compactor.ask, turn))

    async def _try(
        self, turn: Turn, answer: Answer, request: ContinuationRequest
    ) -> Attempted | Overflow | None:
        body = _body(turn, request)
        estimate = await self._meter.measure(turn.key, body)
        window = turn.profile.window.value if turn.profile.window is not None else 0
        bound = bounded_answer(turn.request, window - estimate.upper, answer.completion_tokens) or {}
        body |= bound
        upstream, exchange = turn.route.upstream, turn.exchange
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
        _log.info("%s/%s does not continue this way: status %d", *turn.key, response.status_code)
        return None


def _body(turn: Turn, request: ContinuationRequest) -> dict[str, Any]:
    body = {name: value for name, value in turn.body().items() if name not in _NOT_COPIED}
    messages: list[Message] = request.messages
    backend = turn.route.upstream.prober.known_backend
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

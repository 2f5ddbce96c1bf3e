"""Entry points of the API: requests that are served by the pipeline, passed to a backend as they are, explained or counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from proxy.attempts.passing import ErrorEnding, address_read, pass_by_model, pass_through, unmanaged_route
from proxy.compaction.policy import prune_limits
from proxy.core.dialect import Dialect
from proxy.core.errors import ClientError, NotManaged
from proxy.core.jsontext import dumps
from proxy.core.request import Managed
from proxy.core.settings import Settings
from proxy.dialects import CHAT
from proxy.emulation import protocol
from proxy.exchange import Exchange, unique
from proxy.job import Job
from proxy.net.bodies import decoded
from proxy.net.headers import AS_JSON
from proxy.outcome import CLIENT_DISCONNECTED, Outcome, Telemetry
from proxy.pipeline import Pipeline
from proxy.routing import Router, is_managed
from proxy.tokens.counting import Counting


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Takes clients' exchanges and answers them."""

    settings: Settings
    pipeline: Pipeline
    telemetry: Telemetry

    @property
    def router(self) -> Router:
        """Routes models to backends."""
        return self.pipeline.router

    @property
    def manages_all(self) -> bool:
        """Return whether no request is passed to a backend that might store answers of its own."""
        return self.settings.manages_all and self.router.manages_all

    async def answer(self, exchange: Exchange, dialect: Dialect) -> None:
        """Answer a chat request in this dialect.

        Raises:
            ClientError: it can't be served; nothing was sent yet.
        """
        await self._recorded(exchange, dialect.name, lambda outcome: self._answer(exchange, dialect, outcome))

    async def passthrough(self, exchange: Exchange) -> None:
        """Hand any other request to a backend, streaming both ways.

        Raises:
            ClientError: no backend answered.
            BrokenOff: the backend broke off in the middle of the body.
        """
        limit = self.settings.max_body
        await self._recorded(exchange, "", lambda outcome: pass_by_model(exchange, outcome, self.router, limit))

    def record_rejected(self, exchange: Exchange, error: ClientError) -> None:
        """Record a request that was not let in."""
        self.telemetry.record_rejected(exchange.id, error.status, error.code or error.type)

    async def explain(self, exchange: Exchange) -> None:
        """Reply what would happen to a request for chat completions, without asking a model.

        Raises:
            ClientError: it is malformed.
        """
        wire = await exchange.body(self.settings.max_body)
        with exchange.watched():
            job = await self.pipeline.prepare(exchange, self.telemetry.silent(), CHAT, wire)
            await exchange.reply(200, [AS_JSON], dumps(_explanation(job, self.pipeline.counting)))

    async def count(self, exchange: Exchange, dialect: Dialect) -> None:
        """Reply how many tokens a prompt in this dialect has: all that the client sends, less only what it wants left out.

        Raises:
            ClientError: it is malformed, or is to be passed through and no backend answered.
        """
        wire, line = await exchange.body(self.settings.max_body), self.pipeline
        with exchange.watched():
            if (unmanaged := await unmanaged_route(exchange, wire, self.router, self.settings)) is not None:
                await pass_through(exchange, self.telemetry.silent(), unmanaged)
                return
            request = await line.state.read(exchange, wire, dialect.read)
            request, route = await self.router.routed(request)
            body, cleared = await line.state.body_to_count(request, route)
            tokens = await line.counting.exact_count(route, body)
            counted: dict[str, Any] = {**dialect.count_head, "input_tokens": tokens}
            if request.edits:
                before = await line.counting.exact_count(route, request.body) if cleared else tokens
                counted["context_management"] = {"original_input_tokens": before}
            await exchange.reply(200, [AS_JSON], dumps(counted))

    async def _answer(self, exchange: Exchange, dialect: Dialect, outcome: Outcome) -> None:
        limit = self.settings.max_body
        wire = await exchange.body(limit)
        with exchange.watched():
            if (unmanaged := await unmanaged_route(exchange, wire, self.router, self.settings)) is not None:
                await pass_through(exchange, outcome, unmanaged, _ending(exchange, dialect, wire, limit))
                return
            try:
                await self.pipeline.serve(exchange, outcome, dialect, wire)
            except NotManaged:
                to = await address_read(exchange, self.router, wire, limit, needs_model=True)
                await pass_through(exchange, outcome, to)

    async def _recorded(self, exchange: Exchange, dialect: str, serve: Callable[[Outcome], Awaitable[None]]) -> None:
        """Have a request served, and complete its outcome whatever happens."""
        outcome = self.telemetry.open(exchange.id, exchange.headers, dialect=dialect, credential=exchange.tenant)
        try:
            await serve(outcome)
        except ClientError as error:
            outcome.fail(error.status, error.code or error.type)
            raise
        except asyncio.CancelledError:
            if (stopped := exchange.stopped()) is not None:
                outcome.fail(stopped.status, stopped.code or stopped.type)
                raise stopped from None
            if not outcome.delivered:
                outcome.fail(CLIENT_DISCONNECTED, "client_left")
            raise
        except Exception as error:  # it is reported where it is answered; here it is only written down
            outcome.fail(exchange.status or 500, type(error).__name__)
            raise
        finally:
            outcome.close(exchange.status)


def _ending(exchange: Exchange, dialect: Dialect, wire: bytes, limit: int) -> ErrorEnding:
    """End a stream, that answers this request and is passed on as it comes, with an error."""

    def ending(error: ClientError) -> bytes:
        plain = decoded(wire, exchange.header(b"content-encoding"), limit)
        return dialect.writer(dialect.read(plain), unique(), Managed()).error(error.body())

    return ending


def _explanation(job: Job, counting: Counting) -> dict[str, Any]:
    """Counts per part, the checkpoint found, what would be done, and the messages as they would be sent.

    Token figures are estimates. Of a prompt that would be shortened first, the messages are those before that.
    """
    key, budget = job.key, job.budget
    costs = counting.meter.costs(key, job.prompt.messages)
    explanation: dict[str, Any] = {
        "model": job.route.model,
        "backend": job.route.upstream.name,
        "window": None if budget is None else budget.window,
        "prompt_tokens": job.prompt.estimate.tokens,
        "prompt_tokens_upper": job.prompt.estimate.upper,
        "counted_by": job.prompt.estimate.source,
        "fill": None if budget is None else round(budget.fill(job.prompt.estimate.tokens), 4),
        "parts": _parts(job, costs),
        "tools": _tools(job, counting),
        "shaped": dict(job.outcome.shaped),
        "checkpoint": _checkpoint(job),
        "recalled": _recalled(job),
        "action": "forwarded",
        "messages": job.prompt.messages,
    }
    if not is_managed(job.route, job.settings):
        note = "The user set managed = false: it passes through untouched."
        return {**explanation, "action": "passed", "note": note}
    if budget is None:
        return {**explanation, "note": "The window is not known: the request is forwarded as it is."}
    explanation["budget"] = {"trigger": budget.brim, "target": budget.goal, "pause": budget.pause_point}
    explanation["limits"] = asdict(prune_limits(job.settings, budget.zone))
    if job.is_due:
        note = "It is due: Spillway would bring it down to about the target first, and send other messages than these."
        explanation |= {"action": "due", "note": note}
    return explanation


def _recalled(job: Job) -> dict[str, Any] | None:
    """Describe the recalled block of the newest turn, and the tokens of those of earlier turns."""
    recalled = job.prompt.recalled
    if not recalled.blocks:
        return None
    passages = () if recalled.newest is None else recalled.newest.passages
    return {
        "tokens": recalled.newest_tokens,
        "tokens_of_earlier_turns": recalled.tokens - recalled.newest_tokens,
        "passages": [
            {
                "message": len(job.prompt.system) + passage.index,
                "role": job.prompt.sent[passage.index].get("role"),
                "tokens": round(passage.tokens, 1),
                "text": passage.text,
            }
            for passage in sorted(passages, key=lambda passage: (passage.index, passage.start))
        ],
    }


def _parts(job: Job, costs: list[float]) -> dict[str, Any]:
    messages = [
        {"index": index, "role": message.get("role"), "tokens": round(cost, 1)}
        for index, (message, cost) in enumerate(zip(job.prompt.messages, costs, strict=True))
    ]
    rest = max(0.0, job.prompt.estimate.tokens - sum(costs))
    return {"messages": messages, "template_and_tools": round(rest, 1)}


def _tools(job: Job, counting: Counting) -> dict[str, Any] | None:
    """Describe how tools reach the model, and the tokens of the protocol where they are emulated."""
    if job.prompt.offer is None:
        return {"mode": "native"} if job.offers_tools else None
    return {"mode": "emulated", "protocol_tokens": counting.meter.count_text(job.key, protocol(job.prompt.offer))}


def _checkpoint(job: Job) -> dict[str, Any] | None:
    found = job.prompt.checkpoint
    if found is None:
        return None
    return {
        "kind": found.kind,
        "covered_messages": found.covered,
        "replaced_by_messages": len(found.replacement),
        "tokens_before": found.tokens_before,
        "tokens_after": found.tokens_after,
        "summary": found.by,
        "created": found.created,
    }

"""The strategy `observe`: requests pass unchanged, and their records say what Spillway would have done, and what was lost without it."""

import asyncio
import logging
import re

from proxy.backends.overflow import recognise
from proxy.compaction.decision import Compact
from proxy.core.dialect import Dialect
from proxy.core.errors import ClientError, NotManaged
from proxy.exchange import Exchange
from proxy.outcome import Outcome
from proxy.pipeline import Pipeline

TAIL = 65_536
"""Bytes at the end of an answer in which its usage is looked for."""
_PROMPT = re.compile(rb'"(?:prompt_tokens|prompt_eval_count|input_tokens)"\s*:\s*(\d{1,9})')
_COMPLETION = re.compile(rb'"(?:completion_tokens|eval_count|output_tokens)"\s*:\s*(\d{1,9})')
_ENDED = re.compile(rb'"(?:finish|done|stop)_reason"\s*:\s*"(?:length|max_tokens)"|"reason"\s*:\s*"max_output_tokens"')
_FULL = 0.98
"""Share of the window from which an answer that ended by its length ended with the window; some servers keep a few tokens back."""

_log = logging.getLogger("spillway")


async def observe(
    pipeline: Pipeline, exchange: Exchange, outcome: Outcome, dialect: Dialect, wire: bytes, tail: bytes
) -> None:
    """Record what would have been done with a request that was passed on and answered; `tail` is the end of its answer.

    It is prepared now, when nobody waits for it any more. Without a usage in its answer, which clients have to ask for in a
    stream, only a refusal shows that something was lost.
    """
    try:
        await _observe(pipeline, exchange, outcome, dialect, wire, tail)
    except (ClientError, NotManaged):
        return
    except asyncio.CancelledError:  # the server is being stopped
        if exchange.take_cancellation() is None:
            raise
    except Exception:  # noqa: BLE001 - the request was served, and whatever fails here may not change that
        _log.exception("a request could not be observed")


async def _observe(
    pipeline: Pipeline, exchange: Exchange, outcome: Outcome, dialect: Dialect, wire: bytes, tail: bytes
) -> None:
    dry = Outcome("", outcome.clock)
    job = await pipeline.prepare(exchange, dry, dialect, wire)
    asked, counting = job.moved_from or job, pipeline.counting
    budget = asked.budget
    estimate = await counting.measure(asked.route, asked.profile, job.received.body, tenant=exchange.tenant)
    prompt, completion = (int(found[-1]) if (found := each.findall(tail)) else 0 for each in (_PROMPT, _COMPLETION))
    counting.observe(asked, estimate, {"prompt_tokens": prompt, "completion_tokens": completion})
    tokens = max(prompt, estimate.tokens) if dry.counts["cut"] else prompt or estimate.tokens
    lost, would = "cut" if dry.counts["cut"] else "", dry.action
    if exchange.status >= 400 and recognise(exchange.status, tail) is not None:
        lost = "refused"
    if budget is not None:
        if isinstance(pipeline.decide(job), Compact):
            would = "compacted"
        elif would != "moved" and completion and tokens + completion >= budget.pause_point and job.resumable:
            would = "paused"
        if not lost and _ENDED.search(tail) and tokens + completion >= _FULL * budget.window:
            lost = "ended"
    outcome.record_measured(tokens, asked.window, "", "forwarded")
    outcome.usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    outcome.add("observed", would=would, lost=lost)
    outcome.action = "observed"
    await job.held.aclose()

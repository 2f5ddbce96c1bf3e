"""Having a model write a summary."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from typing import TypeAlias, TypeVar

import httpx

from proxy.answer.answer import Answer
from proxy.dialects import UPSTREAM
from proxy.dialects.chat import UPSTREAM_PATH
from proxy.dialects.chat.request import summarising
from proxy.errors import UpstreamUnavailable
from proxy.shortening.compaction import SummaryAsk
from proxy.stages.job import Job
from proxy.stages.passing import failure
from proxy.stages.routing import Route
from proxy.telemetry.events import BackendFailed
from proxy.wire import sse

T = TypeVar("T")

_log = logging.getLogger("spillway.summary")

Asked: TypeAlias = Callable[[SummaryAsk], Awaitable[str]]
"""Whoever answers a request for a summary; empty when that failed."""


async def drive(flow: Generator[SummaryAsk, str, T], asked: Asked) -> T:
    """Run a flow to its end, having every summary it asks for made."""
    try:
        ask = next(flow)
        while True:
            ask = flow.send(await asked(ask))
    except StopIteration as stop:
        result: T = stop.value
        return result


async def ask_model(job: Job, route: Route, ask: SummaryAsk) -> str:
    """Send a summary request and join its stream; empty when the backend failed."""
    try:
        response = await route.upstream.send(
            "POST",
            UPSTREAM_PATH,
            _headers(job, same=route.upstream is job.route.upstream),
            summarising(
                job.prompt.request.body,
                route.model,
                [*job.prompt.system, *ask.messages] if ask.append else ask.messages,
                append=ask.append,
                max_tokens=ask.max_tokens,
            ),
        )
    except UpstreamUnavailable as error:
        job.journal.tell(failure(error))
        _log.warning("summary by %s failed: %s", route.model, error.code)
        return ""
    try:
        if response.status_code != 200:
            _log.warning("summary by %s failed: status %d", route.model, response.status_code)
            return ""
        return await _joined(response)
    except httpx.TransportError as error:
        job.journal.tell(BackendFailed(type(error).__name__))
        _log.warning("summary by %s broke off: %s", route.model, type(error).__name__)
        return ""
    finally:
        await response.aclose()


def _headers(job: Job, *, same: bool) -> list[tuple[bytes, bytes]]:
    """The client's own credentials, for its own backend only."""
    own = [(name, value) for name, value in job.exchange.headers if name in (b"authorization", b"x-api-key")]
    return [(b"content-type", b"application/json"), *(own if same else ())]


async def _joined(response: httpx.Response) -> str:
    answer = Answer(0, len)
    splitter = sse.FrameSplitter()
    assert isinstance(response.stream, httpx.AsyncByteStream)
    async for data in response.stream:
        _take(splitter.feed(data), answer)
    _take(splitter.flush(), answer)
    return "" if answer.attempt.errored or answer.attempt.calling else answer.text


def _take(block: bytes, answer: Answer) -> None:
    for piece in map(UPSTREAM.read, sse.frames(block)):
        answer.add(piece)
        answer.attempt.errored |= piece.error is not None

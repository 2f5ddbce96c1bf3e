"""Having a model write a summary."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias, TypeVar

import httpx

from proxy.answer.answer import Answer
from proxy.dialects import UPSTREAM
from proxy.dialects.chat import UPSTREAM_PATH
from proxy.errors import UpstreamUnavailable
from proxy.shortening.compaction import SummaryAsk
from proxy.stages.job import Job
from proxy.stages.routing import Route
from proxy.wire import sse
from proxy.wire.jsontext import dumps

T = TypeVar("T")

_log = logging.getLogger("spillway.summary")

_NOT_COPIED = frozenset(
    {
        "stream_options",
        "response_format",
        "stop",
        "n",
        "logprobs",
        "top_logprobs",
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
        "parallel_tool_calls",
        "prediction",
    }
)
_TEMPLATE_FIELDS = ("chat_template_kwargs", "reasoning_effort", "think", "provider")


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
    """Send a summary request and join its stream; empty when the backend failed.

    It is streamed, because llama.cpp stops a stream at once when the connection closes, other requests late.
    """
    try:
        response = await route.upstream.send(
            "POST",
            UPSTREAM_PATH.encode(),
            _headers(job, same=route.upstream is job.route.upstream),
            dumps(_body(job, route, ask)),
        )
    except UpstreamUnavailable as error:
        _log.warning("summary by %s failed: %s", route.model, error.code)
        return ""
    try:
        if response.status_code != 200:
            _log.warning("summary by %s failed: status %d", route.model, response.status_code)
            return ""
        return await _joined(response)
    except httpx.TransportError as error:
        _log.warning("summary by %s broke off: %s", route.model, type(error).__name__)
        return ""
    finally:
        await response.aclose()


def _body(job: Job, route: Route, ask: SummaryAsk) -> dict[str, Any]:
    client = job.request.body
    if ask.append:
        body = {name: value for name, value in client.items() if name not in _NOT_COPIED}
        messages = [*job.system, *ask.messages]
        if client.get("tools"):
            body["tool_choice"] = "none"
    else:
        body = {name: client[name] for name in _TEMPLATE_FIELDS if name in client}
        messages = ask.messages
    return {**body, "model": route.model, "messages": messages, "max_tokens": ask.max_tokens, "stream": True}


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

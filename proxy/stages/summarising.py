"""Having a model write a summary."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Generator
from typing import TypeAlias, TypeVar

import httpx

from proxy.answer.answer import Answer
from proxy.dialects import UPSTREAM
from proxy.dialects.chat import UPSTREAM_PATH
from proxy.dialects.chat.request import summarising
from proxy.errors import UpstreamUnavailable
from proxy.net.apart import apart
from proxy.net.credentials import is_credential
from proxy.net.inflate import readable
from proxy.neutral.piece import whole_number
from proxy.shortening.asking import SummaryAsk
from proxy.shortening.summary import acceptable
from proxy.stages.job import Job, Progress
from proxy.stages.passing import failure
from proxy.stages.routing import Route
from proxy.telemetry.events import BackendFailed, Summarised
from proxy.wire import sse

T = TypeVar("T")

_log = logging.getLogger("spillway.summary")

LONGEST_REST = 30.0
"""Seconds that a backend may want to be left alone for, if it is to be waited for."""
IN_VAIN = 2
"""Requests for summaries in a row that may fail; the model is not asked again for the same client's request then."""
SMALLEST_BOUND = 64 * 1024
_CHARACTERS = 4
"""Of a token, about: for the account of summaries of which the backend reports nothing."""
BYTES_PER_TOKEN = 4096
"""Bytes of stream that a summary may take, and more for each token asked for: one comes in 100 to 500."""

Asked: TypeAlias = Callable[[SummaryAsk], Awaitable[str]]
"""Whoever answers a request for a summary; empty when that failed."""


class NotWritten(Exception):
    """A summary that nobody waits for was not written: it can be asked for again when somebody does."""


async def drive(flow: Generator[SummaryAsk, str, T], asked: Asked, *, heavy: bool = False) -> T:
    """Run a flow to its end, having every summary it asks for made. `heavy`: not on the loop."""
    step = await apart(heavy, _next, flow, None)
    while isinstance(step, SummaryAsk):
        step = await apart(heavy, _next, flow, await asked(step))
    return step[0]


def _next(flow: Generator[SummaryAsk, str, T], text: str | None) -> SummaryAsk | tuple[T]:
    """What the flow asks for next, after this answer; or what it comes to."""
    try:
        return next(flow) if text is None else flow.send(text)
    except StopIteration as stop:
        return (stop.value,)


class Summaries:
    """Has models write summaries, each within a time for all the requests that it takes.

    A model that takes longer, writes without end or asks for a rest is not asked again for the same client's request:
    the history is then shortened without one.
    """

    def __init__(self, job: Job, route: Callable[[], Awaitable[Route]]) -> None:
        """One summary for this job. `route` tells who writes it."""
        self._job = job
        self._route = route
        self._until: float | None = None
        self._rested = False
        self._lost = False
        """Whether the backend failed, not the model."""

    async def __call__(self, ask: SummaryAsk) -> str:
        """The text; empty when there is none that is fit to be used.

        Raises:
            NotWritten: the backend was lost, and it is done ahead of time.
        """
        job = self._job
        if job.unsummarised >= IN_VAIN:
            return ""
        text = await self._in_time(ask)
        fit = acceptable(text or "")
        if text is None:
            job.unsummarised = IN_VAIN
        else:
            job.unsummarised = 0 if fit else job.unsummarised + 1
        job.journal.tell(Summarised(ok=fit))
        if self._lost and job.expected is not None:
            raise NotWritten
        return (text or "") if fit else ""

    async def _in_time(self, ask: SummaryAsk) -> str | None:
        """The text, empty when that failed; None if the model is not to be asked again."""
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._job.options.summary_timeout
        route = await self._route()
        try:
            async with asyncio.timeout_at(self._until):
                while (came := await self._asked(route, ask)) is not None:
                    if isinstance(came, str):
                        return came
                    await asyncio.sleep(came)
        except TimeoutError:
            self._job.journal.tell(BackendFailed(TimeoutError.__name__))
            _log.warning("summary by %s given up after %g s", route.model, self._job.options.summary_timeout)
        return None

    async def _asked(self, route: Route, ask: SummaryAsk) -> str | float | None:
        """Ask once: the text, empty when that failed; or seconds to wait before asking again; None: not to be asked again."""
        job = self._job
        self._lost = True
        try:
            response = await _send(job, route, ask)
        except UpstreamUnavailable as error:
            job.journal.tell(failure(error))
            _log.warning("summary by %s failed: %s", route.model, error.code)
            return ""
        try:
            if response.status_code != 200:
                _log.warning("summary by %s failed: status %d", route.model, response.status_code)
                return self._rest(response)
            limit = SMALLEST_BOUND + ask.max_tokens * BYTES_PER_TOKEN
            answer = await _joined(response, limit, job.progress)
            text = None if answer is None else self._text(ask, answer)
        except httpx.TransportError as error:
            job.journal.tell(BackendFailed(type(error).__name__))
            _log.warning("summary by %s broke off: %s", route.model, type(error).__name__)
            return ""
        else:
            self._lost = False
            return text
        finally:
            await response.aclose()

    def _text(self, ask: SummaryAsk, answer: Answer) -> str:
        """What was said, which is put on the account of whoever is told of it; empty if it is none."""
        told = answer.attempt.usage or {}
        read = whole_number(told.get("prompt_tokens")) or len(str(ask.messages)) // _CHARACTERS
        wrote = whole_number(told.get("completion_tokens")) or len(answer.text) // _CHARACTERS
        before = self._job.managed.spent
        self._job.managed.spent = before[0] + read, before[1] + wrote
        return "" if answer.attempt.errored or answer.attempt.calling else answer.text

    def _rest(self, response: httpx.Response) -> str | float | None:
        """How long a backend that refused wants to be left alone, if it says so in seconds, and it is not for long."""
        told = str(response.headers.get("retry-after", "")).strip()
        if response.status_code != 429 and not told:
            return ""
        seconds = float(told) if told.isdecimal() else math.inf
        if seconds > LONGEST_REST or self._rested:
            return None
        self._rested = True
        return seconds


async def _send(job: Job, route: Route, ask: SummaryAsk) -> httpx.Response:
    return await route.upstream.send(
        "POST",
        UPSTREAM_PATH,
        own_headers(job, same=route.upstream is job.route.upstream),
        summarising(
            job.prompt.request.body,
            route.model,
            [*job.prompt.system, *ask.messages] if ask.append else ask.messages,
            append=ask.append,
            max_tokens=ask.max_tokens,
            ask_usage=job.asked.compaction is not None and job.options.ask_usage,
        ),
        background=job.expected is not None,
    )


def own_headers(job: Job, *, same: bool) -> list[tuple[bytes, bytes]]:
    """The client's own credentials, for its own backend only."""
    own = [(name, value) for name, value in job.exchange.headers if is_credential(name)]
    return [(b"content-type", b"application/json"), *(own if same else ())]


async def _joined(response: httpx.Response, limit: int, progress: Progress) -> Answer | None:
    """A streamed answer, in which nothing is said if it can't be read; None if it has more than `limit` bytes."""
    plain, size, before = readable(response), 0, progress.written
    answer, splitter = Answer(0, len), sse.FrameSplitter(limit)
    if plain is None:
        return answer
    assert isinstance(plain.stream, httpx.AsyncByteStream)
    async for data in plain.stream:
        size += len(data)
        if size > limit:
            _log.warning("a summary was given up after %d bytes", limit)
            return None
        _take(splitter.feed(data), answer)
        progress.written = before + answer.completion_tokens
    _take(splitter.flush(), answer)
    return answer


def _take(block: bytes, answer: Answer) -> None:
    for piece in map(UPSTREAM.read, sse.frames(block)):
        answer.add(piece)
        answer.attempt.errored |= piece.error is not None

"""Summaries written by a model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Literal, TypeAlias, TypeVar

import httpx

from proxy.attempts.passing import failure
from proxy.attempts.sending import ChatBody, send_chat
from proxy.backends.profile import ModelKey
from proxy.backends.refusals import LONGEST_RETRY
from proxy.compaction.asking import SummaryAsk
from proxy.compaction.compaction import STRATEGIES
from proxy.compaction.verification import LoopWatch, SummaryReply, checked
from proxy.core import sse
from proxy.core.errors import UpstreamUnavailable
from proxy.core.piece import whole_number
from proxy.dialects.chat.reading import read_frame
from proxy.dialects.chat.request import LOADING, summarising
from proxy.job import Job, Progress
from proxy.net.bodies import retry_after
from proxy.net.headers import AS_JSON, is_credential
from proxy.net.tasks import offload_if
from proxy.routing import Route
from proxy.stream.answer import Answer

T = TypeVar("T")

_log = logging.getLogger("spillway.summary")

IN_VAIN = 2
"""Requests for summaries in a row that may fail; the model is not asked again for the same client's request then."""
IN_A_ROW = 2
"""Requests of one sort to a model that came to nothing, one after the other, after which only one in `TRIED_ANEW` is made."""
RETRY_EVERY = 8
_MOST_KNOWN = 1000
"""Models of which that is known; their names come from clients, so there must be an end."""
SMALLEST_BOUND = 64 * 1024
_CHARACTERS = 4
"""Of a token, about: for the account of summaries of which the backend reports nothing."""
BYTES_PER_TOKEN = 4096
"""Bytes of stream that a summary may take, and more for each token asked for: one comes in 100 to 500."""
TOO_LONG = 2
"""Times the tokens asked for, after which an answer is left: its backend does not keep the bound."""
FAILED = SummaryReply(failed=True)

WriteSummary: TypeAlias = Callable[[SummaryAsk], Awaitable[str]]
"""Writes the summary that is asked for; empty when that failed."""


class NotWritten(Exception):
    """A summary that nobody waits for was not written: it can be asked for again when somebody does."""


async def drive(flow: Generator[SummaryAsk, str, T], write_summary: WriteSummary, *, heavy: bool = False) -> T:
    """Run a flow to its result, writing the summaries it asks for. `heavy`: off the event loop."""
    step = await offload_if(heavy, _next, flow, None)
    while isinstance(step, SummaryAsk):
        step = await offload_if(heavy, _next, flow, await write_summary(step))
    return step[0]


def _next(flow: Generator[SummaryAsk, str, T], text: str | None) -> SummaryAsk | tuple[T]:
    """Return the flow's next request for a summary, or its result in a tuple."""
    try:
        return next(flow) if text is None else flow.send(text)
    except StopIteration as stop:
        return (stop.value,)


class Experience:
    """Record of which requests for summaries pay off per model: those that never do are only tried now and then."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, ModelKey], int] = {}
        """Requests in a row that came to nothing: `again` after one that did, `append` where a transcript served."""

    def is_worth_trying(self, sort: Literal["again", "append"], route: Route) -> bool:
        """Return whether a request of this sort is worth a try."""
        key = (sort, route.key)
        failures = self._failures.get(key, 0)
        if failures < IN_A_ROW:
            return True
        self._failures[key] = failures + 1
        return (failures - IN_A_ROW) % RETRY_EVERY == RETRY_EVERY - 1

    def learn(self, route: Route, ask: SummaryAsk, *, again: bool, served: bool) -> None:
        """Record a request's success; `again`: an earlier one had failed."""
        if again:
            self._count("again", route, failed=not served)
        if served and (ask.append or again):
            self._count("append", route, failed=not ask.append)

    def _count(self, sort: Literal["again", "append"], route: Route, *, failed: bool) -> None:
        before = self._failures.pop((sort, route.key), 0)
        if failed:
            if len(self._failures) >= _MOST_KNOWN:
                self._failures.clear()
            self._failures[sort, route.key] = before + 1


class Summaries:
    """Has models write summaries, each within a time for all the requests that it takes.

    A model that takes longer, writes without end or asks for a rest is not asked again for the same client's request:
    the history is then shortened without one.
    """

    def __init__(self, job: Job, route: Callable[[], Awaitable[Route]], experience: Experience) -> None:
        """`route` finds the model that writes the job's summaries."""
        self._job = job
        self._experience = experience
        self._route = route
        self._until: float | None = None
        self._rested = False
        self._lost = False
        """Whether the backend failed, not the model."""
        self._tokens = 0
        """That were read and written for it."""

    async def __call__(self, ask: SummaryAsk) -> str:
        """Write a summary; empty when there is none that is fit to be used.

        Raises:
            NotWritten: the backend was lost, and it is done ahead of time.
        """
        job = self._job
        if job.state.unsummarised >= IN_VAIN or not STRATEGIES[job.settings.strategy].asks:
            return ""
        again, route, self._tokens = job.state.unsummarised > 0, await self._route(), 0
        if again and not self._experience.is_worth_trying("again", route):
            job.state.unsummarised = IN_VAIN
            return ""
        job.outcome.add("summarising")
        written = await self._in_time(route, ask)
        found = checked(written or FAILED, ask.source, tokens=ask.max_tokens)
        if found.text:
            job.state.unsummarised = 0
        else:
            job.state.unsummarised = IN_VAIN if written is None or written.endless else job.state.unsummarised + 1
        if not self._lost:
            self._experience.learn(route, ask, again=again, served=bool(found.text))
        job.outcome.unfit += found.verdict not in {"kept", "mended"}
        job.outcome.add("summarised", verdict=found.verdict, tokens=self._tokens)
        if self._lost and job.expected is not None:
            raise NotWritten
        return found.text

    async def _in_time(self, route: Route, ask: SummaryAsk) -> SummaryReply | None:
        """Request a summary within the time limit; None if the model is not to be asked again."""
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._job.settings.summary_timeout
        try:
            async with asyncio.timeout_at(self._until):
                while (result := await self._request(route, ask)) is not None:
                    if isinstance(result, SummaryReply):
                        return result
                    await asyncio.sleep(result)
        except TimeoutError:
            self._job.outcome.add("backend_failed", error=TimeoutError.__name__)
            _log.warning("summary by %s given up after %g s", route.model, self._job.settings.summary_timeout)
        return None

    async def _request(self, route: Route, ask: SummaryAsk) -> SummaryReply | float | None:
        """Ask once: return the reply, or seconds to wait before asking again; None: not to be asked again."""
        job = self._job
        self._lost = True
        try:
            response = await _send(job, route, ask)
        except UpstreamUnavailable as error:
            job.outcome.add("backend_failed", error=failure(error))
            _log.warning("summary by %s failed: %s", route.model, error.code)
            return FAILED
        try:
            if response.status_code != 200:
                _log.warning("summary by %s failed: status %d", route.model, response.status_code)
                return self._rest(response)
            reading = _Reading(response, ask.max_tokens, job.state.progress)
            written = await reading.read()
            self._charge(ask, reading.answer)
        except httpx.TransportError as error:
            job.outcome.add("backend_failed", error=type(error).__name__)
            _log.warning("summary by %s broke off: %s", route.model, type(error).__name__)
            return FAILED
        else:
            self._lost = False
            return written
        finally:
            await response.aclose()

    def _charge(self, ask: SummaryAsk, answer: Answer) -> None:
        """Add the tokens read and written to the client's account."""
        usage = answer.attempt.usage or {}
        read = whole_number(usage.get("prompt_tokens")) or len(str(ask.messages)) // _CHARACTERS
        wrote = whole_number(usage.get("completion_tokens")) or len(answer.text) // _CHARACTERS
        self._tokens += read + wrote
        before = self._job.managed.spent
        self._job.managed.spent = before[0] + read, before[1] + wrote

    def _rest(self, response: httpx.Response) -> SummaryReply | float | None:
        """Return the seconds to wait after a refusal, once and if they are few; None: do not ask again."""
        seconds = retry_after(response)
        if response.status_code != 429 and seconds is None:
            return FAILED
        if seconds is None or seconds > LONGEST_RETRY or self._rested:
            return None
        self._rested = True
        return seconds


async def _send(job: Job, route: Route, ask: SummaryAsk) -> httpx.Response:
    body = job.prompt.request.body
    if route.key != job.route.key:
        body = {
            name: value for name, value in body.items() if name not in LOADING and (name != "think" or value is False)
        }
    return await send_chat(
        route.upstream,
        credential_headers(job, same=route.upstream is job.route.upstream),
        ChatBody(
            summarising(
                body,
                route.model,
                [*job.prompt.system, *ask.messages] if ask.append else ask.messages,
                append=ask.append,
                max_tokens=ask.max_tokens,
                ask_usage=job.asked.compaction is not None,
            )
        ),
        ahead=job.expected is not None,
    )


def credential_headers(job: Job, *, same: bool) -> list[tuple[bytes, bytes]]:
    """Build the headers of a request of Spillway's own: the trace, and the client's credentials for the `same` backend."""
    credentials = [(name, value) for name, value in job.exchange.headers if is_credential(name)]
    return [*job.outcome.traced([AS_JSON]), *(credentials if same else ())]


class _Reading:
    """The streamed answer to a request for a summary, for which so many tokens were asked."""

    def __init__(self, response: httpx.Response, tokens: int, progress: Progress) -> None:
        self.answer = Answer(0, _roughly)
        self._response = response
        self._tokens = tokens
        self._progress = progress
        self._watches = (LoopWatch(), LoopWatch())

    async def read(self) -> SummaryReply | None:
        """Read the summary; None if it has too many bytes.

        The caller closes the connection, so that a model that loops, or does not end, is stopped there.
        """
        stream, size, before = self._response.stream, 0, self._progress.written
        limit = SMALLEST_BOUND + self._tokens * BYTES_PER_TOKEN
        answer, splitter = self.answer, sse.FrameSplitter(limit)
        assert isinstance(stream, httpx.AsyncByteStream)
        async for data in stream:
            size += len(data)
            if size > limit:
                _log.warning("a summary was given up after %d bytes", limit)
                return None
            self._take(splitter.feed(data))
            self._progress.written = before + answer.completion_tokens
            if any(watch.looped for watch in self._watches):
                return SummaryReply(answer.text, looped=True)
            if answer.completion_tokens > self._tokens * TOO_LONG:
                return SummaryReply(answer.text, cut=True, endless=True)
        self._take(splitter.flush())
        if answer.attempt.errored or answer.attempt.calling:
            return FAILED
        return SummaryReply(answer.text, cut=answer.attempt.finish == "length")

    def _take(self, block: bytes) -> None:
        for piece in map(read_frame, sse.frames(block)):
            self.answer.add(piece)
            self.answer.attempt.errored |= piece.error is not None
            for watch, text in zip(self._watches, (piece.text, piece.thought), strict=True):
                watch.feed(text)


def _roughly(text: str) -> int:
    """Tokens of a text that came in one piece, at least."""
    return len(text) // 6

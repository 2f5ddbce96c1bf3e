"""Sending a job upstream; a prompt that the backend refuses for its size is compacted and sent again."""

from __future__ import annotations

from dataclasses import replace

import httpx

from proxy.backends.overflow import Overflow, recognise
from proxy.backends.profile import Fact, Trust
from proxy.backends.refusals import refuses_tools
from proxy.errors import UpstreamUnavailable
from proxy.net.headers import uncompressed
from proxy.net.upstream import Upstream
from proxy.shortening.budget import ContextBudget
from proxy.stages.compacting import Compactor
from proxy.stages.job import Job
from proxy.stages.pooling import SharedPool, was_cleared
from proxy.stages.preparing import Preparer
from proxy.telemetry import Telemetry

RETRIES = 2
ERROR_BYTES = 256 * 1024
"""An error body is read up to here to be recognised; larger ones are passed on unread."""
SMALLEST_WINDOW = 256
_ROOM_MARGIN = 16
_UNTOLD = 0.85
"""Aim as much lower after a refusal that does not tell how long the prompt is."""
_SMALLEST_ANSWER = 64
_LONG_ANSWER = 16384
"""Tokens that no model writes in one go unless its provider says that it may."""


class Sender:
    """Opens the first attempt of a job."""

    def __init__(
        self, *, preparer: Preparer, compactor: Compactor, pool: SharedPool, telemetry: Telemetry
    ) -> None:
        self._preparer = preparer
        self.pool = pool
        self._compactor = compactor
        self._telemetry = telemetry

    async def open(self, job: Job) -> httpx.Response:
        """Send the job and return the response, whatever its status; close it when done.

        Tools that are refused are emulated from then on, in this job first.

        Raises:
            UpstreamUnavailable: the backend can't be reached.
        """
        response = await self._open(job)
        if response.status_code >= 400 and job.may_emulate:
            response, body = await buffered(response)
            if await self.emulate(job, response.status_code, body):
                return await self._open(job)
        return response

    async def emulate(self, job: Job, status: int, body: bytes) -> bool:
        """Learn from a refusal of tools, and prepare the job anew without them; False if it is none."""
        refusal = refuses_tools(status, body) if job.may_emulate else None
        if refusal is None:
            return False
        # A choice, or a provider that the client picked, says nothing of other requests.
        if not refusal.choice_only and "provider" not in job.request.body:
            job.route.upstream.prober.learn_tools(job.route.model, refusal.origin)
            self._telemetry.tools_refused(job.key, refusal.origin)
        job.become(await self._preparer.prepare(job.exchange, job.asked, job.route, emulate=True))
        budget = job.budget
        if budget is not None and budget.needs_compaction(job.estimate.tokens, job.estimate.upper):
            await self._compactor.compact(job)
        return job.offer is not None

    async def _open(self, job: Job) -> httpx.Response:
        budget = job.budget
        if budget is not None and _must_fit_whole(job):
            _lower_bound(job, budget.window)
        if budget is not None and job.request.stream and job.resumable and not job.cancels:
            _stop_by_bound(job, budget)
        retry = 0
        while True:
            response = await self._send(job)
            if response.status_code < 400 and response.status_code != 0:
                return response
            response, body = await buffered(response)
            overflow = recognise(response.status_code, body)
            if overflow is None:
                return response
            if was_cleared(job, overflow):
                await self.pool.wait(job)
            elif retry == RETRIES or not await self.shorten(job, overflow, retry):
                return response
            else:
                retry += 1

    async def shorten(self, job: Job, overflow: Overflow, retry: int) -> bool:
        """Learn from a refusal and make the job fit; False: there is nothing to shorten."""
        self._telemetry.overflowed(job.key, overflow.window)
        upstream, model = job.route.upstream, job.route.model
        if overflow.window is not None and overflow.window >= SMALLEST_WINDOW:
            upstream.prober.learn(model, overflow.window, overflow.origin)
            job.profile = await upstream.prober.profile(model)
        elif job.budget is None and job.estimate.tokens > SMALLEST_WINDOW:
            # Nobody names the window; it is smaller than this prompt.
            window = Fact(int(job.estimate.tokens * 0.9), "refused prompt", Trust.LEARNED)
            job.profile = replace(job.profile, window=window)
        budget = job.budget
        if budget is None:
            return False
        if job.estimate.tokens <= 0.8 * budget.window and _lower_bound(job, budget.window):
            return True
        # The refusal may know better than the estimate how long the prompt is: aim as much lower.
        known = overflow.prompt_tokens or 0
        excess = max(1.0, known / max(1, job.estimate.tokens)) if known < 8 * job.estimate.tokens else 1.0
        less = (_UNTOLD if excess == 1.0 else 1.0) * (0.7 if retry else 1.0) / excess
        return await self._compactor.compact(
            job, goal=int(budget.goal * less), limit=int(budget.limit * less)
        )

    async def _send(self, job: Job) -> httpx.Response:
        exchange, request = job.exchange, job.request
        drop: set[bytes] = set()
        headers = exchange.headers
        body = job.outgoing(may_ask_usage=job.options.ask_usage and _may_ask(job.route.upstream))
        if body is request.raw and request.wire is not request.raw:
            body = request.wire
        else:
            drop.add(b"content-encoding")
        if request.stream:
            # A stream is watched as it comes; no local backend compresses one.
            headers = uncompressed(headers)
        return await job.route.upstream.send("POST", exchange.target, headers, body, drop=drop)


def _lower_bound(job: Job, window: int) -> bool:
    """Lower a `max_tokens` that, not the prompt, is what does not fit; the answer is resumed from there.

    OpenRouter and older vLLM add it to the prompt when they admit a request.
    """
    room = window - job.estimate.upper
    wanted = job.request.max_tokens
    if wanted is None or wanted <= room or job.answer_bound is not None:
        return False
    _bound(job, room)
    return True


def _stop_by_bound(job: Job, budget: ContextBudget) -> None:
    """Have an answer that would be paused end by itself, because it is paid for to its end when it is left.

    Only where it may get that long: what models write in one go is bounded by the provider, or by habit.
    """
    room = budget.pause_point - job.estimate.upper
    most = job.profile.max_output.value if job.profile.max_output is not None else _LONG_ANSWER
    if room < min(most, job.request.max_tokens or most) and job.answer_bound is None:
        _bound(job, room)


def _bound(job: Job, room: int) -> None:
    fields = bounded_answer(job, room, 0) or {}
    job.fields |= fields
    job.answer_bound = min(fields.values(), default=None)


def bounded_answer(job: Job, room: int, said: int) -> dict[str, int] | None:
    """`max_tokens` for an attempt: what the client allows less what was said, and no more than the room.

    All in tokens; None if the client set no bound and an attempt can be left at any time.
    """
    request = job.request
    room = max(_SMALLEST_ANSWER, room - _ROOM_MARGIN)
    if request.max_tokens is None:
        return None if job.cancels else {"max_tokens": room}
    left = max(1, request.max_tokens - said)
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in request.body]
    return dict.fromkeys(names, max(1, min(left, room)))


async def buffered(response: httpx.Response) -> tuple[httpx.Response, bytes]:
    """The same response with its body read, and that body; a very long body stays unread.

    Raises:
        UpstreamUnavailable: the body broke off.
    """
    length = int(response.headers.get("content-length") or 0)
    if length > ERROR_BYTES:
        return response, b""
    try:
        body = await raw_body(response)
    except httpx.TransportError as error:
        raise UpstreamUnavailable(f"The backend broke off its answer ({type(error).__name__}).") from None
    finally:
        await response.aclose()
    copy = httpx.Response(response.status_code, headers=response.headers.raw, stream=httpx.ByteStream(body))
    return copy, body


async def raw_body(response: httpx.Response) -> bytes:
    """The body as it came, not decoded.

    Raises:
        httpx.TransportError: it broke off.
    """
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return b"".join([part async for part in response.stream])


def is_event_stream(response: httpx.Response) -> bool:
    """Whether the backend streams an answer, rather than telling an error."""
    kind = str(response.headers.get("content-type", ""))
    return response.status_code == 200 and kind.startswith("text/event-stream")


def _must_fit_whole(job: Job) -> bool:
    """Whether the answer that the client allows has to fit as well, because what does not is lost in silence.

    Where the window shifts, nobody watches an answer that comes whole. OpenRouter shortens a prompt for a small
    window until `max_tokens` fit too ("Context compression", 2026).
    """
    backend = job.route.upstream.prober.known_backend
    if backend is None:
        return False
    return backend.kind == "openrouter" or (backend.shifts_silently and not job.request.stream)


def _may_ask(upstream: Upstream) -> bool:
    """OpenRouter reports usage unasked, so there is nothing to take out again."""
    backend = upstream.prober.known_backend
    return backend is None or backend.kind != "openrouter"

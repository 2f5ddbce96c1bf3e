"""Attempts: every request that is sent to a backend on behalf of a client's, and what comes after a refusal.

First sends, retries and resumes, streamed and whole: all are sent here (a summary is a request of Spillway's own), what a backend refuses is judged by one pure
decision (`proxy.backends.refusals`) on one account per client request, and what was decided is carried out here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, replace

import httpx

from proxy.addon import AddOn
from proxy.attempts.bounds import bound_first, bound_resumed, lower_bound
from proxy.attempts.passing import failure
from proxy.attempts.room import cut_from_newest, too_long
from proxy.attempts.sending import ChatBody, send_chat
from proxy.backends.errors import SentRequest, is_refusal
from proxy.backends.profile import Continuation, Fact, ModelKey, Trust
from proxy.backends.refusals import (
    POOL_FULL,
    SMALLEST_WINDOW,
    UNDERRATED,
    Overflow,
    Refusal,
    Remedy,
    ToolRefusal,
    credible,
    is_not_ready,
    recognise,
    refuses_tools,
    remedy,
)
from proxy.compaction.continuation import ContinuationRequest
from proxy.compactor import Compactor
from proxy.core.errors import UpstreamRefused, UpstreamTimeout, UpstreamUnavailable
from proxy.core.jsontext import dumps
from proxy.dialects.chat.request import going_on, may_ask_usage, written
from proxy.job import Job
from proxy.net.bodies import QUOTED, body_of, is_event_stream, retry_after
from proxy.outcome import overriding
from proxy.preparing import Preparer
from proxy.tokens.meter import Estimate, Meter

_UNTOLD = 0.85
"""Factor on the goal after a refusal that does not say how long the prompt is."""
_FINAL = frozenset({401, 402, 403})
"""Statuses that no other way of asking would change: the key, money."""


@dataclass(slots=True)
class Attempted:
    """An attempt to go on that is open."""

    response: httpx.Response
    estimate: Estimate
    request: ContinuationRequest
    bound: int | None
    """`max_tokens` it was sent with."""


class Attempts:
    """The one owner of attempts; holds no state of any one request, which is in its job."""

    def __init__(self, *, preparer: Preparer, compactor: Compactor, pool: SharedPool, meter: Meter) -> None:
        self._preparer = preparer
        self._compactor = compactor
        self._pool = pool
        self._meter = meter

    async def open(self, job: Job) -> tuple[httpx.Response, bytes | None]:
        """Send the job, again as often as something can be done about a refusal; the last response, whatever it says.

        It is a stream to be read and closed, and then there is no body; or its body has been read, not decoded.

        Raises:
            UpstreamUnavailable: the backend can't be reached, or broke off.
            ContextOverflow: it refused the prompt as too long, and nothing is left that could be shortened, or hardly
                anything of the newest message.
        """
        bound_first(job)
        why = "first"
        while True:
            if job.prompt.history is not job.prompt.sent:
                await self.record_message_cut(job)
            for addon in overriding(job.addons, AddOn.before_sending):
                addon.before_sending(job, again=why != "first")
            response = await self._send(job, why)
            if job.prompt.request.stream and is_event_stream(response):
                job.state.opened = response
                return response, None
            body = await self._read(job, response)
            refusal = await self._judged(job, response, body)
            if refusal is None:
                return response, body
            done = await self.mend(job, refusal)
            if done is Remedy.GIVE_UP:
                if refusal.overflow is not None and refusal.overflow is not POOL_FULL and job.budget is not None:
                    raise too_long(job, self._meter)
                return response, body
            why = done.value

    async def record_message_cut(self, job: Job) -> int:
        """Record and return the tokens cut from the newest user message because it alone exceeds the window.

        Raises:
            ContextOverflow: less than a tenth of it is left.
        """
        cut = await cut_from_newest(job, job.prompt.history, self._meter)
        if cut is None:
            return 0
        outcome = job.outcome
        outcome.left_out, outcome.left_out_of = cut
        outcome.add("message_cut", tokens=outcome.left_out, whole=outcome.left_out_of)
        return outcome.left_out

    async def go_on(
        self,
        job: Job,
        ask: ContinuationRequest,
        delivered_tokens: int,
        *,
        how: Continuation | None,
        why: str = "correction",
    ) -> Attempted | Refusal:
        """Ask for more of an answer of which `delivered_tokens` are said, in this way; None: for another reason.

        A backend that is not ready, or breaks off, is asked again: see `Spent.retry`.

        Raises:
            UpstreamUnavailable: the backend can't be reached, or does not get ready.
            UpstreamRefused: it refuses, and no other request would change that.
        """
        # These frames are rewritten in any case, so the backend may as well count in each of them.
        backend = job.known_backend
        counts = backend.ask_running_counts if backend is not None else {}
        body = going_on(job.prompt.body(), ask.messages, ask.fields, counts)
        estimate = await self._meter.measure(job.key, body, tenant=job.exchange.tenant)
        bound = bound_resumed(job, estimate.upper, delivered_tokens)
        content = ChatBody(dumps(body | bound))
        while True:
            try:
                opened = await self._opened(job, content, how.value if how else why, estimate)
            except (UpstreamTimeout, UpstreamRefused):
                raise
            except UpstreamUnavailable as error:
                if (seconds := job.state.spent.retry(error.retry_after)) is None:
                    raise
                await asyncio.sleep(seconds)
                continue
            if isinstance(opened, Refusal):
                return replace(opened, way=how)
            job.state.opened = opened
            return Attempted(opened, estimate, ask, min(bound.values(), default=None))

    async def _opened(self, job: Job, content: ChatBody, why: str, estimate: Estimate) -> httpx.Response | Refusal:
        """Send a request to continue an answer once; return the stream, or a refusal that has a remedy.

        Raises:
            UpstreamUnavailable: the backend can't be reached, broke off, or is not ready.
            UpstreamRefused: it refuses, and no other request would change that.
        """
        response = await self._post(job, content, why, stream=True)
        if is_event_stream(response):
            return response
        status, body = response.status_code, await self._read(job, response)
        overflow, not_ready = await self._overflow(job, status, body, estimate), is_not_ready(status, body)
        if overflow is not None or not (not_ready or status in _FINAL or status >= 500):
            return self._refusal(job, overflow, None)
        quoted = body[:QUOTED].decode("utf-8", "replace")
        error = (UpstreamUnavailable if not_ready else UpstreamRefused)(
            f"Backend {job.route.upstream.name} does not continue the answer (status {status}): {quoted}"
        )
        error.retry_after = retry_after(response)
        job.outcome.add("backend_failed", error=failure(error))
        raise error

    async def mend(self, job: Job, refusal: Refusal) -> Remedy:
        """Decide what to do about a refusal and do it; `GIVE_UP` if there is nothing to do, or it did not help."""
        todo = remedy(refusal, job.state.spent)
        done = True
        match todo:
            case Remedy.WAIT:
                await self._pool.wait(job)
            case Remedy.SHORTEN:
                assert refusal.overflow is not None
                done = await self._shorten(job, refusal.overflow)
            case Remedy.EMULATE:
                assert refusal.tools is not None
                done = await self._emulate(job, refusal.tools)
            case Remedy.OTHER_WAY | Remedy.GIVE_UP:
                pass
        return todo if done else Remedy.GIVE_UP

    async def refused(self, job: Job, overflow: Overflow | None, data: bytes) -> Refusal:
        """Build the refusal from an error frame's data before any output, or from an overflow without one."""
        reasons = await self._reasons(job, 200, data) if data else (overflow, None)
        return self._refusal(job, *reasons)

    async def cleared(self, job: Job) -> bool:
        """Handle a slot that was cleared in the middle of an answer; False: resuming it is not worth it."""
        refusal = Refusal(overflow=POOL_FULL, roomy=True)
        return await self.mend(job, refusal) is not Remedy.GIVE_UP

    # -- judging

    async def _judged(self, job: Job, response: httpx.Response, body: bytes) -> Refusal | None:
        """Read the refusal in a response that is no stream; None: it is an answer, or an error without a remedy."""
        status = response.status_code
        if status < 400 and status != 0 and not is_refusal(body):
            return None
        overflow, tools = await self._reasons(job, status, body)
        return None if overflow is None and tools is None else self._refusal(job, overflow, tools)

    async def _reasons(self, job: Job, status: int, body: bytes) -> tuple[Overflow | None, ToolRefusal | None]:
        """Recognise why a request was refused: too long a prompt, or else its tools."""
        overflow = await self._overflow(job, status, body, job.prompt.estimate)
        if overflow is not None or not job.may_emulate:
            return overflow, None
        return None, refuses_tools(status, body, SentRequest(job.state.posted))

    async def _overflow(self, job: Job, status: int, body: bytes, estimate: Estimate) -> Overflow | None:
        """Recognise an overflow that is credible for the request sent last, given its estimate."""
        sent, known = SentRequest(job.state.posted), job.route.known
        found = recognise(status, body, sent)
        believed = job.profile.window
        if found is None or found.window is None or (believed and found.window == believed.value):
            return found
        needed = UNDERRATED * estimate.upper + sent.answer_bound
        loaded = await known.loaded_window()
        return credible(found, needed=needed, loaded=loaded, held=known.held)

    def _refusal(self, job: Job, overflow: Overflow | None, tools: ToolRefusal | None) -> Refusal:
        budget = job.budget
        roomy = budget is not None and job.prompt.estimate.upper < budget.pause_point
        return Refusal(overflow=overflow, tools=tools, roomy=roomy)

    # -- mending

    async def _shorten(self, job: Job, overflow: Overflow) -> bool:
        """Learn from a refusal and make the job fit; False: there is nothing to shorten."""
        job.outcome.add("refused", what="overflow", origin=overflow.origin, window=overflow.window)
        if overflow.window is not None:
            if overflow.quoted or job.loads_window or "provider" in job.request.body:  # it holds for no other request
                window = Fact(overflow.window, overflow.origin, Trust.LEARNED)
                job.profile = replace(job.profile, window=window)
            else:
                job.route.known.learn("window", overflow.window, overflow.origin)
                await job.read_profile()
        elif job.budget is None and job.prompt.estimate.tokens > SMALLEST_WINDOW:
            # Nobody names the window; it is smaller than this prompt.
            window = Fact(int(job.prompt.estimate.tokens * 0.9), "refused prompt", Trust.FALLBACK)
            job.profile = replace(job.profile, window=window)
        budget = job.budget
        if budget is None:
            return False
        if job.prompt.estimate.tokens <= 0.8 * budget.window and lower_bound(job, budget.window):
            return True
        # The refusal may know better than the estimate how long the prompt is: aim as much lower.
        known = overflow.prompt_tokens or 0
        excess = max(1.0, known / max(1, job.prompt.estimate.tokens)) if known < 8 * job.prompt.estimate.tokens else 1.0
        less = (_UNTOLD if excess == 1.0 else 1.0) * (0.7 if job.state.spent.shortened > 1 else 1.0) / excess
        return await self._compactor.compact(job, goal=int(budget.goal * less), limit=int(budget.limit * less))

    async def _emulate(self, job: Job, refusal: ToolRefusal) -> bool:
        """Learn from a refusal of tools, and prepare the job again without them."""
        # A choice, or a provider that the client picked, says nothing of other requests.
        if not refusal.quoted and "provider" not in job.prompt.request.body:
            job.route.known.learn("tools", False, refusal.origin)
            job.outcome.add("refused", what="tools", origin=refusal.origin, window=None)
        searched = bool(job.prompt.search)
        await self._preparer.prepare_emulated(job)
        if job.is_due:
            await self._compactor.compact(job)
        return job.prompt.offer is not None or (searched and not job.prompt.search)

    # -- sending

    def _send(self, job: Job, why: str) -> Awaitable[httpx.Response]:
        prompt = job.prompt
        request = prompt.request
        job.state.usage_requested = may_ask_usage(request) and not _reports_usage(job)
        messages = None if prompt.untouched else prompt.messages
        body = written(request, messages, job.prompt.fields, ask_usage=job.state.usage_requested)
        same = messages is None and not job.prompt.fields
        forms = ChatBody(body, request.wire if body is request.raw else None, request.native if same else None)
        return self._post(job, forms, why, stream=request.stream)

    async def _post(self, job: Job, body: ChatBody, why: str, *, stream: bool) -> httpx.Response:
        job.state.posted = body.wire or body.content
        job.outcome.add("sent", why=why, stream=stream)
        headers = job.outcome.traced(job.exchange.headers)
        if job.loads_window and job.profile.window is not None:
            job.route.known.requested_window = job.profile.window.value
            job.route.known.expire()
        try:
            # A client's query (`?api-version=…`) goes with it.
            return await send_chat(job.route, headers, body, query=job.exchange.query)
        except UpstreamUnavailable as error:
            job.outcome.add("backend_failed", error=failure(error))
            raise

    async def _read(self, job: Job, response: httpx.Response) -> bytes:
        try:
            return await body_of(response, job.settings.max_body)
        except UpstreamUnavailable as error:
            job.outcome.add("backend_failed", error=failure(error))
            raise


def _reports_usage(job: Job) -> bool:
    """Return whether the backend reports the usage of a stream without being asked."""
    backend = job.known_backend
    return backend is not None and backend.reports_usage


BREATH = 0.1
"""Seconds that the one which holds the pool waits before it tries again, times the tries."""


class SharedPool:
    """Turns of requests whose slots share one KV cache: when it is full, all slots are cleared, whosever prompt was small.

    llama-server's default is four slots over one cache of the window's size (`--kv-unified`); LM Studio's `parallel` is
    alike. Neither says so beforehand, so the requests that were cleared run one at a time from then on.
    """

    def __init__(self) -> None:
        self._locks: defaultdict[ModelKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait(self, job: Job) -> None:
        """Wait until the job may be sent again."""
        if job.state.pool_lock is None:
            lock = self._locks[job.key]
            await lock.acquire()
            job.state.pool_lock = lock
        else:
            await asyncio.sleep(BREATH * job.state.spent.waits)


async def leave(job: Job) -> None:
    """Release what the job holds: its lock on the pool, and a stream that was opened and is no longer read."""
    if job.state.pool_lock is not None:
        job.state.pool_lock.release()
        job.state.pool_lock = None
    if job.state.opened is not None:
        await job.state.opened.aclose()

"""Attempts: every request that is sent to a backend on behalf of a client's, and the remedy after a refusal.

All first sends, retries and resumes go out here, streamed or not; only summaries, which are Spillway's own requests, do not.
One pure function (`proxy.backends.refusals.remedy`) decides about a refusal, given what this client request has tried
already (`Spent`), and this module carries the decision out.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import httpx

from proxy.addon import AddOn, AddOns
from proxy.attempts.bounds import bound, bound_first, bound_resumed, lower_bound, unbound
from proxy.attempts.learning import learn_counted, learn_feature, learn_window
from proxy.attempts.too_long import record_message_cut, too_long
from proxy.backends import refusals
from proxy.backends.errors import SentRequest, is_refusal
from proxy.backends.overflow import ORIGIN, UNDERRATED, Overflow, affordable, credible, recognise, told_apart
from proxy.backends.profile import TEMPLATE_RULES, Continuation, ModelKey, value_of
from proxy.backends.refusals import Feature, FeatureRefusal, Refusal, Remedy
from proxy.compaction.continuation import ContinuationRequest
from proxy.compactor import Compactor
from proxy.core.errors import UpstreamRefused, UpstreamTimeout, UpstreamUnavailable, error_in
from proxy.core.jsontext import dumps, is_heavy, loads_or_none
from proxy.core.piece import Piece
from proxy.counting import Counting
from proxy.dialects.chat.answers import pieces_of
from proxy.dialects.chat.request import going_on, may_ask_usage, unstreamed, written
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.net.transport import QUOTED, body_of, is_event_stream, retry_after
from proxy.net.upstream import ChatBody
from proxy.preparing import Preparer
from proxy.shaping.dropped import lacking, meeting
from proxy.shaping.repair import violates
from proxy.tokens.meter import Estimate

_WITHOUT_FIGURES = 0.85
"""Factor on the goal after a refusal that does not say how long the prompt is."""
_FINAL = frozenset({401, 402, 403})
"""Statuses that no other form of the request would change: they are about the key or about money."""
BREATH = 0.1
"""Seconds between two checks whether the other requests on shared slots have ended."""
LOADING_PAUSE = 0.5
"""Seconds between two tries of a backend that is loading its model, unless it names a time itself."""
LOADING = "⏳ Waiting for the model to be loaded"


@dataclass(slots=True)
class Attempted:
    """An open attempt to continue an answer."""

    response: httpx.Response | Sequence[Piece]
    """Stream to read, or the pieces of an answer in one body."""
    estimate: Estimate
    request: ContinuationRequest
    bound: int | None
    """`max_tokens` of the request, if Spillway set one."""


class Attempts:
    """The one owner of attempts. The state of a single request is in its job, not here."""

    def __init__(self, *, preparer: Preparer, compactor: Compactor, counting: Counting, addons: AddOns) -> None:
        self.addons = addons
        self.compactor = compactor
        self.counting = counting
        self._preparer = preparer
        self._running: defaultdict[ModelKey, set[str]] = defaultdict(set)
        """Running jobs of each model, by the unique part of their ids: its backend has accepted them, or is about to."""
        self._slots: defaultdict[ModelKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Lock of each model, held by the one request that may be sent after the backend's slots were cleared.

        When a KV cache that slots share is full, the backend clears all of them, even those with small prompts.
        llama-server's default is four slots over one cache of the window's size (`--kv-unified`); LM Studio's `parallel` is
        similar. Neither announces it, so the requests that were cleared run one at a time afterwards.
        """

    async def open(self, job: Job) -> tuple[httpx.Response, bytes | None]:
        """Send the job, and again for as long as there is a remedy for its refusal; return the last response in any case.

        The response is an open stream to read and close, with None as its body, or its body has been read.

        Raises:
            UpstreamUnavailable: the backend can't be reached, or broke off.
            ContextOverflow: it refused the prompt as too long, and nothing more can be shortened, or hardly anything would
                be left of the newest message.
        """
        bound_first(job)
        why = "first"
        while True:
            if job.prompt.history is not job.prompt.sent:
                await record_message_cut(job, self.counting.meter)
            await self.addons.place(job)
            for addon in self.addons.at(AddOn.before_sending):
                addon.before_sending(job, again=why != "first")
            streamed = job.prompt.request.stream and job.streams
            response, body = await self._post(job, _first_body(job), why, stream=streamed)
            if body is None or (response.status_code < 400 and not is_refusal(body)):
                if job.spent.counted:
                    await learn_counted(job)
                return response, body
            if refusals.is_loading(response.status_code, body) and await self._wait_for_loading(job, response):
                why = "loading"
                continue
            refusal = await self.refusal(job, response.status_code, body, streamed=streamed)
            if refusal.overflow is None and refusal.feature is None and refusal.affordable is None:
                _raise_unlisted(job, response, body)
                return response, body
            done = await self.mend(job, refusal)
            if done is Remedy.GIVE_UP:
                if refusal.overflow is not None and job.budget is not None and not refusal.pooled:
                    raise await too_long(job, self.counting.meter, counted=refusal.overflow.prompt_tokens or 0)
                return response, body
            why = done.value

    async def make_fit(self, job: Job, window: int) -> None:
        """Have a backend that silently cuts read a prompt that may exceed `window` tokens, and shorten it as far as that shows.

        Raises:
            ContextOverflow: it exceeds them, and nothing more can be shortened.
        """
        meter = self.counting.meter
        while job.estimate.upper >= window and not job.estimate.counted:
            estimate = job.estimate
            body = unstreamed(job.prompt.body()) | dict.fromkeys(job.prompt.request.bounds, 1)
            response, answered = await self._post(job, ChatBody(dumps(body)), "asked", stream=False)
            overflow = await self._overflow(job, response.status_code, answered or b"", estimate)
            tokens = max([piece.prompt_tokens for piece in _pieces(response, answered or b"")], default=0)
            if overflow is None and not (tokens and meter.shows_cut(estimate, tokens, window)):
                meter.anchor_exact(estimate, tokens)
                await self.counting.recount(job)
                return
            refusal = Refusal(overflow=overflow or Overflow(None, None))
            if await self.mend(job, refusal) is Remedy.GIVE_UP:
                raise await too_long(job, meter, counted=(overflow and overflow.prompt_tokens) or 0)

    async def go_on(
        self, job: Job, request: ContinuationRequest, delivered_tokens: int, way: Continuation | None, why: str
    ) -> Attempted | Refusal:
        """Ask for more of an answer, of which the client has `delivered_tokens`. `way` is None unless it continues the text.

        If the backend is not ready, or breaks off, it is asked again: see `Spent.retry`.

        Raises:
            UpstreamUnavailable: the backend can't be reached, or does not get ready.
            UpstreamRefused: it refuses, and no other request would change that.
        """
        for addon in self.addons.at(AddOn.before_resuming):
            await addon.before_resuming(job)
        # Frames of a resumed answer are rewritten anyway, so usage in each of them costs nothing.
        counts = job.known_backend.ask_running_counts
        body, streamed = going_on(job.prompt.body(), request.messages, request.fields, counts), job.streams
        estimate = await self.counting.meter.measure(job.key, body, tenant=job.exchange.tenant)
        await self.compactor.foresee(job)
        bounds = bound_resumed(job, estimate.upper, delivered_tokens)
        content = ChatBody(dumps((body if streamed else unstreamed(body)) | bounds))
        while True:
            try:
                response, refused = await self._post(job, content, why, stream=streamed)
                if refused is None or (pieces := _pieces(response, refused)):
                    received = response if refused is None else pieces
                    return Attempted(received, estimate, request, min(bounds.values(), default=None))
                overflow = await self._overflow(job, response.status_code, refused, estimate)
                wanted: list[Feature] = ["streams"] if streamed and overflow is None else []
                wanted += lacking(request.messages, job.template_rules) if overflow is None else []
                feature = _refused_feature(job, response.status_code, refused, wanted)
                if feature is not None and feature.feature != "streams":
                    await learn_feature(job, feature)
                    rules = replace(job.template_rules, keep_last=job.prompt.rules.keep_last)
                    job.prompt = replace(job.prompt, rules=rules)
                    request = replace(request, messages=meeting(request.messages, rules))
                    return await self.go_on(job, request, delivered_tokens, way, why)
                if overflow is None and feature is None:
                    _raise_final(job, response, refused)
                if overflow is not None and overflow.bounded:  # the refused bound was Spillway's, not the client's
                    overflow = replace(overflow, bounded=False, quoted=True)
                return Refusal(overflow=overflow, feature=feature, roomy=_is_roomy(job), way=way)
            except (UpstreamTimeout, UpstreamRefused):
                raise
            except UpstreamUnavailable as error:
                if (seconds := job.spent.retry(error.retry_after)) is None:
                    raise
                await asyncio.sleep(seconds)

    async def refusal(self, job: Job, status: int, body: bytes, *, streamed: bool = False) -> Refusal:
        """Recognise why a first request was refused: a prompt that is too long, tools, thinking, roles, a stream, or unknown."""
        overflow, feature = await self._overflow(job, status, body, job.estimate), None
        if overflow is None:
            features: list[Feature] = ["tools"] if job.may_emulate else []
            bounds = job.settings.thinking_budget is not None or job.request.thinking is not None
            features += ["thinks"] if bounds else []
            features += [rule for rule in TEMPLATE_RULES if not getattr(job.template_rules, rule)]
            feature = _refused_feature(job, status, body, [*features, "streams"] if streamed else features)
            if feature is not None and feature.feature in TEMPLATE_RULES:
                messages = job.prompt.messages
                feature = feature if await offload_if(is_heavy(messages), violates, messages, feature.feature) else None
        payable = affordable(status, body) if overflow is None else None
        return Refusal(overflow=overflow, feature=feature, roomy=_is_roomy(job), affordable=payable)

    async def mend(self, job: Job, refusal: Refusal) -> Remedy:
        """Apply the remedy for a refusal and return it, or `GIVE_UP` if there is none, or it did not help."""
        todo, done = refusals.remedy(refusal, job.spent), True
        if todo is Remedy.WAIT:
            await self._wait_for_slots(job)
        elif todo is Remedy.BOUND:
            done = _bound_lower(job, refusal)
        elif todo is Remedy.SHORTEN and refusal.overflow is not None:
            done = await self._shorten(job, refusal.overflow)
        elif todo is not Remedy.GIVE_UP and refusal.feature is not None:
            done = await self._do_without(job, refusal.feature)
        return todo if done else Remedy.GIVE_UP

    async def _overflow(self, job: Job, status: int, body: bytes, estimate: Estimate) -> Overflow | None:
        """Recognise an overflow in a response, if it is credible given the estimate of the request sent last."""
        sent, known = SentRequest(job.posted), job.route.known
        found = recognise(status, body, sent)
        believed = job.profile.window
        if found is None or found.window is None or (believed and found.window == believed.value):
            return found
        loaded = await known.loaded_window()
        found = told_apart(found, sent.answer_bound, loaded or value_of(believed), job.spent.bounded)
        needed = UNDERRATED * estimate.upper + sent.answer_bound
        return credible(found, needed=needed, loaded=loaded, held=known.held)

    async def _wait_for_slots(self, job: Job) -> None:
        """Wait for this request's turn among those that were cleared, and then, up to the read timeout, for the running ones."""
        # It must not count as running: the request that holds the lock would wait for it, while it waits for the lock.
        (running := self._running[job.key]).discard(job.unique)
        if not job.spent.in_turn:  # or else it would wait for itself
            await job.held.enter_async_context(self._slots[job.key])
            job.spent.in_turn = True
        with suppress(TimeoutError):
            async with asyncio.timeout(job.settings.read_timeout):
                while running:  # noqa: ASYNC110 - an event for each running job would be more code
                    await asyncio.sleep(BREATH)

    async def _wait_for_loading(self, job: Job, response: httpx.Response) -> bool:
        """Wait a moment for a backend that is loading its model; returns False after the read timeout in total."""
        now = job.outcome.clock()
        job.spent.loads_since = job.spent.loads_since or now
        if now - job.spent.loads_since > job.settings.read_timeout:
            return False
        job.progress.waits_for = LOADING
        await asyncio.sleep(min(retry_after(response) or LOADING_PAUSE, refusals.LONGEST_RETRY))
        job.route.known.expire()
        await job.read_profile()
        await self.compactor.compact_if_due(job)
        return True

    async def _shorten(self, job: Job, overflow: Overflow) -> bool:
        """Learn from a refusal and make the job fit; returns False if nothing can be shortened."""
        unbound(job)
        window = job.window
        job.outcome.add("refused", what="overflow", origin=ORIGIN, window=overflow.window or window)
        await learn_window(job, overflow)
        budget, tokens = job.budget, job.estimate.tokens
        if budget is None:
            return False
        if window is None:  # the window has just become known, and tools, results and limits depend on it
            await self._preparer.prepare_again(job, emulate="tools" in job.spent.without)
            if job.estimate.tokens < tokens and not job.is_due:
                return True
            tokens = job.estimate.tokens
        if tokens <= 0.8 * budget.window and lower_bound(job, budget.window):
            job.spent.counted = True
            return True
        # The backend's count may be higher than the estimate. Then aim lower by the same factor, unless it is beyond belief.
        known = overflow.prompt_tokens or 0
        excess = max(1.0, known / max(1, tokens)) if known < 8 * tokens else 1.0
        less = (_WITHOUT_FIGURES if excess == 1.0 else 1.0) * (0.7 if job.spent.shortened > 1 else 1.0) / excess
        return await self.compactor.compact(job, goal=int(budget.goal * less), limit=int(budget.limit * less))

    async def _do_without(self, job: Job, refusal: FeatureRefusal) -> bool:
        """Learn from a refused feature, and prepare the job again without it."""
        await learn_feature(job, refusal)
        if refusal.feature == "streams":
            return True
        offered = bool(job.prompt.builtin)
        await self._preparer.prepare_again(job, emulate="tools" in job.spent.without)
        await self.compactor.compact_if_due(job)
        return refusal.feature != "tools" or job.prompt.offer is not None or (offered and not job.prompt.builtin)

    async def _post(self, job: Job, body: ChatBody, why: str, *, stream: bool) -> tuple[httpx.Response, bytes | None]:
        """Send a request once; returns an open stream and None, or a response with its body."""
        job.posted, running = body.wire or body.content, self._running[job.key]
        running.add(job.unique)
        job.held.callback(running.discard, job.unique)
        job.outcome.add("sent", why=why, stream=stream)
        headers = job.outcome.traced(job.client_headers)
        if job.loads_window and job.profile.window is not None:
            job.route.known.requested_window = job.profile.window.value
            job.route.known.expire()
        try:
            # A client's query (`?api-version=…`) goes with it.
            response = await job.route.upstream.send_chat(job.route.known, headers, body, query=job.exchange.query)
            if is_event_stream(response):
                job.held.push_async_callback(response.aclose)
                job.progress.waits_for = ""
                return response, None
            received = await body_of(response, job.settings.max_body)
        except UpstreamUnavailable as error:
            job.outcome.add("backend_failed", error=error.label)
            raise
        if response.status_code >= 400:
            running.discard(job.unique)
        return response, received


def _first_body(job: Job) -> ChatBody:
    """Build the body of a first request: the client's own bytes if nothing was changed."""
    prompt, request = job.prompt, job.prompt.request
    if request.stream and not job.streams:
        request = request.changed(stream=False, stream_options=None)
    messages = None if prompt.untouched else prompt.messages
    asks = job.streams and may_ask_usage(request, reported=job.known_backend.reports_usage)
    body = written(request, messages, prompt.fields, ask_usage=asks)
    same = messages is None and not prompt.fields
    return ChatBody(body, request.wire if body is request.raw else None, request.native if same else None)


def _refused_feature(job: Job, status: int, body: bytes, features: Sequence[Feature]) -> FeatureRefusal | None:
    return refusals.refused_feature(status, body, features, SentRequest(job.posted))


def _pieces(response: httpx.Response, body: bytes) -> Sequence[Piece]:
    """Return the pieces of an answer in one body; empty if the body is not an answer."""
    return pieces_of(body) if response.status_code == 200 and not is_refusal(body) else ()


def _is_roomy(job: Job) -> bool:
    return job.budget is not None and job.estimate.upper < job.budget.pause_point


def _raise_unlisted(job: Job, response: httpx.Response, body: bytes) -> None:
    """Raise `ModelNotFound` if no backend lists the model, and the one that was asked answered 404.

    Not before it is asked: some know aliases that they do not list, and one that runs a single model answers to any name.
    """
    if response.status_code == 404 and job.route.unlisted_among is not None:
        raise job.route.not_found((error_in(loads_or_none(body), 404) or {}).get("message", ""))


def _raise_final(job: Job, response: httpx.Response, body: bytes) -> None:
    """Raise an error if a refusal to continue would not change with another request, or only with time.

    Raises:
        UpstreamUnavailable: the backend is not ready.
        UpstreamRefused: it refuses for good.
    """
    status, not_ready = response.status_code, refusals.is_not_ready(response.status_code, body)
    if not (not_ready or status in _FINAL or status >= 500):
        return
    quoted = body[:QUOTED].decode("utf-8", "replace")
    error = (UpstreamUnavailable if not_ready else UpstreamRefused)(
        f"Backend {job.route.upstream.name} does not continue the answer (status {status}): {quoted}"
    )
    error.retry_after = retry_after(response)
    job.outcome.add("backend_failed", error=error.label)
    raise error


def _bound_lower(job: Job, refusal: Refusal) -> bool:
    """Lower `max_tokens` to what the account can pay for, or to test what a figure in an overflow error means.

    If the request is then accepted, the figure was the window less the bound (see `learn_counted`). The user is informed of
    a bound lowered for money.
    """
    overflow, request = refusal.overflow, job.prompt.request
    if refusal.affordable is not None:
        if request.max_tokens is not None and request.max_tokens <= refusal.affordable:
            return False
        job.outcome.add("afforded", tokens=refusal.affordable)
        job.outcome.sent.afforded = refusal.affordable
        job.prompt = replace(job.prompt, request=request.bounded(refusal.affordable))
    elif overflow is not None and overflow.window is not None:
        prompt = overflow.prompt_tokens or job.estimate.upper
        bound(job, overflow.window + (request.max_tokens or 0) - prompt)
        job.spent.counted = True
    return True

"""Sending a turn upstream; a prompt that the backend refuses for its size is compacted and sent again."""

from __future__ import annotations

from dataclasses import replace

import httpx

from proxy.core.budget import ContextBudget
from proxy.core.overflow import Overflow, recognise
from proxy.core.profile import Fact, Trust
from proxy.core.refusals import refuses_tools
from proxy.errors import UpstreamUnavailable
from proxy.net.headers import uncompressed
from proxy.net.upstream import Upstream
from proxy.stages.compacting import Compactor
from proxy.stages.pooling import SharedPool, was_cleared
from proxy.stages.preparing import Preparer
from proxy.stages.turn import Turn
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
    """Opens the first attempt of a turn."""

    def __init__(
        self, *, preparer: Preparer, compactor: Compactor, pool: SharedPool, telemetry: Telemetry
    ) -> None:
        self._preparer = preparer
        self.pool = pool
        self._compactor = compactor
        self._telemetry = telemetry

    async def open(self, turn: Turn) -> httpx.Response:
        """Send the turn and return the response, whatever its status; close it when done.

        Tools that are refused are emulated from then on, in this turn first.

        Raises:
            UpstreamUnavailable: the backend can't be reached.
        """
        response = await self._open(turn)
        if response.status_code >= 400 and turn.may_emulate:
            response, body = await buffered(response)
            if await self.emulate(turn, response.status_code, body):
                return await self._open(turn)
        return response

    async def emulate(self, turn: Turn, status: int, body: bytes) -> bool:
        """Learn from a refusal of tools, and prepare the turn anew without them; False if it is none."""
        refusal = refuses_tools(status, body) if turn.may_emulate else None
        if refusal is None:
            return False
        # A choice, or a provider that the client picked, says nothing of other requests.
        if not refusal.choice_only and "provider" not in turn.request.body:
            turn.route.upstream.prober.learn_tools(turn.route.model, refusal.origin)
            self._telemetry.tools_refused(turn.key, refusal.origin)
        turn.become(await self._preparer.prepare(turn.exchange, turn.asked, turn.route, emulate=True))
        budget = turn.budget
        if budget is not None and budget.needs_compaction(turn.estimate.tokens, turn.estimate.upper):
            await self._compactor.compact(turn)
        return turn.offer is not None

    async def _open(self, turn: Turn) -> httpx.Response:
        budget = turn.budget
        if budget is not None and _must_fit_whole(turn):
            _lower_bound(turn, budget.window)
        if budget is not None and turn.request.stream and turn.resumable and not turn.cancels:
            _stop_by_bound(turn, budget)
        retry = 0
        while True:
            response = await self._send(turn)
            if response.status_code < 400 and response.status_code != 0:
                return response
            response, body = await buffered(response)
            overflow = recognise(response.status_code, body)
            if overflow is None:
                return response
            if was_cleared(turn, overflow):
                await self.pool.wait(turn)
            elif retry == RETRIES or not await self.shorten(turn, overflow, retry):
                return response
            else:
                retry += 1

    async def shorten(self, turn: Turn, overflow: Overflow, retry: int) -> bool:
        """Learn from a refusal and make the turn fit; False: there is nothing to shorten."""
        self._telemetry.overflowed(turn.key, overflow.window)
        upstream, model = turn.route.upstream, turn.route.model
        if overflow.window is not None and overflow.window >= SMALLEST_WINDOW:
            upstream.prober.learn(model, overflow.window, overflow.origin)
            turn.profile = await upstream.prober.profile(model)
        elif turn.budget is None and turn.estimate.tokens > SMALLEST_WINDOW:
            # Nobody names the window; it is smaller than this prompt.
            window = Fact(int(turn.estimate.tokens * 0.9), "refused prompt", Trust.LEARNED)
            turn.profile = replace(turn.profile, window=window)
        budget = turn.budget
        if budget is None:
            return False
        if turn.estimate.tokens <= 0.8 * budget.window and _lower_bound(turn, budget.window):
            return True
        # The refusal may know better than the estimate how long the prompt is: aim as much lower.
        known = overflow.prompt_tokens or 0
        excess = max(1.0, known / max(1, turn.estimate.tokens)) if known < 8 * turn.estimate.tokens else 1.0
        less = (_UNTOLD if excess == 1.0 else 1.0) * (0.7 if retry else 1.0) / excess
        return await self._compactor.compact(
            turn, goal=int(budget.goal * less), limit=int(budget.limit * less)
        )

    async def _send(self, turn: Turn) -> httpx.Response:
        exchange, request = turn.exchange, turn.request
        drop: set[bytes] = set()
        headers = exchange.headers
        body = turn.outgoing(may_ask_usage=turn.options.ask_usage and _may_ask(turn.route.upstream))
        if body is request.raw and request.wire is not request.raw:
            body = request.wire
        else:
            drop.add(b"content-encoding")
        if request.stream:
            # A stream is watched as it comes; no local backend compresses one.
            headers = uncompressed(headers)
        return await turn.route.upstream.send("POST", exchange.target, headers, body, drop=drop)


def _lower_bound(turn: Turn, window: int) -> bool:
    """Lower a `max_tokens` that, not the prompt, is what does not fit; the answer is resumed from there.

    OpenRouter and older vLLM add it to the prompt when they admit a request.
    """
    room = window - turn.estimate.upper
    wanted = turn.request.max_tokens
    if wanted is None or wanted <= room or turn.answer_bound is not None:
        return False
    _bound(turn, room)
    return True


def _stop_by_bound(turn: Turn, budget: ContextBudget) -> None:
    """Have an answer that would be paused end by itself, because it is paid for to its end when it is left.

    Only where it may get that long: what models write in one go is bounded by the provider, or by habit.
    """
    room = budget.pause_point - turn.estimate.upper
    most = turn.profile.max_output.value if turn.profile.max_output is not None else _LONG_ANSWER
    if room < min(most, turn.request.max_tokens or most) and turn.answer_bound is None:
        _bound(turn, room)


def _bound(turn: Turn, room: int) -> None:
    fields = bounded_answer(turn, room, 0) or {}
    turn.fields |= fields
    turn.answer_bound = min(fields.values(), default=None)


def bounded_answer(turn: Turn, room: int, said: int) -> dict[str, int] | None:
    """`max_tokens` for an attempt: what the client allows less what was said, and no more than the room.

    All in tokens; None if the client set no bound and an attempt can be left at any time.
    """
    request = turn.request
    room = max(_SMALLEST_ANSWER, room - _ROOM_MARGIN)
    if request.max_tokens is None:
        return None if turn.cancels else {"max_tokens": room}
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


def _must_fit_whole(turn: Turn) -> bool:
    """Whether the answer that the client allows has to fit as well, because what does not is lost in silence.

    Where the window shifts, nobody watches an answer that comes whole. OpenRouter shortens a prompt for a small
    window until `max_tokens` fit too ("Context compression", 2026).
    """
    backend = turn.route.upstream.prober.known_backend
    if backend is None:
        return False
    return backend.kind == "openrouter" or (backend.shifts_silently and not turn.request.stream)


def _may_ask(upstream: Upstream) -> bool:
    """OpenRouter reports usage unasked, so there is nothing to take out again."""
    backend = upstream.prober.known_backend
    return backend is None or backend.kind != "openrouter"

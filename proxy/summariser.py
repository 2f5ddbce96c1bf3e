"""Summaries written by a model."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, TypeVar

import httpx

from proxy.addon import AddOns
from proxy.backends.errors import SentRequest
from proxy.backends.overflow import ORIGIN, Overflow, recognise
from proxy.backends.profile import value_of
from proxy.backends.refusals import refused_feature
from proxy.compaction.asking import Sliced, Summariser, SummaryAsk, at_its_end, summary_size
from proxy.compaction.compaction import STRATEGIES
from proxy.compaction.policy import summary_wait, works_ahead
from proxy.compaction.summary import instruction
from proxy.compaction.verification import LoopWatch, SummaryReply, checked
from proxy.core import sse
from proxy.core.errors import UpstreamUnavailable
from proxy.core.jsontext import JsonObject, dig, omit
from proxy.core.piece import Piece, as_count
from proxy.dialects.chat.answers import pieces_of, read_frame
from proxy.dialects.chat.request import LOADING, SLOT, summarising
from proxy.job import Job
from proxy.net.tasks import next_step, offload_if
from proxy.net.transport import ERROR_BYTES, body_of, is_event_stream, retry_after
from proxy.net.upstream import ChatBody, Upstream
from proxy.routing import Route, Router
from proxy.stream.answer import Answer

T = TypeVar("T")
Sort: TypeAlias = Literal["any", "again", "append"]
"""Kinds of requests that may never succeed with a model: any, another one after a failure, one appended to the live prompt."""

_log = logging.getLogger("spillway.summary")

IN_VAIN = 2
"""Consecutive failures after which no model is asked again for the same client request."""
IN_A_ROW: dict[Sort, int] = {"any": 4, "again": 2, "append": 2}
"""Consecutive failures of one kind of request with a model, after which only one in `RETRY_EVERY` is made."""
RETRY_EVERY = 8
_MOST_KNOWN = 1000
"""Most entries about failures; limited because the names of models come from clients."""
LONGEST_REST = 30.0
"""Longest `Retry-After`, in seconds, that is waited for, once."""
SMALLEST_BOUND = 64 * 1024
_CHARACTERS = 4
"""Approximate characters per token, for summaries whose usage the backend does not report."""
USEFUL = 224
"""Tokens that a summary may have even if the goal would allow fewer."""
BYTES_PER_TOKEN = 4096
"""Bytes of stream that a summary may take, and more for each token asked for: one comes in 100 to 500."""
TOO_LONG = 2
"""Factor on the tokens asked for, above which a reply is abandoned: its backend ignores `max_tokens`."""
_COLD = 0.8
"""Share of a window that may be filled going by an unconfirmed estimate."""
FAILED = SummaryReply(failed=True)


class NotWritten(Exception):
    """A summary that nobody waits for was not written; it can be requested again once somebody does."""


class _BackendFailed(Exception):
    """The backend failed, not the model. `final`: it should not be asked again for the same client request."""

    def __init__(self, *, final: bool = False) -> None:
        self.final = final


class Summaries:
    """Asks models for summaries, and tracks which kinds of request succeed with each: others are only tried now and then."""

    def __init__(self, router: Router, addons: AddOns) -> None:
        self._router = router
        self._addons = addons
        self._failures: dict[tuple[Sort, str, str], int] = {}
        """Consecutive failures by kind of request, backend and model."""
        self.chosen = ""
        """Model chosen on the page to write all summaries; empty if the settings apply."""

    async def drive(self, job: Job, flow: Sliced[T], seconds: float, *, heavy: bool = False) -> T:
        """Run a flow to its result, getting all summaries that it asks for within `seconds`. `heavy`: off the event loop.

        If a model takes longer, writes without end or asks for a long rest, no model is asked again for the same client
        request, and the history is shortened without one.

        Raises:
            NotWritten: the backend failed, on a job run ahead of its request.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        step: SummaryAsk | tuple[T] | None = None
        while not isinstance(step, tuple):
            step = await offload_if(heavy, next_step, flow, step and await self._write(job, step, deadline))
        return step[0]

    async def write(self, job: Job) -> str:
        """Get a summary of the history without rewriting it; empty if there is none that can be used."""
        tokens = 1024 if job.budget is None else summary_size(job.budget.window // 8)
        question = {"role": "user", "content": instruction(tokens=tokens, prompt=instructions(job))}
        ask = SummaryAsk(at_its_end(list(job.prompt.history), question), append=True, max_tokens=tokens)
        return await self.answer(job, ask)

    async def answer(self, job: Job, ask: SummaryAsk) -> str:
        """Ask once; returns an empty text if the reply cannot be used."""
        return await self._write(job, ask, asyncio.get_running_loop().time() + job.settings.read_timeout)

    async def route(self, job: Job) -> Route:
        """Find the route of the model that summarises for a job: its own unless another is configured."""
        named = (self.chosen or job.settings.summary_model) if STRATEGIES[job.settings.strategy].asks else None
        return job.route if named is None else await self._router.route(named)

    def may_work_ahead(self, job: Job, upstream: Upstream) -> bool:
        """Return whether to use a backend while nobody waits; by default only if its tokens cost nothing."""
        return works_ahead(job.settings, free=self.is_free(upstream))

    def is_free(self, upstream: Upstream) -> bool:
        """Return whether tokens of a backend cost nothing, as far as that is known."""
        return upstream.near and not upstream.prober.known_backend.bills_tokens

    def wait(self, job: Job) -> float:
        """Return the seconds that a job may wait for its summary."""
        insisted, free = bool(job.request.compaction or job.rewrites), self.is_free(job.route.upstream)
        return summary_wait(job.settings, insisted=insisted, ahead=bool(job.ahead), free=free)

    async def summariser(
        self, job: Job, overhead: float = 0.0, *, goal: int | None = None, asks: bool = True
    ) -> Summariser:
        """Size the summariser: a summary gets an eighth of the smaller window, or a fifth of the `goal` tokens if that is less.

        `asks`: a model may be asked, if such requests succeed.

        If the model refused a request for its size, that part of the history would go unread. So a request has no more than
        surely fits: with an unconfirmed estimate, at most four fifths of the window.
        """
        route, budget = await self.route(job), job.budget
        assert budget is not None  # or there is nothing to be shortened
        same, window = route.key == job.route.key, budget.window
        if asks and not same:
            known = route.known
            profile = await (known.loaded({}) if known.window_request.setting is not None else known.profile())
            window = value_of(profile.window) or window
        room, usual = (int(each - overhead) // 5 for each in (budget.goal if goal is None else goal, budget.goal))
        room = max(room, min(usual, USEFUL))
        return Summariser(
            window=window,
            tokens=summary_size(budget.window // 8, window // 8, room),
            overhead=overhead,
            same_model=asks and same and not job.displaced and self._is_worth_trying("append", route),
            trust=max(_COLD, job.surely_below(window) / window) if same else _COLD,
            prompt=instructions(job),
            available=asks
            and (job.request.compaction is not None or job.managed.hands_over or self._is_worth_trying("any", route)),
        )

    async def _write(self, job: Job, ask: SummaryAsk, deadline: float) -> str:
        """Get a summary and record the outcome; returns an empty text if there is none that can be used."""
        progress = job.progress
        if progress.failed >= IN_VAIN or not STRATEGIES[job.settings.strategy].asks:
            return ""
        again, route, failed = progress.failed > 0, await self.route(job), None
        if again and not self._is_worth_trying("again", route):
            progress.failed = IN_VAIN
            return ""
        job.outcome.add("summarising")
        spent = sum(job.managed.spent)
        try:
            async with asyncio.timeout_at(deadline):
                reply = await self._reply(job, route, ask)
        except TimeoutError:
            job.outcome.add("backend_failed", error=TimeoutError.__name__)
            _log.warning("summary by %s took too long and was cancelled", route.model)
            reply, failed = FAILED, _BackendFailed(final=True)
        except _BackendFailed as error:
            reply, failed = FAILED, error
        found = checked(reply, ask.source, tokens=ask.max_tokens, brief=ask.brief)
        if found.text:
            progress.failed = 0
        else:
            final = reply.endless if failed is None else failed.final
            progress.failed = IN_VAIN if final else progress.failed + 1
        if failed is None:
            self._learn(route, again=again, append=ask.append, served=bool(found.text))
        job.outcome.shortened.unfit += found.verdict not in {"kept", "mended"}
        job.outcome.add("summarised", model=route.model, verdict=found.verdict, tokens=sum(job.managed.spent) - spent)
        if failed is not None and job.ahead:
            raise NotWritten
        return found.text

    async def _reply(self, job: Job, route: Route, ask: SummaryAsk) -> SummaryReply:
        """Ask for a summary; once more after a short rest if the backend wants one, or without streaming if it can't stream."""
        streams = route.known.current().streams
        stream = streams is None or streams.value
        for again in (False, True):
            # A request appended to the live prompt goes to the slot that has it cached, a transcript to another one.
            placed: JsonObject = job.prompt.fields if ask.append else {}
            if route.key == job.route.key:
                await self._addons.place(job, None if ask.append else placed)
            content = _content(job, route, ask, placed, stream=stream)
            try:
                response = await route.upstream.send_chat(
                    route.known, job.backend_headers(route), content, ahead=bool(job.ahead)
                )
                try:
                    if response.status_code == 200:
                        return await _read(job, route, ask, response)
                    refused = await body_of(response, ERROR_BYTES)
                finally:
                    await response.aclose()
            except (UpstreamUnavailable, httpx.TransportError) as error:
                name = error.label if isinstance(error, UpstreamUnavailable) else type(error).__name__
                job.outcome.add("backend_failed", error=name)
                _log.warning("summary by %s failed: %s", route.model, name)
                raise _BackendFailed from None
            _log.warning("summary by %s failed: status %d", route.model, response.status_code)
            sent = SentRequest(content.content)
            _learn_window(job, route, recognise(response.status_code, refused, sent))
            if stream and (feature := refused_feature(response.status_code, refused, ["streams"], sent)):
                stream = False
                if not feature.quoted:
                    route.known.learn("streams", stream, feature.origin)
                continue
            seconds = retry_after(response)
            if response.status_code != 429 and seconds is None:
                raise _BackendFailed
            if seconds is None or seconds > LONGEST_REST or again:
                break
            await asyncio.sleep(seconds)
        raise _BackendFailed(final=True)

    def _is_worth_trying(self, sort: Sort, route: Route) -> bool:
        failures = self._failures.get((sort, *route.key), 0)
        if failures < IN_A_ROW[sort]:
            return True
        self._failures[sort, *route.key] = failures + 1
        return (failures - IN_A_ROW[sort]) % RETRY_EVERY == RETRY_EVERY - 1

    def _learn(self, route: Route, *, again: bool, append: bool, served: bool) -> None:
        """Record a request's success; `again`: an earlier one had failed."""
        verdicts: dict[Sort, bool] = {"any": not served, **({"again": not served} if again else {})}
        if served and (append or again):
            verdicts["append"] = not append
        for sort, failed in verdicts.items():
            before = self._failures.pop((sort, *route.key), 0)
            if failed:
                if len(self._failures) >= _MOST_KNOWN:
                    self._failures.clear()
                self._failures[sort, *route.key] = before + 1


def _learn_window(job: Job, route: Route, overflow: Overflow | None) -> None:
    """Learn the window that the refusal of a summary names: with another model loaded meanwhile, it is that of the answer too."""
    if overflow is not None and overflow.window is not None and not (overflow.quoted or job.loads_window):
        route.known.learn("window", overflow.window, ORIGIN)


def instructions(job: Job) -> str:
    """Return the client's own instructions for a summary; empty if Spillway's apply."""
    return "" if job.request.compaction is None else job.request.compaction.instructions


def _content(job: Job, route: Route, ask: SummaryAsk, placed: JsonObject, *, stream: bool) -> ChatBody:
    """Build a request for a summary; the fields of `placed` choose the backend's slot."""
    body = job.prompt.request.body
    if route.key == job.route.key:
        body = {**body, **{name: value for name, value in placed.items() if name == SLOT}}
    else:
        body = omit(body, *LOADING, *(["think"] if body.get("think") is not False else []))
    content = summarising(
        body,
        route.model,
        job.prompt.laid_out(ask.messages) if ask.append else ask.messages,
        append=ask.append,
        max_tokens=ask.max_tokens,
        stream=stream,
        ask_usage=job.request.compaction is not None,
    )
    return ChatBody(content)


async def _read(job: Job, route: Route, ask: SummaryAsk, response: httpx.Response) -> SummaryReply:
    """Read a summary, streamed or not, and add its tokens to those spent for the client.

    The caller closes the connection, which stops a model that loops, or does not end.
    """
    # A reply in one piece has at least a token for six characters.
    answer, progress = Answer(0, lambda text: len(text) // 6), job.progress
    limit, size, before = SMALLEST_BOUND + ask.max_tokens * BYTES_PER_TOKEN, 0, progress.written
    streams, body, splitter = is_event_stream(response), bytearray(), sse.FrameSplitter(limit)
    watches, errors = (LoopWatch(), LoopWatch()), list[str]()

    def take(pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            answer.add(piece)
            if piece.error is not None:
                errors.append(_error_code(piece.error))
            for watch, text in zip(watches, (piece.text, piece.thought), strict=True):
                watch.feed(text)

    reply = None
    assert isinstance(response.stream, httpx.AsyncByteStream)
    async for data in response.stream:
        size += len(data)
        if size > limit:
            _log.warning("a summary was cancelled after %d bytes", limit)
            reply = SummaryReply(failed=True, endless=True)
            break
        if not streams:
            body += data
            continue
        take(map(read_frame, sse.frames(splitter.feed(data))))
        progress.written = before + answer.completion_tokens
        if any(watch.looped for watch in watches):
            reply = SummaryReply(answer.text, looped=True)
            break
        if answer.completion_tokens > ask.max_tokens * TOO_LONG:
            reply = SummaryReply(answer.text, cut=True, endless=True)
            break
    else:
        take(map(read_frame, sse.frames(splitter.flush())) if streams else pieces_of(bytes(body)))
        reply = SummaryReply(answer.text, looped=True) if any(watch.looped for watch in watches) else None
    reply = reply or _ended(job, route, answer, errors)
    usage, (prompt_tokens, completion_tokens) = answer.attempt.usage or {}, job.managed.spent
    prompt_tokens += as_count(usage.get("prompt_tokens")) or len(str(ask.messages)) // _CHARACTERS
    completion_tokens += as_count(usage.get("completion_tokens")) or len(answer.text) // _CHARACTERS
    job.managed.spent = prompt_tokens, completion_tokens
    return reply


def _ended(job: Job, route: Route, answer: Answer, errors: list[str]) -> SummaryReply:
    """Return the reply of a stream that has ended, and record why there is none in it."""
    if errors:
        job.outcome.add("backend_failed", error=errors[0])
    if errors or answer.attempt.calling:
        _log.warning("summary by %s failed in its stream: %s", route.model, (*errors, "a tool call")[0])
        return FAILED
    return SummaryReply(answer.text, cut=answer.attempt.finish == "length")


def _error_code(error: Any) -> str:
    """Return what an error in a stream calls itself; its message may quote the prompt."""
    named = dig(error, "code") or dig(error, "type")
    return str(named)[:80] if named and isinstance(named, str | int) else "upstream_error"

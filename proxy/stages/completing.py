"""Going on with a text: cut to the window at its beginning, and gone on with when the window fills up in the middle.

A text has no turns that could be summed up, and no head that has to stay: what is furthest away goes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx

from proxy.answer.template import Template
from proxy.backends.overflow import recognise
from proxy.dialects.completions import (
    CompletionPiece,
    CompletionRequest,
    broken,
    ending,
    going,
    piece_in,
    read,
    rewritten,
)
from proxy.errors import ContextOverflow, NotManaged, UpstreamUnavailable
from proxy.exchange import Exchange
from proxy.net.apart import apart
from proxy.net.headers import AS_JSON, headers_of
from proxy.net.inflate import readable
from proxy.net.responses import body_of
from proxy.neutral.weight import HEAVY
from proxy.options import Options
from proxy.shortening.budget import ContextBudget
from proxy.stages.counting import Counting
from proxy.stages.passing import failure, left_alone, pass_on, pass_through, relay_response
from proxy.stages.routing import Route, Router
from proxy.telemetry.events import Compacted, FirstByte, Measured, Paused, Resumed, Routed, Sent
from proxy.telemetry.journal import Journal
from proxy.wire import sse
from proxy.wire.jsontext import dumps

_OF_ONE_BODY = (b"content-length", b"content-encoding", b"content-type")
_ENCODINGS = frozenset({b"content-length", b"content-encoding", b"accept-encoding"})
_FULL = 0.9
"""Share of the window from which on an answer that ended for its length is taken to have ended for want of room."""
_LEAST = 16
"""Tokens of a prompt below which nothing of it is left to go on from."""


@dataclass(slots=True)
class _Run:
    """One answer on its way."""

    exchange: Exchange
    journal: Journal
    asked: CompletionRequest
    route: Route
    budget: ContextBudget
    prompt: str
    """As it is sent now."""
    text: str = ""
    spent: int = 0
    """Completion tokens of the attempts before."""
    prompt_tokens: int = 0
    """Of the first attempt."""
    first: dict[str, object] | None = None
    cut: bool = False
    opened: httpx.Response | None = None
    """The last one: closed with the request, wherever it ends."""


class Completer:
    """Answers requests to go on with a text."""

    def __init__(self, *, counting: Counting, router: Router, options: Options) -> None:
        self._counting = counting
        self._router = router
        self._options = options

    async def answer(self, exchange: Exchange, journal: Journal) -> None:
        """Answer a request; what is for the backend alone, or of an unknown window, is passed on as it came.

        Raises:
            BadRequest, BodyTooLarge: it is malformed, or too large.
            ContextOverflow: what is wanted leaves no room for a prompt.
            UpstreamUnavailable: no backend answered.
        """
        limit = self._options.max_body
        wire = await exchange.body(limit)
        with exchange.watched():
            if (alone := await left_alone(exchange, wire, self._router, self._options)) is not None:
                await pass_through(exchange, journal, *alone)
                return
            try:
                asked = await apart(len(wire) > HEAVY, read, await exchange.decoded(wire, limit))
                route = await self._router.route(asked.model or await self._router.chosen())
                window = (await route.upstream.prober.loaded(route.model, asked.body)).window
            except NotManaged:
                await pass_on(exchange, journal, self._router, wire, limit)
                return
            if window is None:
                await pass_on(exchange, journal, self._router, wire, limit)
                return
            journal.tell(Routed(route.upstream.name, route.model))
            budget = self._options.for_model(route.model).budget(window.value)
            run = _Run(exchange, journal, asked, route, budget, asked.prompt)
            try:
                await self._complete(run)
            finally:
                if run.opened is not None:
                    await run.opened.aclose()

    async def _complete(self, run: _Run) -> None:
        await self._counting.meter.warm(run.route.key)
        await self._fit(run, run.asked.prompt)
        response = await self._send(run, "first")
        if response.status_code == 400:
            body = await body_of(response, self._options.max_answer)
            refused = recognise(400, body)
            if refused is None:
                await run.exchange.reply(400, headers_of(response), body)
                return
            run.budget = replace(run.budget, window=refused.window or int(run.budget.window * 0.9))
            await self._fit(run, run.asked.prompt)
            response = await self._send(run, "too long")
        plain = readable(response) if response.status_code == 200 else None
        if plain is None:
            await relay_response(run.exchange, response)
            return
        run.journal.tell(FirstByte())
        await (self._stream(run, plain) if run.asked.stream else self._whole(run, plain))

    # -- room

    async def _fit(self, run: _Run, text: str) -> None:
        """Have the prompt be as much of the end of a text as fits beside the answer."""
        window, bound = run.budget.window, run.asked.bound
        left = None if bound is None else bound - run.spent
        room = run.budget.limit - min(window // 4 if left is None else left, window // 2)
        tokens = await self._count(run, text)
        before, at, step = tokens, 0, _step(window, len(text) / max(1, tokens))
        while tokens > room and at < len(text):
            # In steps of fixed places, so that the next, longer one begins where this one does: the backend has that cached.
            over = int(len(text[at:]) * (tokens - room) / tokens)
            at = _break(text, (at + over) // step * step + step)
            tokens = await self._count(run, text[at:])
        if tokens < _LEAST < before:
            told = f"The prompt has about {before} tokens, and of the window of {window} an answer of up to {left} leaves {room}."
            raise ContextOverflow(
                f"{told} Ask for a shorter answer (`max_tokens`), or load the model with a larger window.",
                param="prompt",
                tokens=before,
                window=window,
            )
        run.prompt = text[at:]
        run.journal.tell(Measured(before if not run.cut else tokens, window))
        if at:
            run.cut = True
            run.journal.tell(Compacted("trimmed", before, tokens, 0.0))
            run.journal.tell(Measured(tokens, window))

    async def _count(self, run: _Run, text: str) -> int:
        return await apart(len(text) > HEAVY, self._counting.meter.count_text, run.route.key, text)

    # -- attempts

    async def _send(self, run: _Run, why: str) -> httpx.Response:
        body = run.asked.going_on(run.prompt, run.spent, run.route.model, later=bool(run.text))
        exchange, upstream = run.exchange, run.route.upstream
        run.journal.tell(Sent(why, run.asked.stream))
        try:
            run.opened = await upstream.send(
                "POST",
                exchange.target,
                run.journal.carried(exchange.headers),
                body,
                drop=_ENCODINGS,
            )
        except UpstreamUnavailable as error:
            run.journal.tell(failure(error))
            raise
        return run.opened

    async def _next(self, run: _Run, ended: CompletionPiece) -> httpx.Response | None:
        """The next attempt, if the window ended this one and there is more to say; None: the answer is at its end."""
        prompt, completion = ended.used
        if not completion:
            completion = await self._count(run, run.text) - run.spent
        prompt = prompt or await self._count(run, run.prompt)
        run.prompt_tokens = run.prompt_tokens or prompt
        run.spent += completion
        window, bound = run.budget.window, run.asked.bound
        ceiling = self._options.answer_windows * window
        full = ended.finish == "length" and prompt + completion >= _FULL * window
        if not full or completion < _LEAST or run.spent >= min(ceiling, bound or ceiling):
            return None
        run.journal.tell(Paused("window full"))
        try:
            await self._fit(run, run.asked.prompt + run.text)
            response = await self._send(run, "going on")
        except (ContextOverflow, UpstreamUnavailable):
            return None
        plain = readable(response) if response.status_code == 200 else None
        if plain is None:
            await response.aclose()
            return None
        run.journal.tell(Resumed("text"))
        return plain

    def _usage(self, run: _Run) -> dict[str, int]:
        prompt = run.prompt_tokens
        usage = {"prompt_tokens": prompt, "completion_tokens": run.spent, "total_tokens": prompt + run.spent}
        run.journal.answered(usage)
        return usage

    def _headers(
        self, run: _Run, response: httpx.Response, *own: tuple[bytes, bytes]
    ) -> list[tuple[bytes, bytes]]:
        window = str(run.budget.window).encode()
        told = [(b"x-spillway-action", run.journal.outcome.action.encode()), (b"x-spillway-window", window)]
        return [*headers_of(response, drop=_OF_ONE_BODY), *own, *told]

    # -- whole and streamed

    async def _whole(self, run: _Run, response: httpx.Response) -> None:
        head, next_ = response, response
        while True:
            said = piece_in(await body_of(next_, self._options.max_answer))
            if said.form is None or said.failed:
                raise UpstreamUnavailable("The backend answered 200 with a body that is no completion.")
            run.first, run.text = run.first or said.form, run.text + said.text
            further = await self._next(run, said)
            if further is None:
                break
            next_ = further
        body = dumps(rewritten(said, run.first, text=run.text, **self._usage(run)))
        await run.exchange.reply(200, self._headers(run, head, AS_JSON), body)

    async def _stream(self, run: _Run, response: httpx.Response) -> None:
        kind = (b"content-type", b"text/event-stream; charset=utf-8")
        await run.exchange.start(200, self._headers(run, response, kind))
        ended, further = CompletionPiece(None), response
        try:
            while True:
                ended = await self._pump(run, further)
                next_ = await self._next(run, ended)
                if next_ is None:
                    break
                further = next_
        except (httpx.TransportError, sse.FrameTooLong, UpstreamUnavailable) as error:
            run.journal.failed(0, "upstream_failed")
            told = f"The backend broke off the answer ({type(error).__name__})."
            await run.exchange.write(broken(UpstreamUnavailable(told).body()["error"]))
        else:
            shown = run.asked.shows_usage
            await run.exchange.write(ending(ended, run.first, self._usage(run), shows_usage=shown))
        await run.exchange.end()

    async def _pump(self, run: _Run, response: httpx.Response) -> CompletionPiece:
        """Pass on what one attempt says; why it ended, and what was counted.

        Raises:
            UpstreamUnavailable: it is an error.
        """
        ended, parts, alike = CompletionPiece(None), list[str](), Template()
        async for block in _read(response):
            if (texts := alike.read_all(block)) is not None:
                parts += texts
                await run.exchange.write(block)
                continue
            out, failed = list[bytes](), False
            for frame in sse.frames(block):
                said = piece_in(sse.data_of(frame))
                failed = failed or said.failed
                if said.text:
                    run.first = run.first or said.form or {}
                    parts.append(said.text)
                    out.append(going(frame, said, run.first))
                    if out[-1] is frame:
                        alike.learn(frame, frame, "text", said.text)
                if said.finish is not None or said.usage is not None:
                    ended.form = said.form if said.finish or ended.form is None else ended.form
                    ended.finish, ended.usage = said.finish or ended.finish, said.usage or ended.usage
            if out:
                await run.exchange.write(b"".join(out))
            if failed:
                raise UpstreamUnavailable("The backend reported an error.")
        run.text += "".join(parts)
        return ended


async def _read(response: httpx.Response) -> AsyncIterator[bytes]:
    """The frames of a stream, as many at a time as come at once."""
    splitter, stream = sse.FrameSplitter(), response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    try:
        async for data in stream:
            yield splitter.feed(data)
        yield splitter.flush()
    finally:
        await response.aclose()


def _step(window: int, characters: float) -> int:
    """Characters between places at which a text is cut: about an eighth of a window, for texts with so many to a token.

    In powers of two, so that it is the same for a text that has grown.
    """
    return max(_LEAST, int(window / 8 * 2 ** round(math.log2(max(0.25, characters)))))


def _break(text: str, at: int) -> int:
    """Where to cut a text: behind the line, or the word, in which that place is."""
    for mark in ("\n", " "):
        end = text.find(mark, at, at + 400)
        if end >= 0:
            return end + 1
    return min(at, len(text))

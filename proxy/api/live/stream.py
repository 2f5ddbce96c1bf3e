"""The live feed: Server-Sent Events (WHATWG HTML, section 9.2), made by the viewer's own timer.

A request that is served tells the feed that something happened, which is a note in a set; what it comes to is looked up a few
times a second. A viewer who reads slowly holds up nobody: what happens meanwhile is told once, when there is room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from proxy.addons.live.feed import Feed, Waiting
from proxy.addons.live.looker import Looker
from proxy.addons.live.telling import Viewer, outcome_of, progress_of
from proxy.core.errors import Overloaded
from proxy.core.jsontext import dumps
from proxy.exchange import Exchange

TICK = 0.25
"""Seconds between two looks."""
MANY = 50
"""Answers at a time whose progress is told at each look; of more it is told more rarely, so that it costs the same."""
MOST_VIEWERS = 16
MOST_SHOWN = 100
"""Conversations, and outcomes, in a snapshot."""
SILENCE = 10.0
"""Seconds after which a comment says that the feed is still there."""


class LiveFeed:
    """Serves viewers."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker

    async def serve(self, exchange: Exchange, viewer: Viewer, session: Mapping[str, Any], only: str) -> None:
        """Tell a viewer what happens, until they leave or the server stops; `only`: in one conversation.

        Raises:
            Overloaded: too many are looking.
        """
        if len(self._looker.book.watching) >= MOST_VIEWERS:
            raise Overloaded(f"{MOST_VIEWERS} viewers are looking already, which is all that may.")
        feed, book = Feed(self._looker.book, viewer, only), self._looker.book
        book.watch(feed)
        try:
            with exchange.watched():
                await exchange.start(200, _HEADERS)
                await exchange.write(await self._snapshot(feed, session))
                await self._go_on(exchange, feed, session)
                await exchange.end()
        finally:
            book.leave(feed)

    async def _go_on(self, exchange: Exchange, feed: Feed, session: Mapping[str, Any]) -> None:
        ticks, silent = 0, 0.0
        while not exchange.draining:
            await asyncio.sleep(TICK)
            ticks += 1
            waiting = feed.take()
            if waiting.missed:
                data = await self._snapshot(feed, session)
            else:
                data = await self._changes(feed, waiting) + self._progress(feed, waiting, ticks)
            silent += TICK
            if not data and silent >= SILENCE:
                data = b":\n\n"
            if data:
                silent = 0.0
                await exchange.write(data)

    async def _snapshot(self, feed: Feed, session: Mapping[str, Any]) -> bytes:
        looker, viewer = self._looker, feed.viewer
        talks = [talk for talk in looker.talks(viewer, {}, MOST_SHOWN) if feed.shows(talk)]
        query = {"conversation": feed.only} if feed.only else {}
        data = {
            "at": looker.book.clock(),
            "session": dict(session),
            "conversations": await looker.rows(talks, viewer),
            "outcomes": looker.outcomes(viewer, query, MOST_SHOWN)["outcomes"],
        }
        return _event("snapshot", data)

    async def _changes(self, feed: Feed, waiting: Waiting) -> bytes:
        now = self._looker.book.now()
        out = [_event("gone", {"id": name}) for name in waiting.gone]
        out += [_event("conversation", row) for row in await self._looker.rows(waiting.talks, feed.viewer)]
        out += [_event("outcome", outcome_of(record, now)) for record in waiting.ended]
        out += [
            _event("model", {"backend": backend, "model": model, "what": what})
            for backend, model, what in waiting.learned
        ]
        return b"".join(out)

    def _progress(self, feed: Feed, waiting: Waiting, ticks: int) -> bytes:
        """Encode the progress of answers whose rows are not being sent anyway."""
        answering = feed.answering()
        if not answering or ticks % (1 + len(answering) // MANY):
            return b""
        now, data = self._looker.book.now(), {talk.id for talk in waiting.talks}
        progress = [progress_of(talk, now) for talk in answering if talk.id not in data]
        return _event("progress", progress) if progress else b""


_HEADERS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))


def _event(name: str, value: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps(value))

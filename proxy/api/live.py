"""The routes that the page and the terminal read, described at `/openapi.json`; docs/api-live.md has their fields."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import StreamingResponse

from proxy import __version__
from proxy.addons.history_view import HistoryView
from proxy.api.dependencies import On, Public, Services, bearer
from proxy.core.errors import BadRequest, Conflict, Forbidden, Overloaded
from proxy.core.jsontext import dumps
from proxy.exchange import Exchange

_log = logging.getLogger("spillway.live")

_USUAL, _MOST = 100, 500
_SUMMARY = "/spillway/conversations/{conversation}/summary"
_LESSONS = {
    "window": ("window",),
    "tools": ("tools",),
    "continuations": ("refused_continuations",),
    "all": ("window", "tools", "refused_continuations"),
}
"""Fields of a model's profile by what users call them."""

TICK = 0.25
"""Seconds between two looks of the live feed."""
MOST_VIEWERS = 16
_SHOWN = 100
"""Conversations, and requests, in a snapshot."""
_MANY = 50
"""Answers at a time whose progress is shown at each look; of more it is shown more rarely, so that it costs the same."""
_HEARTBEAT = 40
"""Looks without news after which a comment shows that the feed is still there."""

router = APIRouter(dependencies=[Depends(bearer)], tags=["live"])


def _limit(request: Request) -> int:
    """The number of entries of a list that a query asks for."""
    limit = request.query_params.get("limit", str(_USUAL))
    # Python refuses to read very many digits, with an error of its own.
    if not limit.isdecimal() or len(limit) > len(str(_MOST)) or not 1 <= int(limit) <= _MOST:
        raise BadRequest(f"`limit` must be a number from 1 to {_MOST}.", param="limit")
    return int(limit)


async def _view(on: On, exchange: Public) -> HistoryView:
    """The history as the viewer sees it; refused without a key, where one is needed."""
    return HistoryView(on.history, on.meter, on.access.viewer(exchange))


View = Annotated[HistoryView, Depends(_view)]


@router.get("/spillway/session")
async def session(on: On, exchange: Public) -> Response:
    """Describe the viewer, and whether a key is needed. Never refused."""
    return _json(_session(on, exchange))


@router.get("/spillway/live", response_class=StreamingResponse)
async def live(on: On, view: View, exchange: Public, request: Request, conversation: str = "") -> Response:
    """Send what happens as Server-Sent Events, from a snapshot on."""
    if conversation:
        view.conversation(conversation)
    if view.history.viewers >= MOST_VIEWERS:
        raise Overloaded(f"{MOST_VIEWERS} viewers are looking already, which is all that may.")
    headers = {"cache-control": "no-store", "x-accel-buffering": "no", "content-type": "text/event-stream"}
    feed = _feed(view, request.state.server, _session(on, exchange), conversation)
    return StreamingResponse(feed, headers=headers)


@router.get(_SUMMARY)
async def summary(on: On, view: View, conversation: str) -> Response:
    """Show what stands for the part of a conversation that no longer fits."""
    found = view.conversation(conversation)
    view.viewer.check_reads(found.tenant)
    return _json(await on.summaries.read(found))


@router.delete(_SUMMARY)
async def forget_summary(on: On, view: View, conversation: str) -> Response:
    """Forget the checkpoint: the next prompt begins with the one before it, or with the history itself."""
    found = view.conversation(conversation)
    done = await on.summaries.forget(found)
    _log.info("the checkpoint of %s was forgotten (%s)", found.id, view.viewer.role)
    return _json(done if view.viewer.reads(found.tenant) else {**done, "summary": None})


@router.get("/spillway/requests/{name:path}/diff")
async def diff(view: View, name: str, full: bool = False) -> Response:  # noqa: FBT001, FBT002 - a query parameter
    """Compare what the client sent with what was forwarded."""
    record = view.record(name)
    view.viewer.check_reads(record.outcome.credential)
    return _json(await view.diff(record, full=full))


@router.post("/spillway/requests/{name:path}/stop")
async def stop(view: View, name: str) -> Response:
    """End an answer that is being made."""
    record = view.record(name)
    if record.job is None or not record.job.exchange.halt():
        raise Conflict("This request is not being served (any more).", code="not_running")
    record.outcome.stopped = True
    record.outcome.add("stopped")
    return _json({"stopped": True})


@router.delete("/spillway/lessons")
async def forget_lesson(on: On, view: View, backend: str = "", model: str = "", lesson: str = "") -> Response:
    """Forget what was learned of a model."""
    if view.viewer.role == "key":
        raise Forbidden(
            "What was learned of a model is everybody's: forgetting it needs a key of SPILLWAY_ADMIN_KEYS.",
            code="admin_only",
        )
    if lesson not in _LESSONS:
        raise BadRequest(f"`lesson` must be one of {', '.join(_LESSONS)}.", param="lesson")
    upstream = next((each for each in on.relay.router.upstreams if each.name == backend), None)
    if upstream is None:
        raise BadRequest("`backend` must be the name of a backend.", param="backend")
    forgotten = upstream.prober.known(model).unlearn(*_LESSONS[lesson])
    if forgotten:
        view.history.learn(backend, model, "forgotten")
        _log.info("what was learned of %s/%s was forgotten: %s (%s)", backend, model, lesson, view.viewer.role)
    return _json({"forgotten": forgotten})


@router.get("/spillway/conversations")
async def conversations(view: View, request: Request) -> Response:
    """List conversations, newest first."""
    found = view.conversations(_limit(request))
    return _json({"conversations": await view.rows(found)})


@router.get("/spillway/conversations/{conversation}")
async def conversation(view: View, conversation: str) -> Response:
    """Show what happened in one, turn by turn."""
    return _json(await view.timeline(view.conversation(conversation)))


@router.get("/spillway/outcomes")
async def outcomes(view: View, request: Request) -> Response:
    """List requests, newest first."""
    return _json(view.outcomes(request.query_params, _limit(request)))


@router.get("/spillway/requests/{name:path}")
async def one(view: View, name: str) -> Response:
    """Show everything that happened to one request."""
    return _json(view.turn(view.record(name)))


@router.get("/spillway/savings")
async def savings(view: View, request: Request) -> Response:
    """Sum up what was saved."""
    return _json(view.savings(request.query_params))


def _session(on: Services, exchange: Exchange) -> dict[str, Any]:
    """Describe Spillway and the viewer to the page, which asks for a key where `role` is None."""
    forwarded = (exchange.header(b"x-forwarded-proto") or "").partition(",")[0].strip().lower()
    viewer = on.access.find_viewer(exchange)
    return {
        "role": None if viewer is None else viewer.role,
        "content": viewer is not None and viewer.content,
        "version": __version__,
        "base_url": f"{'https' if forwarded == 'https' else 'http'}://{exchange.header(b'host') or '127.0.0.1'}/v1",
    }


async def _feed(view: HistoryView, server: Any, session: dict[str, Any], only: str) -> AsyncIterator[bytes]:
    """Yield a snapshot, and then what has changed since the last look, until the server stops."""
    history, query = view.history, {"conversation": only} if only else {}
    history.viewers += 1
    try:
        last = history.changes
        shown = [each for each in view.conversations(_SHOWN) if only in ("", each.id)]
        known = {each.id for each in shown}
        snapshot = {
            "at": history.clock(),
            "session": session,
            "conversations": await view.rows(shown),
            "outcomes": view.outcomes(query, _SHOWN)["outcomes"],
        }
        yield _event("snapshot", snapshot)
        looks = quiet = 0
        while not server.should_exit:
            await asyncio.sleep(TICK)
            looks += 1
            before, last = last, history.changes
            events = await _changes(view, only, before, looks)
            known |= {data["id"] for name, data in events if name == "conversation"}
            events += [("gone", {"id": each}) for each in known - history.conversations.keys()]
            known &= history.conversations.keys()
            quiet = 0 if events else quiet + 1
            if events:
                yield b"".join(_event(name, data) for name, data in events)
            elif quiet % _HEARTBEAT == 0:
                yield b":\n\n"
    finally:
        history.viewers -= 1


async def _changes(view: HistoryView, only: str, last: int, looks: int) -> list[tuple[str, Any]]:
    """Collect what has happened since the change with the number `last`."""
    history, sees = view.history, view.viewer.sees
    running = {id(each.conversation) for each in history.records.values() if each.running}
    progress = running if looks % (1 + len(running) // _MANY) == 0 else ()
    changed = [
        each
        for each in history.conversations.values()
        if (each.change > last or id(each) in progress) and sees(each.tenant) and only in ("", each.id)
    ]
    ended = [
        each
        for each in history.records.values()
        if each.change > last
        and sees(each.outcome.credential)
        and (not only or (each.conversation is not None and each.conversation.id == only))
    ]
    lessons = [lesson for number, *lesson in history.lessons if number > last and not only]
    return [
        *(("conversation", row) for row in await view.rows(changed)),
        *(("outcome", view.outcome(each)) for each in ended),
        *(("model", dict(zip(("backend", "model", "what"), each, strict=True))) for each in lessons),
    ]


def _event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps(data))


def _json(value: Any) -> Response:
    """A response that no cache stores."""
    return Response(dumps(value), media_type="application/json", headers={"cache-control": "no-store"})

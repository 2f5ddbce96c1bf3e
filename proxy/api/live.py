"""Routes for the page and the terminal, described at `/openapi.json`; docs/api-live.md explains their fields."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import PlainTextResponse, StreamingResponse

from proxy import __version__
from proxy.addons.history_view import HistoryView, RequestFilter
from proxy.addons.user_memory import owner_of
from proxy.api.access import On, Public, Services, as_json, bearer
from proxy.api.schemas import answers, takes
from proxy.core.errors import BadRequest, Conflict, Forbidden, Overloaded, StoreUnavailable
from proxy.core.jsontext import dumps, loads_object
from proxy.exchange import Exchange

_log = logging.getLogger("spillway.live")

LessonKind: TypeAlias = Literal["window", "tools", "streaming", "roles", "continuations", "all"]
_LESSONS: dict[LessonKind, str] = {
    "window": "window",
    "tools": "tools",
    "streaming": "streams",
    "roles": "template_rules",
    "continuations": "refused_continuations",
}
"""Fields of a model's profile by the names of lessons."""
TICK = 0.25
"""Seconds between two checks of the live feed for changes."""
# Per key: sixteen feeds of one client once locked out all others.
MOST_VIEWERS = 16
"""Most live feeds open at a time with one key, or without keys in all."""
_SHOWN = 100
"""Most conversations, and most requests, in a snapshot."""
_MANY = 50
"""Running answers whose progress is shown at each check; with more, it is shown less often, so that the cost stays the same."""
_LONGEST_REQUEST = 16 * 1024
"""Most bytes of a request for a compaction."""
_LONGEST_PINS = 2**20
"""Most bytes of a request with pins."""
_HEARTBEAT = 40
"""Checks without news after which a comment is sent, as a sign that the feed is alive."""

router = APIRouter(dependencies=[Depends(bearer)], tags=["live"])


async def _view(on: On, exchange: Public) -> HistoryView:
    """Return the history as the viewer sees it; a request without a needed key is refused."""
    return HistoryView(on.history, on.relay.pipeline.counting.meter, on.access.viewer(exchange))


View = Annotated[HistoryView, Depends(_view)]
Wanted = Annotated[RequestFilter, Depends()]
EntryLimit = Annotated[int, Query(ge=1, le=500)]


@router.get("/spillway/session", responses=answers("Session"))
async def session(on: On, exchange: Public) -> Response:
    """Describe the viewer, or say that a key is needed. Never refused."""
    return as_json(_session(on, exchange))


@router.get("/spillway/live", response_class=StreamingResponse)
async def live(on: On, view: View, exchange: Public, request: Request, conversation: str = "") -> Response:
    """Send a snapshot, then all changes, as Server-Sent Events."""
    if conversation:
        view.conversation(conversation)
    if view.history.viewers[view.viewer.identity] >= MOST_VIEWERS:
        raise Overloaded(
            f"{MOST_VIEWERS} viewers are connected with this key, which is the limit: close one and try again."
        )
    headers = {"cache-control": "no-store", "x-accel-buffering": "no", "content-type": "text/event-stream"}
    feed = _feed(view, request.state.server, _session(on, exchange), conversation or None)
    return StreamingResponse(feed, headers=headers)


@router.get("/spillway/conversations", responses=answers("Rows"))
async def conversations(view: View, limit: EntryLimit = 100) -> Response:
    """List conversations, newest first."""
    return as_json({"conversations": await view.rows(view.conversations(limit))})


@router.get("/spillway/conversations/{conversation}", responses=answers("Conversation"))
async def conversation(view: View, conversation: str) -> Response:
    """Show a conversation, request by request."""
    return as_json(await view.timeline(view.conversation(conversation)))


@router.delete("/spillway/conversations/{conversation}", responses=answers("Deleted"))
async def delete_conversation(on: On, view: View, conversation: str) -> Response:
    """Delete everything stored of a conversation: its checkpoints, archive, responses and saved slots."""
    found = view.conversation(conversation, await on.summaries.find_lost(conversation))
    await on.summaries.delete(found)
    _log.info("what was stored of %s was deleted (%s)", found.id, view.viewer.role)
    return as_json({"id": found.id, "object": "conversation", "deleted": True})


@router.get("/spillway/conversations/{conversation}/summary", responses=answers("Summary"))
async def summary(on: On, view: View, conversation: str) -> Response:
    """Show the summary that replaces the part of a conversation that no longer fits."""
    found = view.conversation(conversation, content=True)
    return as_json(await on.summaries.read(found))


@router.delete("/spillway/conversations/{conversation}/summary", responses=answers("Forgotten"))
async def forget_summary(on: On, view: View, conversation: str) -> Response:
    """Forget the checkpoint: the next prompt begins with the one before it, or with the history itself."""
    found = view.conversation(conversation)
    done = await on.summaries.forget(found)
    _log.info("the checkpoint of %s was forgotten (%s)", found.id, view.viewer.role)
    return as_json(done if view.viewer.reads(found.tenant) else {**done, "summary": None})


@router.post(
    "/spillway/conversations/{conversation}/compact",
    responses=answers("Compacted"),
    openapi_extra=takes("CompactRequest"),
)
async def compact(on: On, view: View, conversation: str, exchange: Public) -> Response:
    """Compact a conversation now; everyone who may read it may do so."""
    found = view.conversation(conversation, content=True)
    fields = loads_object(await exchange.body(_LONGEST_REQUEST) or b"{}")
    focus = (fields or {}).get("focus", "")
    if fields is None or not isinstance(focus, str):
        raise BadRequest('The body must be {"focus": "…"}, or empty.', param="focus")
    return as_json(await on.compact_now.compact(found, focus.strip()))


@router.get("/spillway/conversations/{conversation}/export", response_class=PlainTextResponse)
async def export(on: On, view: View, conversation: str) -> Response:
    """Write a conversation as Markdown."""
    found = view.conversation(conversation, content=True)
    return PlainTextResponse(
        await on.summaries.export(found), media_type="text/markdown", headers={"cache-control": "no-store"}
    )


@router.get("/spillway/conversations/{conversation}/pins", responses=answers("Pins"))
async def pins(on: On, view: View, conversation: str) -> Response:
    """List the pins of a conversation."""
    found = view.conversation(conversation, content=True)
    return as_json(await on.pins.read(found))


@router.put(
    "/spillway/conversations/{conversation}/pins", responses=answers("Pins"), openapi_extra=takes("PinRequest", "pins")
)
async def change_pins(on: On, view: View, conversation: str, exchange: Public) -> Response:
    """Replace the pins of a conversation that viewers set; everyone who may read it may do so."""
    found = view.conversation(conversation, content=True)
    texts = (loads_object(await exchange.body(_LONGEST_PINS)) or {}).get("pins")
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadRequest('The body must be {"pins": ["…"]}.', param="pins")
    return as_json(await on.pins.change(found, texts))


@router.get("/spillway/memory", responses=answers("Memory"))
async def memory(on: On, view: View, user: str = "") -> Response:
    """List what is remembered of a user whom the viewer's key names, or without a name of its holder."""
    known = await on.memory.read((owner_of(view.viewer.tenant), user))
    rows = [{"id": each["id"], "text": each["text"], "said_at": each["said"]} for each in known or ()]
    return as_json({"statements": None if known is None else rows})


@router.delete("/spillway/memory", responses=answers("Unremembered"))
async def forget_statements(on: On, view: View, user: str = "", statement: str = "") -> Response:
    """Delete a statement by its id, or all without one."""
    left = partial(filter, lambda each: statement and each["id"] != statement)
    if (gone := await on.memory.change((owner_of(view.viewer.tenant), user), lambda known: [*left(known)])) is None:
        raise StoreUnavailable("The store accepts no changes at the moment: try again later.")
    return as_json({"deleted": gone})


@router.get("/spillway/outcomes", responses=answers("Outcomes"))
async def outcomes(
    view: View, wanted: Wanted, limit: EntryLimit = 100, before: Annotated[int, Query(ge=0, lt=10**12)] = 10**12 - 1
) -> Response:
    """List requests, newest first; `before` is the `next` of another answer."""
    return as_json(view.outcomes(wanted, limit, before))


@router.get("/spillway/savings", responses=answers("Savings"))
async def savings(view: View, wanted: Wanted) -> Response:
    """Sum up the savings."""
    return as_json(view.savings(wanted))


@router.get("/spillway/requests/{name:path}/diff", responses=answers("Diff"))
async def diff(view: View, name: str, full: bool = False) -> Response:  # noqa: FBT001, FBT002 - a query parameter
    """Compare the client's messages with those that were forwarded."""
    record = view.record(name)
    view.viewer.check_reads(record.outcome.credential)
    return as_json(await view.diff(record, full=full))


@router.post("/spillway/requests/{name:path}/stop", responses=answers("Stopped"))
async def stop(view: View, name: str) -> Response:
    """Stop an answer in progress."""
    record = view.record(name)
    if record.job is None or not record.job.exchange.halt():
        raise Conflict("This request is not in progress: it has ended, or was never here.", code="not_running")
    record.outcome.add("stopped")
    return as_json({"stopped": True})


@router.get("/spillway/requests/{name:path}", responses=answers("Turn"))
async def request_details(view: View, name: str) -> Response:
    """Show one request with its events."""
    return as_json(view.turn(view.record(name)))


@router.delete("/spillway/lessons", responses=answers("LessonForgotten"))
async def forget_lesson(on: On, view: View, backend: str, model: str, lesson: LessonKind) -> Response:
    """Forget what was learned about a model."""
    _check_admin(view)
    upstream = next((each for each in on.relay.router.upstreams if backend in (each.name, each.key)), None)
    if upstream is None:
        raise BadRequest("`backend` must be the name of a backend.", param="backend")
    forgotten = upstream.prober.known(model).unlearn(*(_LESSONS.values() if lesson == "all" else (_LESSONS[lesson],)))
    if forgotten:
        _log.info("what was learned of %s/%s was forgotten: %s (%s)", backend, model, lesson, view.viewer.role)
    return as_json({"forgotten": forgotten})


@router.put("/spillway/summary_model", responses=answers("SummaryModel"))
async def choose_summary_model(on: On, view: View, model: str = "") -> Response:
    """Choose the model that summarises for all clients until Spillway stops; empty: as configured."""
    _check_admin(view)
    if model and model not in await on.relay.router.table():
        raise BadRequest("`model` must be the name of a model that a backend lists, or empty.", param="model")
    on.relay.pipeline.compactor.summaries.chosen = model
    _log.info("the model that summarises was chosen: %s (%s)", model or "as configured", view.viewer.role)
    return as_json({"summary_model": model or None})


def _check_admin(view: HistoryView) -> None:
    """Refuse a change that affects all clients to viewers with a client's key.

    Raises:
        Forbidden: the viewer has a client's key.
    """
    if view.viewer.role == "key":
        raise Forbidden("This changes what all clients get: it needs one of SPILLWAY_ADMIN_KEYS.", code="admin_only")


def _session(on: Services, exchange: Exchange) -> dict[str, Any]:
    """Describe Spillway and the viewer to the page, which asks for a key if `role` is None."""
    forwarded = (exchange.header(b"x-forwarded-proto") or "").partition(",")[0].strip().lower()
    viewer = on.access.find_viewer(exchange)
    return {
        "role": None if viewer is None else viewer.role,
        "content": viewer is not None and viewer.content,
        "memory": viewer is not None and bool(viewer.tenant) and on.settings.remembers,
        "version": __version__,
        "base_url": f"{'https' if forwarded == 'https' else 'http'}://{exchange.header(b'host') or '127.0.0.1'}/v1",
    }


async def _feed(view: HistoryView, server: Any, session: dict[str, Any], only: str | None) -> AsyncIterator[bytes]:
    """Yield a snapshot, then the changes since the last check, until the server stops."""
    history, identity = view.history, view.viewer.identity
    history.viewers[identity] += 1
    try:
        last = history.changes
        shown = [each for each in view.conversations(_SHOWN) if only in (None, each.id)]
        known = {each.id for each in shown}
        yield _event(
            "snapshot",
            {
                "at": history.clock(),
                "session": session,
                "conversations": await view.rows(shown),
                "outcomes": view.outcomes(RequestFilter(conversation=only), _SHOWN)["outcomes"],
            },
        )
        looks = quiet = 0
        # Polled: queues filled for every viewer would cost each request something, also when nobody looks.
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
        history.viewers -= Counter((identity,))  # forgets the identity with its last feed


async def _changes(view: HistoryView, only: str | None, last: int, looks: int) -> list[tuple[str, Any]]:
    """Collect changes since the one with the number `last`, and the progress of running answers."""
    found = view.conversations(None)
    running = [each for each in found if each.running]
    progress = running if looks % (1 + len(running) // _MANY) == 0 else ()
    changed = [each for each in found if only in (None, each.id) and (each.change > last or each in progress)]
    ended = [each for each in view.records(RequestFilter(conversation=only)) if each.change > last]
    rows = [("conversation", row) for row in await view.rows(changed)]
    return [*rows, *(("outcome", view.outcome(each)) for each in ended)]


def _event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps(data))

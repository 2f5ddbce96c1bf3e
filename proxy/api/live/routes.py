"""The routes that the page and the terminal read, described at `/openapi.json` (docs/api-live.md)."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from proxy.addons.live.telling import Viewer
from proxy.api.dependencies import AlreadySent, CurrentViewer, On, Public, Services, bearer
from proxy.api.live import schemas
from proxy.api.live.stream import LiveFeed
from proxy.core.errors import BadRequest, Conflict, Forbidden
from proxy.core.jsontext import dumps
from proxy.dialects.bodies import limit_in
from proxy.exchange import Exchange

_log = logging.getLogger("spillway.live")

_USUAL, _MOST = 100, 500
_STREAM = {200: {"content": {"text/event-stream": {}}, "description": "Server-AlreadySent Events."}}
_SUMMARY = "/spillway/conversations/{conversation}/summary"
_LESSONS = ("window", "tools", "continuations", "all")

router = APIRouter(dependencies=[Depends(bearer)], tags=["live"])


@router.get("/spillway/session", response_model=schemas.Session)
async def session(on: On, exchange: Public) -> Response:
    """Describe the viewer, and whether a key is needed. Never refused."""
    return _json(_session(on, exchange))


@router.get("/spillway/live", responses=_STREAM, response_class=Response)  # type: ignore[arg-type]  # as FastAPI has it
async def live(on: On, viewer: CurrentViewer, exchange: Public, request: Request) -> Response:
    """Send what happens while it happens, from a snapshot on."""
    only = request.query_params.get("conversation", "")
    if only:
        on.looker.talk(only, viewer)
    await LiveFeed(on.looker).serve(exchange, viewer, _session(on, exchange), only)
    return AlreadySent()


@router.get(_SUMMARY, response_model=schemas.Summary)
async def summary(on: On, viewer: CurrentViewer, conversation: str) -> Response:
    """Tell what stands for the part of a conversation that no longer fits."""
    talk = on.looker.talk(conversation, viewer)
    _check_reads(viewer, talk.tenant)
    return _json(await on.checkpoints.current(talk))


@router.delete(_SUMMARY, response_model=schemas.CheckpointForgotten)
async def forget_checkpoint(on: On, viewer: CurrentViewer, conversation: str) -> Response:
    """Forget the checkpoint: the next prompt begins with the one before it, or with the history itself."""
    found = on.looker.talk(conversation, viewer)
    done = await on.checkpoints.forget(found)
    _log.info("the checkpoint of %s was forgotten (%s)", found.id, viewer.role)
    return _json(done if viewer.reads(found.tenant) else {**done, "summary": None})


@router.get("/spillway/requests/{name:path}/diff", response_model=schemas.Diff)
async def diff(on: On, viewer: CurrentViewer, request: Request, name: str) -> Response:
    """Tell what the client sent and what was forwarded."""
    record = on.looker.record(name, viewer)
    _check_reads(viewer, record.tenant)
    full = request.query_params.get("full") in ("1", "true")
    return _json(await on.looker.diff(record, full=full))


@router.post("/spillway/requests/{name:path}/stop", response_model=schemas.Stopping)
async def stop(on: On, viewer: CurrentViewer, name: str) -> Response:
    """End an answer that is being made."""
    record = on.looker.record(name, viewer)
    job = record.job
    if job is None or not job.exchange.halt():
        raise Conflict("This request is not being served (any more).", code="not_running")
    job.outcome.record_stopped()
    return _json({"stopped": True})


@router.delete("/spillway/lessons", response_model=schemas.Forgotten)
async def forget_lesson(on: On, viewer: CurrentViewer, request: Request) -> Response:
    """Forget what was learned of a model."""
    query = request.query_params
    if not viewer.all:
        raise Forbidden(
            "What was learned of a model is everybody's: forgetting it needs a key of SPILLWAY_ADMIN_KEYS.",
            code="admin_only",
        )
    lesson = query.get("lesson", "")
    if lesson not in _LESSONS:
        raise BadRequest(f"`lesson` must be one of {', '.join(_LESSONS)}.", param="lesson")
    upstream = next((each for each in on.relay.router.upstreams if each.name == query.get("backend")), None)
    if upstream is None:
        raise BadRequest("`backend` must be the name of a backend.", param="backend")
    model = query.get("model", "")
    forgotten = upstream.prober.unlearn(model, lesson)
    _log.info("what was learned of %s/%s was forgotten: %s (%s)", upstream.name, model, lesson, viewer.role)
    for each in on.looker.book.watching if forgotten else ():
        each.learned(upstream.name, model, "forgotten")
    return _json({"forgotten": forgotten})


@router.get("/spillway/conversations", response_model=schemas.Conversations)
async def conversations(on: On, viewer: CurrentViewer, request: Request) -> Response:
    """List conversations, newest first."""
    query = request.query_params
    talks = on.looker.talks(viewer, query, limit_in(query, usual=_USUAL, most=_MOST))
    return _json({"conversations": await on.looker.rows(talks, viewer)})


@router.get("/spillway/conversations/{conversation}", response_model=schemas.Conversation)
async def conversation(on: On, viewer: CurrentViewer, conversation: str) -> Response:
    """Tell what happened in one, turn by turn."""
    return _json(await on.looker.timeline(on.looker.talk(conversation, viewer), viewer))


@router.get("/spillway/outcomes", response_model=schemas.Outcomes)
async def outcomes(on: On, viewer: CurrentViewer, request: Request) -> Response:
    """List requests, newest first."""
    query = request.query_params
    return _json(on.looker.outcomes(viewer, query, limit_in(query, usual=_USUAL, most=_MOST)))


@router.get("/spillway/requests/{name:path}", response_model=schemas.Turn)
async def one(on: On, viewer: CurrentViewer, name: str) -> Response:
    """Tell all that happened to one request."""
    return _json(on.looker.turn(on.looker.record(name, viewer)))


@router.get("/spillway/savings", response_model=schemas.Savings)
async def savings(on: On, viewer: CurrentViewer, request: Request) -> Response:
    """Tell what was saved, and how that is counted."""
    return _json(on.looker.savings(viewer, request.query_params))


@router.get("/spillway/calibration", response_model=schemas.CalibrationPoints)
async def calibration(on: On, viewer: CurrentViewer, request: Request) -> Response:
    """Tell how well prompts were estimated."""
    return _json(on.looker.calibration(viewer, request.query_params))


def _check_reads(viewer: Viewer, tenant: str) -> None:
    """See that a viewer may see what was said.

    Raises:
        Forbidden: not to an admin, where it is not to be shown.
    """
    if not viewer.reads(tenant):
        raise Forbidden(
            "What was said is not shown to admin keys: SPILLWAY_ALLOW=content allows it.", code="content_not_shown"
        )


def _session(on: Services, exchange: Exchange) -> dict[str, Any]:
    """Describe Spillway and the viewer to the page, which asks for a key where `role` is None."""
    forwarded = (exchange.header(b"x-forwarded-proto") or "").partition(",")[0].strip().lower()
    scheme = "https" if forwarded == "https" else "http"
    host = exchange.header(b"host") or "127.0.0.1"
    viewer = on.gate.find(exchange)
    return {
        "role": None if viewer is None else viewer.role,
        "content": viewer is not None and viewer.content,
        "version": on.looker.version,
        "base_url": f"{scheme}://{host}/v1",
    }


def _json(value: Any) -> Response:
    """A response that no cache stores."""
    return Response(dumps(value), media_type="application/json", headers={"cache-control": "no-store"})

"""Routes that show messages, and those that change something: each checks whose they are before it does."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request, Response

from proxy.api.live import schemas
from proxy.api.live.shared import Looks, json_of
from proxy.api.scope import On
from proxy.errors import BadRequest, Conflict, Forbidden
from proxy.live.telling import Viewer

_log = logging.getLogger("spillway.live")

_SUMMARY = "/spillway/conversations/{conversation}/summary"
_LESSONS = ("window", "tools", "continuations", "all")


def add_actions(router: APIRouter) -> None:
    """Add them all."""
    _summaries(router)
    _requests(router)
    _lessons(router)


def _summaries(router: APIRouter) -> None:
    @router.get(_SUMMARY, response_model=schemas.Summary)
    async def summary(on: On, looking: Looks, request: Request, conversation: str) -> Response:
        """Tell what stands for the part of a conversation that no longer fits."""
        viewer = looking.viewer(request)
        talk = looking.looker.talk(conversation, viewer)
        _check_reads(viewer, talk.tenant)
        return json_of(await on.checkpoints.current(talk))

    @router.delete(_SUMMARY, response_model=schemas.CheckpointForgotten)
    async def forget(on: On, looking: Looks, request: Request, conversation: str) -> Response:
        """Forget the checkpoint: the next prompt begins with the one before it, or with the history itself."""
        viewer = looking.viewer(request)
        found = looking.looker.talk(conversation, viewer)
        done = await on.checkpoints.forget(found)
        _log.info("the checkpoint of %s was forgotten (%s)", found.id, viewer.role)
        return json_of(done if viewer.reads(found.tenant) else {**done, "summary": None})


def _requests(router: APIRouter) -> None:
    @router.get("/spillway/requests/{name:path}/diff", response_model=schemas.Diff)
    async def diff(looking: Looks, request: Request, name: str) -> Response:
        """Tell what the client sent and what was forwarded."""
        viewer = looking.viewer(request)
        record = looking.looker.record(name, viewer)
        _check_reads(viewer, record.tenant)
        full = request.query_params.get("full") in ("1", "true")
        return json_of(await looking.looker.diff(record, full=full))

    @router.post("/spillway/requests/{name:path}/stop", response_model=schemas.Stopping)
    async def stop(looking: Looks, request: Request, name: str) -> Response:
        """End an answer that is being made."""
        record = looking.looker.record(name, looking.viewer(request))
        job = record.job
        if job is None or not job.exchange.halt():
            raise Conflict("This request is not being served (any more).", code="not_running")
        job.outcome.record_stopped()
        return json_of({"stopped": True})


def _lessons(router: APIRouter) -> None:
    @router.delete("/spillway/lessons", response_model=schemas.Forgotten)
    async def forget(on: On, looking: Looks, request: Request) -> Response:
        """Forget what was learned of a model."""
        viewer, asked = looking.viewer(request), request.query_params
        if not viewer.all:
            raise Forbidden(
                "What was learned of a model is everybody's: forgetting it needs a key of SPILLWAY_ADMIN_KEYS.",
                code="admin_only",
            )
        lesson = asked.get("lesson", "")
        if lesson not in _LESSONS:
            raise BadRequest(f"`lesson` must be one of {', '.join(_LESSONS)}.", param="lesson")
        upstream = next(
            (each for each in on.relay.router.upstreams if each.name == asked.get("backend")), None
        )
        if upstream is None:
            raise BadRequest("`backend` must be the name of a backend.", param="backend")
        model = asked.get("model", "")
        forgotten = upstream.prober.unlearn(model, lesson)
        _log.info(
            "what was learned of %s/%s was forgotten: %s (%s)", upstream.name, model, lesson, viewer.role
        )
        for each in looking.looker.book.watching if forgotten else ():
            each.learned(upstream.name, model, "forgotten")
        return json_of({"forgotten": forgotten})


def _check_reads(viewer: Viewer, tenant: str) -> None:
    """See that a viewer may see what was said.

    Raises:
        Forbidden: not to an admin, where it is not to be shown.
    """
    if not viewer.reads(tenant):
        raise Forbidden(
            "What was said is not shown to admin keys: SPILLWAY_ALLOW=content allows it.",
            code="content_not_shown",
        )

"""The routes that the page and the terminal read, described at `/openapi.json`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from proxy.api.live import schemas
from proxy.api.live.actions import add_actions
from proxy.api.live.gate import Seen
from proxy.api.live.shared import Looking, action_body, described, json_of
from proxy.api.live.stream import LiveFeed
from proxy.api.surface import Surface
from proxy.dialects.bodies import limit_in, text_in
from proxy.errors import BadRequest, OneWorkerOnly
from proxy.exchange import Exchange

_USUAL, _MOST = 100, 500
_STREAM = {200: {"content": {"text/event-stream": {}}, "description": "Server-Sent Events."}}
Handed = Callable[[Callable[[Exchange], Awaitable[None]], Exchange], Response]


def live_router(on: Surface, route_class: type[APIRoute], handed: Handed, scope_key: str) -> APIRouter:
    """All of them. `handed` answers past FastAPI, `scope_key` is where the exchange stands in the scope."""
    keys = HTTPBearer(auto_error=False, description="A key from SPILLWAY_API_KEYS or SPILLWAY_ADMIN_KEYS.")
    needs = [Depends(keys)] if on.alone else [Depends(keys), Depends(_refuse)]
    router = APIRouter(route_class=route_class, dependencies=needs, tags=["live"])
    looking = Looking(on.gate, on.looker, scope_key)
    _sessions(router, on, looking)
    _feed(router, looking, handed)
    add_actions(router, on, looking)
    _conversations(router, looking)
    _requests(router, looking)
    return router


async def _refuse() -> None:
    raise OneWorkerOnly


def _sessions(router: APIRouter, on: Surface, looking: Looking) -> None:
    @router.get("/spillway/session", response_model=schemas.Session)
    async def session(request: Request) -> Response:
        """Tell who looks, and whether a key is needed. Never refused."""
        exchange = looking.exchange(request)
        return json_of(looking.session(exchange, on.gate.seen(exchange)))

    @router.post(
        "/spillway/session", response_model=schemas.Session, openapi_extra=described(schemas.KeyShown)
    )
    async def begin(request: Request) -> Response:
        """Take a key, and give a cookie that stands for it."""
        exchange = looking.exchange(request)
        key = text_in(await action_body(exchange), "key").strip()
        if not key:
            raise BadRequest("`key` must be the key to be shown.", param="key")
        begun, cookie = on.gate.begin(exchange, key)
        told = looking.session(exchange, Seen(begun.viewer, begun.csrf, by_key=False))
        return json_of(told, cookie)

    @router.delete("/spillway/session", status_code=204)
    async def end(request: Request) -> Response:
        """End the session of the cookie."""
        exchange = looking.exchange(request)
        on.gate.actor(exchange)
        return Response(status_code=204, headers={"set-cookie": on.gate.end(exchange).decode("latin-1")})


def _feed(router: APIRouter, looking: Looking, handed: Handed) -> None:
    feed = LiveFeed(looking.looker)

    @router.get("/spillway/live", responses=_STREAM, response_class=Response)  # type: ignore[arg-type]  # as FastAPI has it
    async def live(request: Request) -> Response:
        """Tell what happens while it happens, from a snapshot on."""
        exchange = looking.exchange(request)
        viewer, only = looking.viewer(request), request.query_params.get("conversation", "")
        if only:
            looking.looker.talk(only, viewer)
        session = looking.session(exchange, looking.gate.seen(exchange))

        async def serve(exchange: Exchange) -> None:
            await feed.serve(exchange, viewer, session, only)

        return handed(serve, exchange)


def _conversations(router: APIRouter, looking: Looking) -> None:
    looker = looking.looker

    @router.get("/spillway/conversations", response_model=schemas.Conversations)
    async def conversations(request: Request) -> Response:
        """List conversations, newest first."""
        viewer, asked = looking.viewer(request), request.query_params
        talks = looker.talks(viewer, asked, limit_in(asked, usual=_USUAL, most=_MOST))
        return json_of({"conversations": await looker.rows(talks, viewer)})

    @router.get("/spillway/conversations/{conversation}", response_model=schemas.Conversation)
    async def conversation(request: Request, conversation: str) -> Response:
        """Tell what happened in one, turn by turn."""
        viewer = looking.viewer(request)
        return json_of(await looker.timeline(looker.talk(conversation, viewer), viewer))


def _requests(router: APIRouter, looking: Looking) -> None:
    looker = looking.looker

    @router.get("/spillway/outcomes", response_model=schemas.Outcomes)
    async def outcomes(request: Request) -> Response:
        """List requests, newest first."""
        viewer, asked = looking.viewer(request), request.query_params
        return json_of(looker.outcomes(viewer, asked, limit_in(asked, usual=_USUAL, most=_MOST)))

    @router.get("/spillway/requests/{name:path}", response_model=schemas.Turn)
    async def one(request: Request, name: str) -> Response:
        """Tell all that happened to one request."""
        return json_of(looker.turn(looker.record(name, looking.viewer(request))))

    @router.get("/spillway/savings", response_model=schemas.Savings)
    async def savings(request: Request) -> Response:
        """Tell what was saved, and how that is counted."""
        return json_of(looker.savings(looking.viewer(request), request.query_params))

    @router.get("/spillway/calibration", response_model=schemas.CalibrationPoints)
    async def calibration(request: Request) -> Response:
        """Tell how well prompts were estimated."""
        return json_of(looker.calibration(looking.viewer(request), request.query_params))

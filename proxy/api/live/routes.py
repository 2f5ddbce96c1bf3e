"""The routes that the page and the terminal read, described at `/openapi.json`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from proxy.api.live import schemas
from proxy.api.live.actions import add_actions
from proxy.api.live.shared import Looks, json_of
from proxy.api.live.stream import LiveFeed
from proxy.api.scope import Handed, exchange_of
from proxy.dialects.bodies import limit_in
from proxy.exchange import Exchange

_USUAL, _MOST = 100, 500
_STREAM = {200: {"content": {"text/event-stream": {}}, "description": "Server-Sent Events."}}


def live_router(route_class: type[APIRoute]) -> APIRouter:
    """All of them."""
    keys = HTTPBearer(auto_error=False, description="A key from SPILLWAY_API_KEYS or SPILLWAY_ADMIN_KEYS.")
    router = APIRouter(route_class=route_class, dependencies=[Depends(keys)], tags=["live"])
    _session(router)
    _feed(router)
    add_actions(router)
    _conversations(router)
    _requests(router)
    return router


def _session(router: APIRouter) -> None:
    @router.get("/spillway/session", response_model=schemas.Session)
    async def session(looking: Looks, request: Request) -> Response:
        """Tell who looks, and whether a key is needed. Never refused."""
        return json_of(looking.session(exchange_of(request)))


def _feed(router: APIRouter) -> None:
    @router.get("/spillway/live", responses=_STREAM, response_class=Response)  # type: ignore[arg-type]  # as FastAPI has it
    async def live(looking: Looks, request: Request) -> Response:
        """Tell what happens while it happens, from a snapshot on."""
        exchange = exchange_of(request)
        viewer, only = looking.viewer(request), request.query_params.get("conversation", "")
        if only:
            looking.looker.talk(only, viewer)
        session = looking.session(exchange)

        async def serve(exchange: Exchange) -> None:
            await LiveFeed(looking.looker).serve(exchange, viewer, session, only)

        return Handed(serve, exchange)


def _conversations(router: APIRouter) -> None:
    @router.get("/spillway/conversations", response_model=schemas.Conversations)
    async def conversations(looking: Looks, request: Request) -> Response:
        """List conversations, newest first."""
        viewer, asked = looking.viewer(request), request.query_params
        talks = looking.looker.talks(viewer, asked, limit_in(asked, usual=_USUAL, most=_MOST))
        return json_of({"conversations": await looking.looker.rows(talks, viewer)})

    @router.get("/spillway/conversations/{conversation}", response_model=schemas.Conversation)
    async def conversation(looking: Looks, request: Request, conversation: str) -> Response:
        """Tell what happened in one, turn by turn."""
        viewer = looking.viewer(request)
        return json_of(await looking.looker.timeline(looking.looker.talk(conversation, viewer), viewer))


def _requests(router: APIRouter) -> None:
    @router.get("/spillway/outcomes", response_model=schemas.Outcomes)
    async def outcomes(looking: Looks, request: Request) -> Response:
        """List requests, newest first."""
        viewer, asked = looking.viewer(request), request.query_params
        return json_of(looking.looker.outcomes(viewer, asked, limit_in(asked, usual=_USUAL, most=_MOST)))

    @router.get("/spillway/requests/{name:path}", response_model=schemas.Turn)
    async def one(looking: Looks, request: Request, name: str) -> Response:
        """Tell all that happened to one request."""
        return json_of(looking.looker.turn(looking.looker.record(name, looking.viewer(request))))

    @router.get("/spillway/savings", response_model=schemas.Savings)
    async def savings(looking: Looks, request: Request) -> Response:
        """Tell what was saved, and how that is counted."""
        return json_of(looking.looker.savings(looking.viewer(request), request.query_params))

    @router.get("/spillway/calibration", response_model=schemas.CalibrationPoints)
    async def calibration(looking: Looks, request: Request) -> Response:
        """Tell how well prompts were estimated."""
        return json_of(looking.looker.calibration(looking.viewer(request), request.query_params))

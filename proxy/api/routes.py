"""All routes, and what goes around FastAPI: the chat route and pass-through.

A body that may be passed on as the bytes it is gains nothing from being parsed into a model and checked, and an answer
that is passed on while it arrives gains nothing from a response class; both would pay for it on every request.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from proxy.api.endpoint import Endpoint
from proxy.api.own import own_routers
from proxy.api.paths import CANONICAL, CHAT
from proxy.api.surface import Surface


class Application(FastAPI):
    """FastAPI, with the one route that every chat request takes in front of its middleware.

    The middleware has nothing to do for that route and costs a sixth of a short request's CPU.
    """

    chat: ASGIApp

    @override
    def build_middleware_stack(self) -> ASGIApp:
        stack, chat = super().build_middleware_stack(), self.chat

        async def front(scope: Scope, receive: Receive, send: Send) -> None:
            path = CANONICAL.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
            if path is not None:
                # From here on nobody need know how it was spelled, least of all the backend.
                scope["path"], scope["raw_path"] = path, path.encode()
            await (chat if path is CHAT else stack)(scope, receive, send)

        return front

    def serve(self, surface: Surface) -> None:
        """Install all routes; the last takes everything else."""
        self.chat = Endpoint(surface.relay.chat, surface.keys)
        for router in own_routers(surface):
            self.include_router(router)
        passed = Endpoint(surface.relay.passthrough, surface.keys)
        self.router.routes.append(Route("/{path:path}", passed, methods=None, include_in_schema=False))
        self.router.redirect_slashes = False

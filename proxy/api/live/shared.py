"""What the routes share: who looks, bodies, answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import BaseModel

from proxy.api.live.gate import Gate, Seen, is_https
from proxy.api.scope import On, exchange_of
from proxy.dialects.bodies import object_in
from proxy.exchange import Exchange
from proxy.live.looker import Looker
from proxy.live.viewer import Viewer
from proxy.wire.jsontext import dumps

LARGEST = 2**20
"""Bytes of the body of an action."""


class Looking:
    """What the routes share."""

    def __init__(self, gate: Gate, looker: Looker) -> None:
        self.gate, self.looker = gate, looker

    def viewer(self, request: Request) -> Viewer:
        """Who looks; raises Unauthorized or Forbidden."""
        return self.gate.viewer(exchange_of(request))

    def actor(self, request: Request) -> Viewer:
        """Who acts; raises as `viewer`, and where a browser sends it without the session's token."""
        return self.gate.actor(exchange_of(request))

    def session(self, exchange: Exchange, seen: Seen | None) -> dict[str, Any]:
        """What a page is told of itself."""
        scheme = "https" if is_https(exchange) else "http"
        host = exchange.header(b"host") or "127.0.0.1"
        viewer = None if seen is None else seen.viewer
        return {
            "role": None if viewer is None else viewer.role,
            "content": viewer is not None and viewer.content,
            "csrf": None if seen is None else seen.csrf,
            "version": self.looker.version,
            "base_url": f"{scheme}://{host}/v1",
        }


async def _looking(on: On) -> Looking:
    return Looking(on.gate, on.looker)


Looks = Annotated[Looking, Depends(_looking)]


async def action_body(exchange: Exchange) -> dict[str, Any]:
    """The JSON object that an action came with; empty if it came with nothing.

    Raises:
        BadRequest, BodyTooLarge: it is something else, or too much.
    """
    raw = await exchange.decoded(await exchange.body(LARGEST), LARGEST)
    return object_in(raw) if raw.strip() else {}


def json_of(value: Any, cookie: bytes | None = None) -> Response:
    """An answer; `cookie`: the value of its Set-Cookie header."""
    headers = {"cache-control": "no-store"}
    if cookie is not None:
        headers["set-cookie"] = cookie.decode("latin-1")
    return Response(dumps(value), media_type="application/json", headers=headers)


def described(body: type[BaseModel]) -> dict[str, Any]:
    """How a route's body is described in OpenAPI."""
    content = {"application/json": {"schema": body.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}

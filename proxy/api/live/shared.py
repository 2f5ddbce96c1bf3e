"""Dependencies and answers that the routes share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Response

from proxy.api.live.gate import Gate
from proxy.api.scope import On, exchange_of
from proxy.exchange import Exchange
from proxy.live.looker import Looker
from proxy.live.telling import Viewer
from proxy.wire.jsontext import dumps


class Looking:
    """The gate, and what viewers read behind it."""

    def __init__(self, gate: Gate, looker: Looker) -> None:
        self.gate, self.looker = gate, looker

    def viewer(self, request: Request) -> Viewer:
        """The viewer who sent a request; raises Unauthorized or Forbidden."""
        return self.gate.viewer(exchange_of(request))

    def session(self, exchange: Exchange) -> dict[str, Any]:
        """Describe Spillway and the viewer to the page, which asks for a key where `role` is None."""
        forwarded = (exchange.header(b"x-forwarded-proto") or "").partition(",")[0].strip().lower()
        scheme = "https" if forwarded == "https" else "http"
        host = exchange.header(b"host") or "127.0.0.1"
        viewer = self.gate.find(exchange)
        return {
            "role": None if viewer is None else viewer.role,
            "content": viewer is not None and viewer.content,
            "version": self.looker.version,
            "base_url": f"{scheme}://{host}/v1",
        }


async def _looking(on: On) -> Looking:
    return Looking(on.gate, on.looker)


Looks = Annotated[Looking, Depends(_looking)]


def json_of(value: Any) -> Response:
    """An answer that no cache stores."""
    return Response(dumps(value), media_type="application/json", headers={"cache-control": "no-store"})

"""OpenAI's endpoints for stored responses.

What is not kept here is asked of a backend where one is not managed, since it may keep its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute

from proxy.api.paths import PREFIXES
from proxy.api.scope import Handed, On, exchange_of
from proxy.api.surface import Surface
from proxy.dialects.bodies import limit_in
from proxy.dialects.responses import stored
from proxy.dialects.responses.conversation import Item
from proxy.errors import BadRequest, NotFound
from proxy.exchange import Exchange

_MOST, _USUAL = 100, 20
"""Items in a list."""


def stored_router(route_class: type[APIRoute]) -> APIRouter:
    """The routes."""
    router = APIRouter(route_class=route_class)

    def route(method: str, path: str, answer: Callable[..., Awaitable[dict[str, Any]]]) -> None:
        async def answered(on: On, request: Request) -> Any:
            exchange = exchange_of(request)
            if exchange.header(b"x-spillway-bypass") == "1":
                return Handed(on.relay.passthrough, exchange)
            try:
                return await answer(_Stored(on), exchange, **request.path_params)
            except NotFound:
                if on.relay.manages_all:
                    raise
                return Handed(on.relay.passthrough, exchange)

        for prefix in PREFIXES:
            router.add_api_route(
                prefix + path,
                answered,
                methods=[method],
                include_in_schema=False,  # OpenAI describes them
            )

    response = "/responses/{response_id}"
    route("GET", response, _Stored.response)
    route("DELETE", response, _Stored.delete)
    route("POST", f"{response}/cancel", _Stored.cancel)
    route("GET", f"{response}/input_items", _Stored.input_items)
    return router


class _Stored:
    """What the routes answer."""

    def __init__(self, on: Surface) -> None:
        self._memory = on.relay.memory

    async def response(self, exchange: Exchange, response_id: str) -> dict[str, Any]:
        node = await self._node(exchange, response_id)
        if _query(exchange).get("stream") == "true":
            raise BadRequest(
                "Only a response that is made in the background can be streamed again, which this proxy does not have.",
                param="stream",
            )
        told: dict[str, Any] = node["response"]
        return told

    async def delete(self, exchange: Exchange, response_id: str) -> dict[str, Any]:
        await self._node(exchange, response_id)
        await self._memory.drop(exchange.tenant, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, exchange: Exchange, response_id: str) -> dict[str, Any]:
        await self._node(exchange, response_id)
        raise BadRequest(
            "Only a response that is made in the background can be cancelled; this one is done. To end one that "
            "is being made, close the connection."
        )

    async def input_items(self, exchange: Exchange, response_id: str) -> dict[str, Any]:
        node = await self._node(exchange, response_id)
        before = await self._memory.ask(exchange.tenant, stored.items_up_to(node["previous"]))
        return _page(exchange, [*before, *node["input"]])

    async def _node(self, exchange: Exchange, name: str) -> stored.Node:
        node = await self._memory.fetch(exchange.tenant, name)
        if node is None:
            raise NotFound(f"Response with id {name!r} not found.")
        return node


def _page(exchange: Exchange, items: list[Item]) -> dict[str, Any]:
    asked = _query(exchange)
    limit, order = limit_in(asked, usual=_USUAL, most=_MOST), asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("`order` must be asc or desc.", param="order")
    return stored.page_of_items(
        items, after=asked.get("after", ""), limit=limit, newest_first=order == "desc"
    )


def _query(exchange: Exchange) -> dict[str, str]:
    return dict(parse_qsl(exchange.query.decode("latin-1")))

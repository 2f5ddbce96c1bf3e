"""OpenAI's endpoints for stored responses.

What is not kept here is asked of a backend where one is not managed, since it may keep its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request

from proxy.api.dependencies import AlreadySent, Authorized, On
from proxy.api.paths import PREFIXES
from proxy.core.errors import BadRequest, NotFound
from proxy.dialects.bodies import limit_in
from proxy.dialects.responses import stored as nodes
from proxy.dialects.responses.conversation import Item
from proxy.exchange import Exchange
from proxy.reading import Memory

_MOST, _USUAL = 100, 20
"""Items in a list."""

router = APIRouter(include_in_schema=False)  # OpenAI describes them


def _add(method: str, path: str, answer: Callable[..., Awaitable[dict[str, Any]]]) -> None:
    """Add a route that `answer` serves, or a backend that may have its own."""

    async def route(on: On, exchange: Authorized, request: Request) -> Any:
        if exchange.header(b"x-spillway-bypass") != "1":
            try:
                return await answer(on.relay.memory, exchange, request.path_params["response_id"])
            except NotFound:
                if on.relay.manages_all:
                    raise
        await on.relay.passthrough(exchange)
        return AlreadySent()

    for prefix in PREFIXES:
        router.add_api_route(f"{prefix}/responses/{{response_id}}{path}", route, methods=[method])


async def _response(memory: Memory, exchange: Exchange, name: str) -> dict[str, Any]:
    node = await _node(memory, exchange, name)
    if _query(exchange).get("stream") == "true":
        raise BadRequest(
            "Only a response that is made in the background can be streamed again, which this proxy does not have.",
            param="stream",
        )
    response: dict[str, Any] = node["response"]
    return response


async def _delete(memory: Memory, exchange: Exchange, name: str) -> dict[str, Any]:
    await _node(memory, exchange, name)
    await memory.drop(exchange.tenant, name)
    return {"id": name, "object": "response", "deleted": True}


async def _cancel(memory: Memory, exchange: Exchange, name: str) -> dict[str, Any]:
    await _node(memory, exchange, name)
    raise BadRequest(
        "Only a response that is made in the background can be cancelled; this one is done. To end one that "
        "is being made, close the connection."
    )


async def _input_items(memory: Memory, exchange: Exchange, name: str) -> dict[str, Any]:
    node = await _node(memory, exchange, name)
    before = await memory.ask(exchange.tenant, nodes.items_up_to(node["previous"]))
    return _page(exchange, [*before, *node["input"]])


_add("GET", "", _response)
_add("DELETE", "", _delete)
_add("POST", "/cancel", _cancel)
_add("GET", "/input_items", _input_items)


async def _node(memory: Memory, exchange: Exchange, name: str) -> nodes.Node:
    node = await memory.fetch(exchange.tenant, name)
    if node is None:
        raise NotFound(f"Response with id {name!r} not found.")
    return node


def _page(exchange: Exchange, items: list[Item]) -> dict[str, Any]:
    query = _query(exchange)
    limit, order = limit_in(query, usual=_USUAL, most=_MOST), query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("`order` must be asc or desc.", param="order")
    return nodes.page_of_items(items, after=query.get("after", ""), limit=limit, newest_first=order == "desc")


def _query(exchange: Exchange) -> dict[str, str]:
    return dict(parse_qsl(exchange.query.decode("latin-1")))

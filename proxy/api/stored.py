"""OpenAI's endpoints for stored responses.

A response that is not stored here is requested from a backend where one is not managed, since it may store its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from fastapi import APIRouter, Request

from proxy.api.dependencies import AlreadySent, Authorized, On
from proxy.api.paths import PREFIXES
from proxy.conversation_state import ConversationState
from proxy.core.errors import BadRequest, NotFound
from proxy.dialects.bodies import limit_in
from proxy.dialects.responses import stored as nodes

Parameters: TypeAlias = Mapping[str, str]
_MOST, _USUAL = 100, 20
"""Items in a list."""

router = APIRouter(include_in_schema=False)  # OpenAI describes them


def _add(method: str, path: str, answer: Callable[..., Awaitable[dict[str, Any]]]) -> None:
    """Add a route that `answer` serves, or a backend that may have its own."""

    async def route(on: On, exchange: Authorized, request: Request) -> Any:
        if exchange.header(b"x-spillway-bypass") != "1":
            try:
                return await answer(
                    on.relay.pipeline.state, exchange.tenant, request.path_params["response_id"], request.query_params
                )
            except NotFound:
                if on.relay.manages_all:
                    raise
        await on.relay.passthrough(exchange)
        return AlreadySent()

    for prefix in PREFIXES:
        router.add_api_route(f"{prefix}/responses/{{response_id}}{path}", route, methods=[method])


async def _response(state: ConversationState, tenant: str, name: str, query: Parameters) -> dict[str, Any]:
    node = await _node(state, tenant, name)
    if query.get("stream") == "true":
        raise BadRequest(
            "Only a response that is made in the background can be streamed again, which this proxy does not have.",
            param="stream",
        )
    response: dict[str, Any] = node["response"]
    return response


async def _delete(state: ConversationState, tenant: str, name: str, _: Parameters) -> dict[str, Any]:
    await _node(state, tenant, name)
    await state.drop(tenant, name)
    return {"id": name, "object": "response", "deleted": True}


async def _cancel(state: ConversationState, tenant: str, name: str, _: Parameters) -> dict[str, Any]:
    await _node(state, tenant, name)
    raise BadRequest(
        "Only a response that is made in the background can be cancelled; this one is done. To end one that "
        "is being made, close the connection."
    )


async def _input_items(state: ConversationState, tenant: str, name: str, query: Parameters) -> dict[str, Any]:
    node = await _node(state, tenant, name)
    before = await state.run(tenant, nodes.items_up_to(node["previous"]))
    limit, order = limit_in(query, usual=_USUAL, most=_MOST), query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("`order` must be asc or desc.", param="order")
    items, after = [*before, *node["input"]], query.get("after", "")
    return nodes.page_of_items(items, after=after, limit=limit, newest_first=order == "desc")


_add("GET", "", _response)
_add("DELETE", "", _delete)
_add("POST", "/cancel", _cancel)
_add("GET", "/input_items", _input_items)


async def _node(state: ConversationState, tenant: str, name: str) -> nodes.Node:
    node = await state.fetch(tenant, name)
    if node is None:
        raise NotFound(f"Response with id {name!r} not found.")
    return node

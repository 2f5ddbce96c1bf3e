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

Parameters: TypeAlias = Mapping[str, str]

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


_add("GET", "", _response)
_add("DELETE", "", _delete)
_add("POST", "/cancel", _cancel)


async def _node(state: ConversationState, tenant: str, name: str) -> dict[str, Any]:
    node = await state.fetch(tenant, name)
    if node is None:
        raise NotFound(f"Response with id {name!r} not found.")
    return node

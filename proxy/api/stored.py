"""Routes of OpenAI's API for stored responses."""

from typing import Any

from fastapi import APIRouter, Depends, Response

from proxy.api.access import PREFIXES, AlreadySent, Authorized, On, Services, as_json, bearer
from proxy.api.schemas import answers
from proxy.core.errors import BadRequest, NotFound
from proxy.exchange import Exchange

router = APIRouter(tags=["chat"], dependencies=[Depends(bearer)])


async def get_response(on: On, exchange: Authorized, response_id: str, stream: bool = False) -> Response:  # noqa: FBT001, FBT002 - a query parameter
    """Return a stored response."""
    node = await _node(on, exchange, response_id)
    if node is not None and stream:
        raise BadRequest(
            "Only background responses can be streamed again, which Spillway does not have: leave `stream` out.",
            param="stream",
        )
    return AlreadySent() if node is None else as_json(node["response"])


async def delete_response(on: On, exchange: Authorized, response_id: str) -> Response:
    """Delete a stored response."""
    if await _node(on, exchange, response_id) is None:
        return AlreadySent()
    await on.relay.pipeline.state.drop(exchange.tenant, response_id)
    return as_json({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(on: On, exchange: Authorized, response_id: str) -> Response:
    """Refuse to cancel a stored response, since it is complete."""
    if await _node(on, exchange, response_id) is not None:
        raise BadRequest(
            "Only background responses can be cancelled, and this one is complete. To end one that is running, "
            "close its connection."
        )
    return AlreadySent()


async def _node(on: Services, exchange: Exchange, response_id: str) -> dict[str, Any] | None:
    """Find a stored response; if it is not stored here, pass the request to a backend that may have it, and return None.

    Raises:
        NotFound: the response is not stored here, and no backend can have it, because Spillway manages all of them.
    """
    if exchange.header(b"x-spillway-bypass") != "1":
        if (node := await on.relay.pipeline.state.fetch(exchange.tenant, response_id)) is not None:
            return node
        if on.relay.manages_all:
            raise NotFound(f"Response with id {response_id!r} not found.")
    await on.relay.passthrough(exchange)
    return None


for prefix in PREFIXES:
    for method, path, endpoint, answer in (
        ("GET", "", get_response, "ResponsesAnswer"),
        ("DELETE", "", delete_response, "Deleted"),
        ("POST", "/cancel", cancel_response, "ResponsesAnswer"),
    ):
        router.add_api_route(
            f"{prefix}/responses/{{response_id}}{path}",
            endpoint,
            methods=[method],
            responses=answers(answer),
            include_in_schema=prefix == PREFIXES[0],
        )

"""Responses and conversations that are kept here, asked for again: OpenAI's endpoints for them.

What is not kept here is asked of a backend where one is not managed, since it may keep its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute

from proxy.api.paths import PREFIXES
from proxy.api.scope import Handed, On, exchange_of
from proxy.api.surface import Surface
from proxy.dialects.bodies import limit_in, object_in
from proxy.dialects.responses import stored
from proxy.dialects.responses.conversation import Item, items_in
from proxy.errors import BadRequest, BodyTooLarge, ClientError, NotFound
from proxy.exchange import Exchange, unique
from proxy.neutral.remembering import Keeping

_MOST, _USUAL = 100, 20
"""Items in a list."""
_AT_ONCE = 20
"""Items that are added to a conversation in one request."""
_MOST_METADATA, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512


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

    response, talk = "/responses/{response_id}", "/conversations/{conversation_id}"
    route("GET", response, _Stored.response)
    route("DELETE", response, _Stored.delete_response)
    route("POST", f"{response}/cancel", _Stored.cancel)
    route("GET", f"{response}/input_items", _Stored.input_items)
    route("POST", "/conversations", _Stored.create)
    route("GET", talk, _Stored.conversation)
    route("POST", talk, _Stored.update)
    route("DELETE", talk, _Stored.delete_conversation)
    route("POST", f"{talk}/items", _Stored.add)
    route("GET", f"{talk}/items", _Stored.items)
    route("GET", f"{talk}/items/{{item_id}}", _Stored.item)
    route("DELETE", f"{talk}/items/{{item_id}}", _Stored.delete_item)
    return router


class _Stored:
    """What the routes answer."""

    def __init__(self, on: Surface) -> None:
        self._memory = on.relay.memory
        self._clock = on.relay.clock
        self._limit = on.settings.max_body

    # -- responses

    async def response(self, exchange: Exchange, response_id: str) -> dict[str, Any]:
        node = await self._node(exchange, response_id)
        if _query(exchange).get("stream") == "true":
            raise BadRequest(
                "Only a response that is made in the background can be streamed again, which this proxy does not have.",
                param="stream",
            )
        told: dict[str, Any] = node["response"]
        return told

    async def delete_response(self, exchange: Exchange, response_id: str) -> dict[str, Any]:
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
        before = await self._ask(exchange, stored.items_up_to(node["previous"]))
        return _page(exchange, [*before, *node["input"]])

    async def _node(self, exchange: Exchange, name: str) -> stored.Node:
        node = await self._memory.fetch(exchange.tenant, name)
        if node is None or node.get("response") is None:
            raise NotFound(f"Response with id {name!r} not found.")
        return node

    # -- conversations

    async def create(self, exchange: Exchange) -> dict[str, Any]:
        asked = await self._body(exchange)
        name = f"conv_{unique()}"
        told = {
            "id": name,
            "object": "conversation",
            "created_at": int(self._clock()),
            "metadata": _metadata(asked),
        }
        added = _added(asked) if asked.get("items") else []
        head = await self._keep_items(exchange, added) if added else ""
        await self._change(exchange, name, {"object": told, "head": head})
        return told

    async def conversation(self, exchange: Exchange, conversation_id: str) -> dict[str, Any]:
        kept = await self._conversation(exchange, conversation_id)
        told: dict[str, Any] = kept["object"]
        return told

    async def update(self, exchange: Exchange, conversation_id: str) -> dict[str, Any]:
        kept = await self._conversation(exchange, conversation_id)
        metadata = _metadata(await self._body(exchange))
        told = {**kept["object"], "metadata": metadata}
        await self._change(exchange, conversation_id, {**kept, "object": told})
        return told

    async def delete_conversation(self, exchange: Exchange, conversation_id: str) -> dict[str, Any]:
        await self._conversation(exchange, conversation_id)
        await self._memory.drop(exchange.tenant, conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    async def add(self, exchange: Exchange, conversation_id: str) -> dict[str, Any]:
        await self._conversation(exchange, conversation_id)
        added = _added(await self._body(exchange))
        name = f"items_{unique()}"
        node = stored.node_of(name, added)
        await self._keep(exchange, stored.append(conversation_id, name, node))
        return stored.page_of_items(node["input"], after="", limit=len(added), newest_first=False)

    async def items(self, exchange: Exchange, conversation_id: str) -> dict[str, Any]:
        kept = await self._conversation(exchange, conversation_id)
        return _page(exchange, await self._ask(exchange, stored.items_up_to(kept["head"])))

    async def item(self, exchange: Exchange, conversation_id: str, item_id: str) -> dict[str, Any]:
        kept = await self._conversation(exchange, conversation_id)
        for item in await self._ask(exchange, stored.items_up_to(kept["head"])):
            if item.get("id") == item_id:
                return stored.as_told(item)
        raise _no_item(item_id)

    async def delete_item(self, exchange: Exchange, conversation_id: str, item_id: str) -> dict[str, Any]:
        kept = await self._conversation(exchange, conversation_id)
        name = kept["head"]
        while name and (node := await self._memory.fetch(exchange.tenant, name)) is not None:
            less = {
                part: [item for item in node[part] if item.get("id") != item_id]
                for part in ("input", "output")
            }
            if any(len(less[part]) < len(node[part]) for part in less):
                await self._change(exchange, name, {**node, **less})
                told: dict[str, Any] = kept["object"]
                return told
            name = node["previous"]
        raise _no_item(item_id)

    async def _conversation(self, exchange: Exchange, name: str) -> dict[str, Any]:
        kept: dict[str, Any] = await self._ask(exchange, stored.conversation(name))
        return kept

    # -- inside

    async def _ask(self, exchange: Exchange, flow: Generator[Any, Any, Any]) -> Any:
        return await self._memory.ask(exchange.tenant, flow)

    async def _keep_items(self, exchange: Exchange, items: list[Item]) -> str:
        name = f"items_{unique()}"
        await self._change(exchange, name, stored.node_of(name, items))
        return name

    async def _change(self, exchange: Exchange, name: str, document: dict[str, Any]) -> None:
        await self._keep(exchange, stored.kept_as(name, document))

    async def _keep(self, exchange: Exchange, flow: Keeping) -> None:
        if not await self._memory.keep(exchange.tenant, flow):
            raise BodyTooLarge("This is larger than the store takes (SPILLWAY_STORE_BYTES).")

    async def _body(self, exchange: Exchange) -> dict[str, Any]:
        raw = await exchange.decoded(await exchange.body(self._limit), self._limit)
        return object_in(raw) if raw.strip() else {}


def _added(asked: Mapping[str, Any]) -> list[Item]:
    items = asked.get("items")
    if not isinstance(items, list) or not items or len(items) > _AT_ONCE:
        raise BadRequest(f"`items` must be a list of 1 to {_AT_ONCE} items.", param="items")
    return items_in(items)


def _metadata(asked: Mapping[str, Any]) -> dict[str, str]:
    said = asked.get("metadata")
    if said is None:
        return {}
    fits = isinstance(said, dict) and len(said) <= _MOST_METADATA
    if not fits or not all(
        len(key) <= _LONGEST_KEY and isinstance(value, str) and len(value) <= _LONGEST_VALUE
        for key, value in said.items()
    ):
        raise BadRequest(
            f"`metadata` must be an object of at most {_MOST_METADATA} texts, with keys of at most {_LONGEST_KEY} characters and "
            f"values of at most {_LONGEST_VALUE}.",
            param="metadata",
        )
    return dict(said)


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


def _no_item(name: str) -> ClientError:
    return NotFound(f"Item with id {name!r} not found.")

"""Reading of a body's bytes into a request, with the documents it refers to, within the bounds on its size."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeVar

from proxy.client_histories import Sealer
from proxy.core.errors import BadRequest, BodyTooLarge, StoreUnavailable
from proxy.core.jsontext import holds_more, is_heavy, may_hold_more
from proxy.core.request import Fetch, Request, Unseal
from proxy.core.settings import Settings
from proxy.exchange import Exchange
from proxy.net.tasks import offload_if
from proxy.store import Documents, Store

LARGE = 512 * 1024
"""Bytes from which a body is not read on the loop."""
_SMALL = 32 * 1024
"""Bytes up to which it always is."""
_MANY = 5_000
"""The same for JSON values: most dialects rebuild each of them, which takes one or two microseconds."""
MOST_VALUES = 250_000
"""JSON values in a body, lists and objects counted twice: they are read at once, five million in a second."""
MOST_MESSAGES = 10_000
MOST_PARTS = 20_000
"""Parts of contents, tool calls and tools together."""
_LEAST_PART = 3
"""Bytes that a message or a part takes at least."""


async def read(exchange: Exchange, wire: bytes, reads: Callable[[bytes], Request], settings: Settings) -> Request:
    """Read the request in the body of an exchange. `reads` takes the body without content-encoding.

    Raises:
        BadRequest: it is malformed, or holds more values than are taken.
        BodyTooLarge: it is larger than is taken when it is decoded.
        Overloaded: too much is held already.
    """
    body = await exchange.decoded(wire, settings.max_body)
    large = len(body) > LARGE or (len(body) > _SMALL and may_hold_more(body, _MANY))
    request = await offload_if(large, _read, body, reads)
    return request if body is wire or request.raw is None else replace(request, wire=wire)


def _read(body: bytes, reads: Callable[[bytes], Request]) -> Request:
    if len(body) > LARGE and holds_more(body, MOST_VALUES):
        raise BadRequest(
            f"The request body holds more than {MOST_VALUES} JSON values. Send a shorter history, or fewer tools."
        )
    return reads(body)


def check_bounds(request: Request) -> None:
    """Check that a request is within the limits on messages and parts.

    Raises:
        BadRequest: it is not.
    """
    if request.raw is not None and len(request.raw) < _LEAST_PART * MOST_MESSAGES:
        return
    messages = request.messages
    if len(messages) > MOST_MESSAGES:
        raise BadRequest(
            f"The request has {len(messages)} messages; at most {MOST_MESSAGES} are taken. Leave out the oldest ones.",
            param="messages",
            code="array_above_max_length",
        )
    values = [message.get(name) for message in messages for name in ("content", "tool_calls")]
    values.append(request.body.get("tools"))
    parts = sum(len(value) for value in values if isinstance(value, list))
    if parts > MOST_PARTS:
        raise BadRequest(
            f"The request has {parts} parts, counting parts of contents, tool calls and tools; at most "
            f"{MOST_PARTS} are taken. Join texts, or leave out the oldest messages.",
            param="messages",
            code="array_above_max_length",
        )


_NAMED = (
    b"x-claude-code-session-id",  # Claude Code 2.1
    b"thread-id",  # Codex 0.169; its session may hold several
    b"session-id",
    b"session_id",  # Codex before 0.100
    b"x-openwebui-chat-id",  # Open WebUI 0.12, where it forwards what it knows of the user
)
"""Headers in which a client names the conversation, the most exact first."""


def conversation_of(exchange: Exchange, request: Request) -> str:
    """A digest of the name that a client gives the conversation, and of whose it is; empty: it gives none.

    Another client may give the same name to another conversation: checkpoints are found by content alone.
    """
    name = next(filter(None, map(exchange.header, _NAMED)), request.conversation)
    if not name:
        return ""
    identity = f"{exchange.tenant}|{name}".encode("utf-8", "surrogatepass")
    return blake2b(identity, digest_size=8, person=b"spillway-conv").hexdigest()


T = TypeVar("T")


class Memory:
    """Runs the flows of dialects that fetch stored documents. Everything is one credential's own."""

    def __init__(self, documents: Documents, sealer: Sealer, store: Store, settings: Settings) -> None:
        self._documents = documents
        self._sealer = sealer
        self._store = store
        self._settings = settings
        self._limit = settings.max_body
        """Bytes of what one request may go on from."""

    async def read(self, exchange: Exchange, wire: bytes, reads: Callable[[bytes], Request]) -> Request:
        """Read the request in a body, with the documents it refers to. `reads`: see `read` of this module.

        Raises:
            BadRequest, NotFound: it is malformed, or there is no such thing.
            BodyTooLarge, Overloaded: it is more than is taken.
            StoreUnavailable: it can't be looked up now.
        """
        request = await read(exchange, wire, reads, self._settings)
        if request.reading is not None:
            request = await self.ask(exchange.tenant, request.reading())
        check_bounds(request)
        return request

    async def ask(self, owner: str, flow: Generator[Fetch | Unseal, Any, T]) -> T:
        """Run a flow to its result; raises what it raises, and as `read`."""
        reply: Any = None
        remaining, heavy = self._limit, False
        while True:
            step = await offload_if(heavy, _next, flow, reply)
            if isinstance(step, tuple):
                result: T = step[0]
                return result
            if isinstance(step, Unseal):
                reply = await self._sealer.open(owner, step.purpose, step.text)
            else:
                reply = await self.fetch(owner, step.name)
                remaining -= 0 if reply is None else reply.get("size", 0)
            heavy = heavy or is_heavy(reply)
            if remaining < 0:
                raise BodyTooLarge(
                    f"What this request goes on from is larger than the {self._limit} bytes accepted here "
                    "(SPILLWAY_MAX_BODY). Begin a new conversation."
                )

    async def fetch(self, owner: str, name: str) -> dict[str, Any] | None:
        """Fetch a document; None if there is none.

        Raises:
            StoreUnavailable: the store can't tell.
        """
        found = await self._documents.fetch(owner, name)
        if found is None and not self._store.healthy:
            raise StoreUnavailable(
                f"The store does not answer now, so {name!r} can't be looked up: try again later, or send the whole "
                "conversation in the request."
            )
        return found

    async def keep_answer(self, owner: str, request: Request, answer: dict[str, Any]) -> None:
        """Store an answer, if its request wants that; one that the store never takes is left out."""
        if request.keeping is not None:
            name, document = await offload_if(is_heavy(request.messages), request.keeping, answer)
            await self._documents.keep(owner, name, document)

    async def drop(self, owner: str, name: str) -> None:
        """Delete a document.

        Raises:
            StoreUnavailable: the store does not take that now.
        """
        if not await self._documents.drop(owner, name):
            raise StoreUnavailable(f"The store takes no changes now, so {name!r} is not deleted: try again later.")


def _next(flow: Generator[Any, Any, T], reply: Any) -> Any:
    """Return the flow's next step, or its result in a tuple."""
    try:
        return flow.send(reply)
    except StopIteration as stop:
        return (stop.value,)

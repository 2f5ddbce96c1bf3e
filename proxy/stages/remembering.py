"""What clients have had kept: put behind the requests that name it, and the answers that are to be kept."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from proxy.errors import BodyTooLarge, StoreUnavailable
from proxy.exchange import Exchange
from proxy.history.checkpoint import Store
from proxy.net.apart import apart
from proxy.neutral.remembering import Fetch, Unseal
from proxy.neutral.request import Request
from proxy.neutral.weight import is_heavy
from proxy.settings import Settings
from proxy.stages.reading import check_bounds, read
from proxy.stages.sealing import Sealer
from proxy.store.documents import Documents

T = TypeVar("T")


class Memory:
    """Runs the flows of dialects that ask for what is kept. Everything is one credential's own."""

    def __init__(self, documents: Documents, sealer: Sealer, store: Store, limit: int) -> None:
        """`limit`: bytes of what one request may go on from."""
        self._documents = documents
        self._sealer = sealer
        self._store = store
        self._limit = limit

    async def read(
        self, exchange: Exchange, wire: bytes, reads: Callable[[bytes, bytes], Request], settings: Settings
    ) -> Request:
        """The request in a body, with what it names that is kept elsewhere. `reads`: see `proxy.stages.reading`.

        Raises:
            BadRequest, NotFound: it is malformed, or there is no such thing.
            BodyTooLarge, Overloaded: it is more than is taken.
            StoreUnavailable: it can't be looked up now.
        """
        request = await read(exchange, wire, reads, settings)
        if request.reading is not None:
            request = await self.ask(exchange.tenant, request.reading())
        check_bounds(request, settings)
        return request

    async def ask(self, owner: str, flow: Generator[Fetch | Unseal, Any, T]) -> T:
        """What a flow comes to; raises what it raises, and as `read`."""
        reply: Any = None
        left, heavy = self._limit, False
        while True:
            step = await apart(heavy, _next, flow, reply)
            if isinstance(step, tuple):
                result: T = step[0]
                return result
            if isinstance(step, Unseal):
                reply = await self._sealer.open(owner, step.purpose, step.text)
            else:
                reply = await self.fetch(owner, step.name)
                left -= 0 if reply is None else reply.get("size", 0)
            heavy = heavy or is_heavy(reply)
            if left < 0:
                raise BodyTooLarge(
                    f"What this request goes on from is larger than the {self._limit} bytes accepted here "
                    "(SPILLWAY_MAX_BODY). Begin a new conversation."
                )

    async def fetch(self, owner: str, name: str) -> dict[str, Any] | None:
        """A document; None if there is none.

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
            name, document = await apart(is_heavy(request.messages), request.keeping, answer)
            await self._documents.keep(owner, name, document)

    async def drop(self, owner: str, name: str) -> None:
        """Delete a document.

        Raises:
            StoreUnavailable: the store does not take that now.
        """
        if not await self._documents.drop(owner, name):
            raise StoreUnavailable(
                f"The store takes no changes now, so {name!r} is not deleted: try again later."
            )


def _next(flow: Generator[Any, Any, T], reply: Any) -> Any:
    """What the flow yields next, or in a tuple what it comes to."""
    try:
        return flow.send(reply)
    except StopIteration as stop:
        return (stop.value,)

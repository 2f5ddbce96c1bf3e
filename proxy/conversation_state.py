"""Reading requests, with the state that they refer to: stored responses, sealed compactions, edits of the history."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from secrets import token_bytes
from typing import Any, TypeVar

from proxy.compaction.results import edited
from proxy.compaction.summary import in_words
from proxy.core.errors import BadRequest, BodyTooLarge, StoreUnavailable
from proxy.core.history.sealed import KEY_BYTES, SealedHistory, fingerprint, is_sealed, opened, seal
from proxy.core.jsontext import HEAVY, holds_more, is_heavy, may_hold_more
from proxy.core.request import (
    Cleared,
    CompactionRequest,
    Fetch,
    Message,
    Request,
    SealedCompaction,
    Unseal,
    leading_system,
)
from proxy.counting import Counting
from proxy.exchange import Exchange
from proxy.net.tasks import next_step, offload_if
from proxy.routing import Route
from proxy.store import Store

LARGE = 512 * 1024
"""Bytes from which a body is read in a thread, off the event loop."""
_SMALL = 32 * 1024
"""Bytes up to which a body is always read on the event loop."""
_MANY = 5_000
"""JSON values above which a body is read in a thread: most dialects rebuild each value, which takes one or two microseconds."""
MOST_VALUES = 250_000
"""Most JSON values in a body, lists and objects counted twice. They are read in one go, five million per second."""
MOST_MESSAGES = 10_000
MOST_PARTS = 20_000
"""Most parts of contents, tool calls and tools together."""
_SMALLEST_MESSAGE = 3
"""Fewest bytes of a message."""
_SEALING_KEY = "sealing"
"""Name of the secret in the store that replicas share."""
_CONVERSATION_HEADERS = (
    b"x-claude-code-session-id",  # Claude Code 2.1
    b"thread-id",  # Codex 0.169; its session may hold several
    b"session-id",
    b"session_id",  # Codex before 0.100
    b"x-openwebui-chat-id",  # Open WebUI 0.12, where it forwards what it knows of the user
)
"""Headers in which a client names the conversation, the most exact first."""

T = TypeVar("T")


class ConversationState:
    """Reads requests with the documents that they refer to, and seals and opens histories, always for one credential.

    Until the store has told the sealing key, a key of this process is used. It becomes the store's if the store has
    none; otherwise what was sealed with it can be opened until the process ends.
    """

    def __init__(self, *, store: Store, counting: Counting, max_body: int) -> None:
        self._store = store
        self._counting = counting
        self._max_body = max_body
        self._keys = [token_bytes(KEY_BYTES)]
        """Sealing keys; the first one seals."""
        self._has_shared_key = False

    async def read(self, exchange: Exchange, wire: bytes, reads: Callable[[bytes], Request]) -> Request:
        """Read the request in a body that arrived as `wire`; `reads` takes it without content-encoding.

        Raises:
            BadRequest, NotFound: the request is malformed, has too many values, or refers to something that does not exist.
            BodyTooLarge, Overloaded: the body, or what it refers to, is too large.
            StoreUnavailable: something that the request refers to can't be looked up now.
        """
        body = await exchange.decoded(wire, self._max_body)
        large = len(body) > LARGE or (len(body) > _SMALL and may_hold_more(body, _MANY))
        request = await offload_if(large, _parsed, body, reads)
        if body is not wire and request.raw is not None:
            request = replace(request, wire=wire)
        if request.reading is not None:
            request = await self.run(exchange.tenant, request.reading())
        if request.raw is None or len(request.raw) >= _SMALLEST_MESSAGE * MOST_MESSAGES:
            _check_bounds(request)
        return request

    async def run(self, tenant: str, flow: Generator[Fetch | Unseal, Any, T]) -> T:
        """Run a dialect's flow that looks up documents, to its result; raises like the flow and like `read`."""
        reply: Any = None
        remaining, heavy = self._max_body, False
        while True:
            step = await offload_if(heavy, next_step, flow, reply)
            if isinstance(step, tuple):
                return step[0]
            if isinstance(step, Unseal):
                reply = await self.open(tenant, step.text)
            else:
                reply = await self.fetch(tenant, step.name)
                remaining -= 0 if reply is None else reply.get("size", 0)
            heavy = heavy or is_heavy(reply)
            if remaining < 0:
                raise BodyTooLarge(
                    f"The stored conversation that this request continues is larger than the {self._max_body} bytes accepted here "
                    "(SPILLWAY_MAX_BODY). Begin a new conversation."
                )

    # -- documents

    async def fetch(self, tenant: str, name: str) -> dict[str, Any] | None:
        """Fetch a document, or return None if there is none.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        found = await self._store.document(tenant, name)
        if found is None and not self._store.healthy:
            raise StoreUnavailable(
                f"The store does not answer at the moment, so {name!r} can't be looked up: try again later, or send the whole "
                "conversation in the request."
            )
        return found

    async def keep_answer(self, tenant: str, request: Request, answer: dict[str, Any]) -> None:
        """Store an answer if its request wants that; an answer that the store can never take is left out."""
        if request.keeping is not None:
            name, document = await offload_if(is_heavy(request.messages), request.keeping, answer)
            await self._store.put_document(tenant, name, document)

    async def drop(self, tenant: str, name: str) -> None:
        """Delete a document.

        Raises:
            StoreUnavailable: the store accepts no changes now.
        """
        if not await self._store.drop_document(tenant, name):
            raise StoreUnavailable(
                f"The store accepts no changes at the moment, so {name!r} is not deleted: try again later."
            )

    # -- sealed values, see `proxy.core.history.sealed`

    async def seal(self, tenant: str, value: Any) -> str:
        """Seal a JSON value so that it opens for this tenant only.

        Raises:
            TypeError, ValueError: the value is not JSON.
        """
        keys = await self._known_keys()
        return await offload_if(is_heavy(value), seal, keys[0], tenant, value)

    async def open(self, tenant: str, text: Any) -> Any:
        """Return the value under a seal, or None if the text is no seal, or one for another tenant."""
        if not is_sealed(text):
            return None
        keys = await self._known_keys()
        return await offload_if(len(text) > HEAVY, opened, keys, tenant, text)

    async def _known_keys(self) -> list[bytes]:
        if not self._has_shared_key:
            shared = await self._store.value(_SEALING_KEY, self._keys[0], once=True)
            if shared is not None:
                self._has_shared_key = True
                self._keys = [shared, *(key for key in self._keys if key != shared)]
        return self._keys

    # -- the client's own management of its history

    async def seal_history(
        self, tenant: str, request: Request, history: Sequence[Message], words: str = ""
    ) -> SealedCompaction:
        """Seal what the history of a request was compacted to, with these words, or else with those of its summary."""
        messages, wanted = request.messages, request.compaction or CompactionRequest()
        lead = leading_system(messages)
        fingerprints = (fingerprint(message) for message in messages if message.get("role") == "user")
        content = SealedHistory(
            messages=history,
            lead=messages[lead - wanted.lead : lead],
            fingerprints=list(dict.fromkeys([*wanted.fingerprints, *fingerprints])),
        )
        return SealedCompaction(await self.seal(tenant, content.written()), words or in_words(history))

    async def edit(
        self, route: Route, request: Request, system: Sequence[Message], sent: Sequence[Message]
    ) -> tuple[Sequence[Message], Sequence[Cleared]]:
        """Apply the client's context edits to its history, and return what they cleared, too; its length stays the same."""
        if not request.edits:
            return sent, ()
        # How much the edits leave out depends on the size of the prompt.
        body = {**request.body, "messages": [*system, *sent]}
        tokens = (await self._counting.measure(route, await route.profile(request.body), body)).tokens
        meter, key = self._counting.meter, route.key
        apply = partial(edited, sent, request.edits, tokens=tokens, cost=lambda messages: meter.costs(key, messages))
        history, cleared = await offload_if(is_heavy(list(sent)), apply)
        return (history, cleared) if cleared else (sent, ())

    async def body_to_count(self, request: Request, route: Route) -> tuple[dict[str, Any], bool]:
        """Build the body to count for a request: with the client's own edits, but without Spillway's changes.

        Also returns whether the edits left anything out.
        """
        request = await route.with_options(request)
        lead = leading_system(request.messages)
        system, sent = request.messages[:lead], request.messages[lead:]
        history, cleared = await self.edit(route, request, system, [*request.restored, *sent])
        return {**request.body, "messages": [*system, *history]}, bool(cleared)


def conversation_of(exchange: Exchange, request: Request) -> str:
    """Return a digest of the client's name for the conversation and of its credential; empty if the client names none.

    Clients may share names, so a name alone leads to no checkpoint: these are found by content.
    """
    name = next(filter(None, map(exchange.header, _CONVERSATION_HEADERS)), request.conversation)
    if not name:
        return ""
    identity = f"{exchange.tenant}|{name}".encode("utf-8", "surrogatepass")
    return blake2b(identity, digest_size=8, person=b"spillway-conv").hexdigest()


def _parsed(body: bytes, reads: Callable[[bytes], Request]) -> Request:
    if len(body) > LARGE and holds_more(body, MOST_VALUES):
        raise BadRequest(
            f"The request body holds more than {MOST_VALUES} JSON values. Send a shorter history, or fewer tools."
        )
    return reads(body)


def _check_bounds(request: Request) -> None:
    messages = request.messages
    values = [message.get(name) for message in messages for name in ("content", "tool_calls")]
    values.append(request.body.get("tools"))
    parts = sum(len(value) for value in values if isinstance(value, list))
    for number, most, what in (
        (len(messages), MOST_MESSAGES, "messages"),
        (parts, MOST_PARTS, "parts, counting parts of contents, tool calls and tools"),
    ):
        if number > most:
            raise BadRequest(
                f"The request has {number} {what}; at most {most} are taken. Leave out the oldest messages.",
                param="messages",
                code="array_above_max_length",
            )

"""The chain of digests by which a history is recognised when a client sends it again.

Clients are stateless and send nearly, not exactly, what they got: answers lose white space at their ends,
reasoning is dropped, text content becomes a list of parts. The canonical form leaves out what they change.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

from proxy.history.cachemarks import all_unmarked
from proxy.history.prefixes import Found, Known, Prefixes
from proxy.neutral.request import Message
from proxy.wire.jsontext import dumps

DIGEST_BYTES = 16
Linked: TypeAlias = tuple[list[bytes], Known[list[bytes]] | None]


def message_digest(message: Message) -> bytes:
    """16 bytes that stand for what a message says: role, text, other parts, tool calls and their ids."""
    return blake2b(dumps(_canonical(message)), digest_size=DIGEST_BYTES).digest()


def chain(messages: Sequence[Message], begun: Sequence[bytes] = ()) -> list[bytes]:
    """Digest of every prefix: the n-th (from 0) stands for the first n+1 messages. `begun` are the first ones, if known."""
    links = list(begun)
    link = links[-1] if links else b""
    for message in messages[len(links) :]:
        link = blake2b(link + message_digest(message), digest_size=DIGEST_BYTES).digest()
        links.append(link)
    return links


class Chains:
    """The chains of histories, of which those seen lately are only gone on with. `limit`: bytes that are remembered, about."""

    def __init__(self, limit: int) -> None:
        self._known: Prefixes[list[bytes]] = Prefixes(limit)

    def find(self, messages: Sequence[Message]) -> Found[list[bytes]]:
        """What is known of a history."""
        return self._known.longest((), messages)

    def go_on(self, found: Found[list[bytes]]) -> Linked:
        """Its chain, and what is to be kept of it. May take long; usable from another thread."""
        links = chain(found.messages, (found.value or [])[: found.common])
        return links, found.grown(links, self._known.limit)

    def keep(self, found: Found[list[bytes]], linked: Linked) -> list[bytes]:
        """Remember a chain, and return it."""
        self._known.keep(found, linked[1])
        return linked[0]


def _canonical(message: Message) -> list[Any]:
    content, role = message.get("content"), message.get("role")
    if isinstance(content, str):
        content = content.strip()
        if role is not None and len(message) == 2:  # there is nothing else in it
            return [role, content or None, None, None, None]
    elif isinstance(content, list):
        content = _canonical_parts(content)
    calls = message.get("tool_calls") or message.get("function_call")
    return [
        role,
        content or None,
        _canonical_calls(calls) if calls else None,
        message.get("tool_call_id"),
        message.get("name"),
    ]


def _canonical_parts(parts: list[Any]) -> Any:
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
        return "\n".join(str(text) for text in texts).strip()
    return all_unmarked(parts)


def _canonical_calls(calls: Any) -> Any:
    if not isinstance(calls, list):
        return calls
    return [_canonical_call(call) for call in calls]


def _canonical_call(call: Any) -> Any:
    """Id, name and arguments, in whatever order and with whatever beside them they are sent back."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return [call.get("id"), function.get("name"), function.get("arguments")]

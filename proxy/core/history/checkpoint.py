"""Checkpoints: stored prefix rewrites, and the chain of digests by which a history is recognised when a client sends it again.

A checkpoint says "a history that begins with these k messages may begin with these others instead". Clients are stateless
and send nearly, not exactly, what they got: answers lose white space at their ends, reasoning is dropped, text content
becomes a list of parts. The canonical form leaves out what they change. So do the marks by which they tell where a cache of
the prompt may end (`cache_control`, Anthropic's, also taken by OpenRouter): those say nothing to the model, and move from
turn to turn.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from proxy.core.history.marks import is_extract, is_summary
from proxy.core.jsontext import dig, dumps, omit
from proxy.core.request import Message

By: TypeAlias = Literal["written", "extract"]
"""Author of a summary: a model, or code."""
DIGEST_BYTES = 16
CACHE_MARK = "cache_control"
_NESTED = frozenset({"content", "tool_calls", "function"})
"""Fields of messages, calls and tools in which such marks may stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A prefix rewrite.

    `scope` names who may see it and where it holds (credential, backend, model; opaque here);
    `digest` is the chain digest of the covered prefix, 16 bytes; `covered` counts the messages after the
    leading system messages that it covers; `replacement` are the messages that stand for them (parsed
    JSON). Token figures are estimates at the time of making. `kind` is `pruned`, `compacted`, `trimmed` or `read`.
    `window` is the context window in tokens that it was made for; 0: not recorded, by an earlier version.
    """

    scope: str
    digest: bytes
    covered: int
    replacement: tuple[dict[str, Any], ...]
    tokens_before: int
    tokens_after: int
    kind: str
    created: float
    """Seconds since the epoch, from the clock of whoever made it."""
    window: int = 0

    @property
    def by(self) -> By | None:
        """Author of the summary in it; None: there is no summary."""
        if not any(map(is_summary, self.replacement)):
            return None
        return "extract" if any(map(is_extract, self.replacement)) else "written"


def message_digest(message: Message) -> bytes:
    """16 bytes that stand for what a message says: role, text, other parts, tool calls and their ids."""
    return blake2b(dumps(_canonical(message)), digest_size=DIGEST_BYTES).digest()


def chain(messages: Iterable[Message]) -> list[bytes]:
    """Digest of every prefix: the n-th (from 0) stands for the first n+1 messages. 400 kB take 0.8 ms."""
    return links(map(message_digest, messages))


def links(digests: Iterable[bytes]) -> list[bytes]:
    """Digest of every prefix of messages with these digests."""
    link = b""
    return [link := blake2b(link + digest, digest_size=DIGEST_BYTES).digest() for digest in digests]


def without_cache_marks(value: Any) -> Any:
    """Messages, tools, or one of these, without cache marks; the same object if there are none."""
    if isinstance(value, Mapping):
        kept = omit(value, CACHE_MARK)
        bare = {name: without_cache_marks(each) if name in _NESTED else each for name, each in kept.items()}
        return value if len(bare) == len(value) and all(bare[name] is value[name] for name in bare) else bare
    if isinstance(value, list):
        parts = [without_cache_marks(each) for each in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    return value


def _canonical(message: Message) -> list[Any]:
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        only_text = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        content = "\n".join(map(str, texts)) if only_text else without_cache_marks(content)
    content = content.strip() if isinstance(content, str) else content
    calls = list(map(_canonical_call, calls)) if isinstance(calls, list) else calls
    return [message.get("role"), content or None, calls or None, message.get("tool_call_id"), message.get("name")]


def _canonical_call(call: Any) -> Any:
    """Id, name and arguments, in whatever order and with whatever beside them they are sent back."""
    function = dig(call, "function")
    if not isinstance(function, dict):
        return call
    return [call.get("id"), function.get("name"), function.get("arguments")]

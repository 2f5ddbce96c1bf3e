"""Checkpoints: stored prefix rewrites, and the chain of digests by which a history is recognised when a client sends it again.

A checkpoint says "a history that begins with these k messages may begin with these others instead". Clients send back
nearly, but not exactly, the answers they got: white space at the ends is stripped, reasoning is dropped, text content
becomes a list of parts. The canonical form of a message leaves out everything that clients change. It also leaves out the
marks of where a prompt cache may end (`cache_control`, Anthropic's, also accepted by OpenRouter), which mean nothing to
the model and move from turn to turn.
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
"""Fields of messages, calls and tools that may contain cache marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A prefix rewrite.

    `scope` names who may see it and where it applies (credential, backend, model; opaque here). `digest` is the chain
    digest of the covered prefix, 16 bytes. `covered` is the number of covered messages, not counting the leading system
    messages. `replacement` are the messages that replace them (parsed JSON). Token figures were estimated when it was
    made. `kind` is `pruned`, `compacted`, `trimmed` or `read`. `window` is the context window in tokens that it was made
    for, or 0 if an earlier version did not record it.
    """

    scope: str
    digest: bytes
    covered: int
    replacement: tuple[dict[str, Any], ...]
    tokens_before: int
    tokens_after: int
    kind: str
    created: float
    """Time of making, in seconds since the epoch."""
    window: int = 0

    @property
    def by(self) -> By | None:
        """Author of the summary in it, or None if there is no summary."""
        if not any(map(is_summary, self.replacement)):
            return None
        return "extract" if any(map(is_extract, self.replacement)) else "written"


def message_digest(message: Message) -> bytes:
    """Compute the 16-byte digest of a message's content: role, text, other parts, tool calls and their ids."""
    return blake2b(dumps(_canonical(message)), digest_size=DIGEST_BYTES).digest()


def chain(messages: Iterable[Message]) -> list[bytes]:
    """Compute the digest of every prefix; the n-th (from 0) covers the first n+1 messages. 400 kB take 0.8 ms."""
    return links(map(message_digest, messages))


def links(digests: Iterable[bytes]) -> list[bytes]:
    """Compute the digest of every prefix from the digests of the messages."""
    link = b""
    return [link := blake2b(link + digest, digest_size=DIGEST_BYTES).digest() for digest in digests]


def without_cache_marks(value: Any) -> Any:
    """Return messages, tools, or one of these, without cache marks; the same object if there are none."""
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
    """Reduce a call to id, name and arguments, since clients send calls back reordered or with other fields."""
    function = dig(call, "function")
    if not isinstance(function, dict):
        return call
    return [call.get("id"), function.get("name"), function.get("arguments")]

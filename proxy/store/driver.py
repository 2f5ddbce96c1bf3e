"""Interface of a database that checkpoints are stored in, and their form there: one JSON object each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from proxy.core.errors import SettingError
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.jsontext import dumps, loads

VERSION = 1
MAX_VALUES = 4096
"""Learned values stored; their keys hold names of models, which come from clients. One more, and all are learned anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits of a store.

    `clock` gives seconds since the epoch; `ttl` is how many seconds a checkpoint is stored after its last use;
    `max_bytes` caps the encoded checkpoints; `timeout` is the most seconds an operation may cost a request.
    """

    clock: Callable[[], float]
    ttl: float
    max_bytes: int
    timeout: float


class Driver(Protocol):
    """Database behind a `Store`, which bounds its time and catches what it raises."""

    name: str

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """Return the checkpoint of the first of `digests` that is stored, and note the use."""
        ...

    async def put(self, checkpoint: Checkpoint, body: bytes) -> None:
        """Store it, encoded as `body`, in place of one with its scope and digest."""
        ...

    async def drop(self, scope: str, digest: bytes) -> None:
        """Delete a checkpoint, if it is there."""
        ...

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """Return a small value, after writing `new`; see `Store.value`."""
        ...

    async def lease(self, key: str, seconds: float) -> bool:
        """Hold `key` for so many seconds, 0 to release it; False: another process holds it."""
        ...

    async def export(self) -> list[Checkpoint]:
        """Return all checkpoints, in any order."""
        ...

    async def purge(self, older_than: float | None) -> int:
        """Delete checkpoints made before that (seconds since the epoch), or all; return how many."""
        ...

    async def close(self) -> None:
        """Release files and connections."""
        ...


def encode(checkpoint: Checkpoint) -> bytes:
    """Return one line of JSON, UTF-8, the same in every database and in an export.

    Raises:
        TypeError, ValueError, RecursionError: the replacement is not JSON.
    """
    fields = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
    return dumps({"v": VERSION, **fields, "digest": checkpoint.digest.hex()})


def decode(body: bytes, scope: str | None = None, digest: bytes | None = None) -> Checkpoint | None:
    """Read what `encode` wrote; None for anything else, or when it belongs to another scope or digest.

    That check is the last line of defence against showing one credential what another one sent.
    """
    try:
        checkpoint = _checkpoint(loads(body))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    is_right = scope in (None, checkpoint.scope) and digest in (None, checkpoint.digest)
    return checkpoint if is_right else None


def _checkpoint(document: Any) -> Checkpoint:
    replacement, covered = document["replacement"], int(document["covered"])
    messages = isinstance(replacement, list) and all(isinstance(message, dict) for message in replacement)
    if document["v"] != VERSION or covered < 0 or not messages:
        raise ValueError("unknown version, or not the messages that stand for others")
    return Checkpoint(
        scope=document["scope"],
        digest=bytes.fromhex(document["digest"]),
        kind=document["kind"],
        created=float(document["created"]),
        covered=covered,
        tokens_before=int(document["tokens_before"]),
        tokens_after=int(document["tokens_after"]),
        window=int(document.get("window", 0)),
        replacement=tuple(replacement),
    )


def refusal(url: str, reason: object) -> SettingError:
    """Return the error for a store address that can't be used."""
    return SettingError(f"SPILLWAY_STORE={public_url(url)!r}: {reason}")


def public_url(url: str) -> str:
    """Return an address without its secrets: user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.split(":", 1)[0] + "://…"
    if not parts.scheme.startswith("redis"):
        return url
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path}"

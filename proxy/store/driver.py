"""Interface of a database that checkpoints are stored in, and what its implementations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol
from urllib.parse import urlsplit

from proxy.core.errors import SettingError

MAX_VALUES = 4096
"""Learned values stored; their keys hold names of models, which come from clients. One more, and all are learned anew."""


class Fault(Enum):
    """Conclusion from an error."""

    REACH = auto()
    """The database can't be reached, or does not work."""
    WRITES = auto()
    """The database works, and takes no writes: the disk is full, or locked by another process."""
    RECORD = auto()
    """The database works: the one record is at fault."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """An encoded checkpoint, with the time of its making in seconds since the epoch."""

    scope: str
    digest: bytes
    created: float
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """StoreLimits of a store.

    `clock` gives seconds since the epoch; `ttl` is how many seconds a checkpoint is stored after its last use;
    `max_bytes` caps the encoded checkpoints; `timeout` is the most seconds an operation may cost a request.
    """

    clock: Callable[[], float]
    ttl: float
    max_bytes: int
    timeout: float


class Driver(Protocol):
    """Database behind a `GuardedStore`, which bounds its time and catches what it raises.

    Scopes and keys are text that UTF-8 can encode.
    """

    name: str

    async def find(self, scope: str, digests: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """Return digest and body of the first of `digests` that is stored, and note the use."""
        ...

    async def put(self, record: StoredRecord) -> None:
        """Store a record in place of one with its scope and digest."""
        ...

    async def drop(self, scope: str, digest: bytes) -> None:
        """Delete a record, if it is there."""
        ...

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """Return a small value, after writing `new`; see `Store.value`."""
        ...

    async def lease(self, key: str, owner: str, seconds: float) -> bool:
        """Hold `key` for so many seconds from now, 0 to release it; False: another owner of this database holds it."""
        ...

    async def export(self) -> list[bytes]:
        """Return the bodies of all records."""
        ...

    async def purge(self, older_than: float | None) -> int:
        """Delete records made before that (seconds since the epoch), or all; return how many."""
        ...

    async def close(self) -> None:
        """Release files and connections."""
        ...

    def explain(self, error: Exception) -> tuple[Fault, str]:
        """Classify an error, and describe it in a few words that never quote what was stored."""
        ...


def public_url(url: str) -> str:
    """Return an address without its secrets: user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.split(":", 1)[0] + "://…"
    if not parts.scheme.startswith("redis"):
        return url
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path}"


def refusal(url: str, reason: str) -> SettingError:
    """Return the error for a store address that can't be used."""
    return SettingError(f"SPILLWAY_STORE={public_url(url)!r}: {reason}")

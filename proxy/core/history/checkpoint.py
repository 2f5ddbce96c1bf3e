"""Checkpoints: stored prefix rewrites, and the chain of digests that finds them again.

A checkpoint says "a history that begins with these k messages may begin with these others instead".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from proxy.core.history.marks import is_extract, is_summary

By: TypeAlias = Literal["written", "extract"]
"""Author of a summary: a model, or code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A prefix rewrite.

    `scope` names who may see it and where it holds (credential, backend, model; opaque here);
    `digest` is the chain digest of the covered prefix, 16 bytes; `covered` counts the messages after the
    leading system messages that it covers; `replacement` are the messages that stand for them (parsed
    JSON). Token figures are estimates at the time of making. `kind` is `pruned`, `compacted` or `trimmed`.
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


class Store(Protocol):
    """Database of checkpoints by scope and digest, and of small values.

    A database that is lost, slow or full is no error: nothing is found then, and what is new is kept in memory.
    """

    @property
    def healthy(self) -> bool:
        """True if the last operation worked; a failure is logged once."""
        ...

    @property
    def skipped(self) -> int:
        """Records that could not be written or read although the database works; each was left out alone."""
        ...

    async def check(self) -> str:
        """Try it now: `ok`, or in a few words what is wrong. Takes about as long as any operation."""
        ...

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """Return the stored checkpoint of `scope` whose digest comes first in `digests` (longest prefix first)."""
        ...

    async def put(self, checkpoint: Checkpoint) -> bool:
        """Store it; one of the same scope and digest is replaced. False: it never can be, and is left out."""
        ...

    async def drop(self, scope: str, digest: bytes) -> bool:
        """Delete it, if it is there; False: the database does not take that now."""
        ...

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """Return a small value, such as learned weights, after writing `new`; None: there is none, or it is out of reach.

        With `once`, `new` is written only where there is none yet, so that replicas share a secret, which never expires,
        nor is purged. Those keys are apart from the others.
        """
        ...

    def claim(self, key: str, seconds: float) -> AbstractAsyncContextManager[None]:
        """Be the only one within who works at `key`, here and in all replicas with the same Redis.

        Waits at most so many seconds for another, then goes on all the same. The claim of a process that dies ends
        within seconds.
        """
        ...

    async def export(self) -> list[Checkpoint]:
        """Return all checkpoints, oldest first."""
        ...

    async def purge(self, *, older_than: float | None = None) -> int:
        """Delete checkpoints made before `older_than` (seconds since the epoch), or all; return how many."""
        ...

    async def close(self) -> None:
        """Finish writing, and release files and connections."""
        ...

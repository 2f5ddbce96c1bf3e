"""Checkpoints: stored prefix rewrites, and the chain of digests that finds them again.

A checkpoint says "a history that begins with these k messages may begin with these others instead".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from proxy.history.marks import is_extract, is_summary

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


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds: checkpoints, bytes they take, and seconds since the epoch of the oldest."""

    checkpoints: int
    bytes: int
    oldest: float | None


class Checkpoints(Protocol):
    """Prefix rewrites by scope and digest. A lost backend is no error: nothing is found then, and nothing kept."""

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """The stored checkpoint of `scope` whose digest comes first in `digests` (longest prefix first)."""
        ...

    async def put(self, checkpoint: Checkpoint) -> bool:
        """Store it; one of the same scope and digest is replaced. False: it never can be, and is left out."""
        ...

    async def drop(self, scope: str, digest: bytes) -> bool:
        """Delete it, if it is there; False: the store does not take that now."""
        ...


class Secrets(Protocol):
    """Keys that replicas share and that outlive the process; none of them expires, or is purged. Never raises."""

    async def secret(self, name: str, fresh: bytes) -> bytes | None:
        """The one of that name, which is `fresh` if there was none; None: the store can't tell, or take it, now."""
        ...


class LearnedState(Protocol):
    """Small values that outlive the process: weights, a learned window. Never raises for a lost backend."""

    async def get_state(self, key: str) -> bytes | None:
        """The value, or None."""
        ...

    async def put_state(self, key: str, value: bytes) -> None:
        """Keep a value."""
        ...


class Claims(Protocol):
    """Who makes what, so that it is made once. Shared by replicas where the store is; never raises."""

    async def claim(self, key: str, seconds: float) -> bool:
        """Try to become the one who makes `key`, for `seconds` unless it is renewed."""
        ...

    async def renew(self, key: str, seconds: float) -> None:
        """Hold a claim that was got for `seconds` from now."""
        ...

    async def release(self, key: str) -> None:
        """Give a claim back."""
        ...

    async def wait(self, key: str, seconds: float) -> None:
        """Return when the claim of `key` is released or has expired, or after `seconds`."""
        ...


class StoreAdmin(Protocol):
    """What those who run a store ask of it. Never raises for a lost backend."""

    @property
    def healthy(self) -> bool:
        """Whether the last operation worked; a failure is logged once."""
        ...

    @property
    def skipped(self) -> int:
        """Records that could not be written or read although the store works; each was left out alone."""
        ...

    async def check(self) -> str:
        """Try it now: `ok`, or in a few words what is wrong. Takes no longer than any operation."""
        ...

    async def stats(self) -> StoreStats:
        """Count what is held."""
        ...

    async def purge(self, *, older_than: float | None = None) -> int:
        """Delete checkpoints made before `older_than` (seconds since the epoch), or all; return how many."""
        ...

    async def export(self) -> list[Checkpoint]:
        """All checkpoints, oldest first."""
        ...

    async def close(self) -> None:
        """Finish writing and let go of files and connections."""
        ...


class SharedCheckpoints(Checkpoints, Claims, Protocol):
    """Checkpoints of which each is made by one alone."""


class CheckpointStore(SharedCheckpoints, LearnedState, Secrets, StoreAdmin, Protocol):
    """All of it, as a store is opened. Who works with one asks for the part that it needs."""

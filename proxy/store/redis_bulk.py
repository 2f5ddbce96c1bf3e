"""What goes over everything in Redis: counting, exporting, deleting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from proxy.history.checkpoint import Checkpoint, StoreStats
from proxy.store.codec import decode
from proxy.store.redis_wire import PREFIX, Wire, index_of, value_name

T = TypeVar("T")

CHUNK = 100
"""Checkpoints asked for in one round trip."""


async def stats_all(wire: Wire) -> StoreStats:
    """Count what there is."""
    count, size, oldest = 0, 0, float("inf")
    async for names in _live(wire):
        created = await wire.batch([("HGET", name, "created") for name in names])
        sizes = await wire.batch([("HSTRLEN", name, "body") for name in names])
        for made, length in zip(created, sizes, strict=True):
            if isinstance(length, int) and (at := _seconds(made)) is not None:
                count, size, oldest = count + 1, size + length, min(oldest, at)
    return StoreStats(count, size, oldest if count else None)


async def export_all(wire: Wire) -> list[Checkpoint]:
    """All there is, oldest first."""
    found = []
    async for names in _live(wire):
        bodies = await wire.batch([("HGET", name, "body") for name in names])
        found += [item for body in bodies if isinstance(body, bytes) and (item := decode(body)) is not None]
    return sorted(found, key=lambda item: item.created)


async def purge_all(wire: Wire, older_than: float | None) -> int:
    """Delete what was made before that, or all; those too that no index names any more."""
    count = 0
    async for found in wire.scan(f"{PREFIX}cp:*"):
        for names in _chunks(found):
            created = await wire.batch([("HGET", name, "created") for name in names])
            old = [
                name
                for name, made in zip(names, created, strict=True)
                if older_than is None or ((at := _seconds(made)) is not None and at < older_than)
            ]
            replies = await wire.batch([("UNLINK", name) for name in old])
            await wire.batch([("ZREM", *index) for name in old if (index := index_of(name)) is not None])
            count += sum(reply for reply in replies if isinstance(reply, int))
    return count


async def _live(wire: Wire) -> AsyncIterator[Sequence[bytes]]:
    seen: set[bytes] = set()
    async for indexes in wire.scan(f"{PREFIX}ix:*"):
        for index in indexes:
            if index in seen:  # a scan may name a key twice
                continue
            seen.add(index)
            (digests,) = await wire.batch([("ZRANGE", index, 0, -1)])
            for chunk in _chunks(digests) if isinstance(digests, list) else ():
                yield [value_name(index.decode(), digest).encode() for digest in chunk]


def _chunks(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]


def _seconds(made: object) -> float | None:
    try:
        return float(made) if isinstance(made, bytes) else None
    except ValueError:
        return None

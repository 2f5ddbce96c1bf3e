from __future__ import annotations

import pytest

from proxy.stages.sealing import Sealer
from tests.store.support import HandClock, open_with

pytestmark = pytest.mark.anyio


class LostStore:
    """Tells nothing until it is found."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.lost = True

    async def secret(self, name: str, fresh: bytes) -> bytes | None:
        return None if self.lost else self.held.setdefault(name, fresh)


async def test_replicas_open_what_another_one_sealed() -> None:
    store = open_with("memory://", HandClock())
    one, two = Sealer(store), Sealer(store)
    blob = await one.seal("me", "history", {"said": "hello"})
    assert await two.open("me", "history", blob) == {"said": "hello"}
    assert await two.open("you", "history", blob) is None
    assert await Sealer(open_with("memory://", HandClock())).open("me", "history", blob) is None


async def test_what_was_sealed_while_the_store_was_lost_still_opens() -> None:
    store = LostStore()
    one, two = Sealer(store), Sealer(store)
    mine, other = await one.seal("me", "history", 1), await two.seal("me", "history", 2)
    store.lost = False
    shared = await one.seal("me", "history", 3)
    assert [await one.open("me", "history", blob) for blob in (mine, shared)] == [1, 3]
    assert [await two.open("me", "history", blob) for blob in (mine, other, shared)] == [1, 2, 3]


async def test_large_values_are_sealed_and_opened() -> None:
    sealer, value = (
        Sealer(open_with("memory://", HandClock())),
        {"said": "hello " * 50_000, "n": list(range(50_000))},
    )
    assert await sealer.open("me", "history", await sealer.seal("me", "history", value)) == value

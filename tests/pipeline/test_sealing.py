import pytest
from typing_extensions import override

from proxy.conversation_state import ConversationState
from proxy.counting import Counting
from proxy.store import Store
from proxy.store.driver import StoreLimits
from proxy.store.sqlite import SqliteDriver
from proxy.tokens.meter import Meter
from tests.fakes.waiting import PATIENT
from tests.store.support import DAY, HandClock, open_with

pytestmark = pytest.mark.anyio


def state_of(store: Store) -> ConversationState:
    counting = Counting(meter=Meter(), store=store)
    return ConversationState(store=store, counting=counting, max_body=2**20)


class LostStore(SqliteDriver):
    """Out of reach, until it is no longer lost."""

    lost = True

    @override
    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        if self.lost:
            raise OSError
        return await super().value(key, new, once=once)


async def test_replicas_open_what_another_one_sealed() -> None:
    store = open_with("memory://", HandClock())
    one, two = state_of(store), state_of(store)
    blob = await one.seal("me", {"said": "hello"})
    assert await two.open("me", blob) == {"said": "hello"}
    assert await two.open("you", blob) is None
    assert await state_of(open_with("memory://", HandClock())).open("me", blob) is None


async def test_what_was_sealed_while_the_store_was_lost_still_opens() -> None:
    clock = HandClock()
    limits = StoreLimits(clock=clock, ttl=DAY, max_bytes=2**20, timeout=PATIENT)
    lost = LostStore(None, limits)
    store = Store(lost, limits, now=clock)
    one, two = state_of(store), state_of(store)
    mine, other = await one.seal("me", 1), await two.seal("me", 2)
    lost.lost = False
    clock.advance(30)
    shared = await one.seal("me", 3)
    assert [await one.open("me", blob) for blob in (mine, shared)] == [1, 3]
    assert [await two.open("me", blob) for blob in (mine, other, shared)] == [1, 2, 3]


async def test_large_values_are_sealed_and_opened() -> None:
    sealer, value = (state_of(open_with("memory://", HandClock())), {"said": "hello " * 50_000, "n": list(range(50_000))})
    assert await sealer.open("me", await sealer.seal("me", value)) == value

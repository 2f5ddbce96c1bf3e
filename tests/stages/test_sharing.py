"""What one process learns of a model the others know, in whatever order they write."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.backends.profile import Continuation
from proxy.net.credentials import OwnKeys
from proxy.net.flows import FlowRunner
from proxy.net.prober import Prober
from proxy.net.teaching import LESSON_TTL
from proxy.net.transport import HttpTransport
from proxy.net.upstream import Upstream
from proxy.stages.counting import Counting
from proxy.stages.sharing import Sharing
from proxy.store import open_store
from proxy.tokens.meter import Meter
from tests.store.support import DAY, NOW, HandClock

pytestmark = pytest.mark.anyio


class Process:
    """One of those that share a store."""

    def __init__(self, store: Any, clock: HandClock) -> None:
        transport = HttpTransport(connect_timeout=1.0, read_timeout=1.0)
        self.prober = Prober(FlowRunner(transport, "http://127.0.0.1:9"), kind="generic", clock=clock.steady)
        upstream = Upstream(
            name="b",
            url="http://127.0.0.1:9",
            authorization=None,
            own_keys=OwnKeys(()),
            transport=transport,
            prober=lambda _: self.prober,
            managed=True,
        )
        counting = Counting(meter=Meter(), store=store)
        self.sharing = Sharing(store, [upstream], counting, clock)

    @property
    def lessons(self) -> dict[tuple[str, str], list[Any]]:
        return self.prober.teaching.taught()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(clock: HandClock) -> Any:
    return open_store("memory://", clock=clock, ttl=DAY, max_bytes=2**20, timeout=5.0, steady=clock.steady)


@pytest.fixture
def pair(store: Any, clock: HandClock) -> tuple[Process, Process]:
    return Process(store, clock), Process(store, clock)


async def look(clock: HandClock, *processes: Process) -> None:
    for process in processes:
        clock.advance(0.5)
        await process.sharing.look()


async def test_all_kinds_of_lessons_reach_the_others(clock: HandClock, pair: tuple[Process, Process]) -> None:
    one, two = pair
    one.prober.learn("m", 2048, "error")
    one.prober.refuse_tools("m", "refused")
    two.prober.refuse_continuation("m", Continuation.TRAILING, "refused")
    two.prober.learn("ünï|", 4096, "error")
    await look(clock, one, two, one)
    assert one.lessons == two.lessons
    assert one.lessons == {
        ("m", "window"): [2048, "error"],
        ("m", "tools"): ["refused", None],
        ("m", "trailing_assistant"): ["refused", None],
        ("ünï|", "window"): [4096, "error"],
    }


async def test_the_newest_word_counts_whoever_has_it(clock: HandClock, pair: tuple[Process, Process]) -> None:
    one, two = pair
    one.prober.learn("m", 2048, "error")
    await look(clock, one, two)
    assert two.prober.answered("m", 3000) == 2048  # which proves it wrong
    await look(clock, two, one)
    assert not one.lessons
    assert not two.lessons
    one.prober.learn("m", 3500, "error")
    await look(clock, two, one, two)
    assert two.lessons == {("m", "window"): [3500, "error"]}
    two.prober.learn("m", 3400, "error")
    await look(clock, two, one)
    assert one.lessons == {("m", "window"): [3400, "error"]}


async def test_what_another_has_written_over_is_written_once_more(
    clock: HandClock, store: Any, pair: tuple[Process, Process]
) -> None:
    one, two = pair
    one.prober.learn("m", 2048, "error")
    two.prober.learn("n", 4096, "error")
    before: dict[str, bytes | None] = {}
    get = store.get_state

    async def read_before(key: str) -> bytes | None:
        return before.setdefault(key, await get(key))

    store.get_state = read_before  # both read, and only then both write
    await look(clock, one, two)
    store.get_state = get
    await look(clock, one, two, one)
    assert set(one.lessons) == set(two.lessons) == {("m", "window"), ("n", "window")}


async def test_a_lesson_ends_for_all_at_the_same_time(
    clock: HandClock, pair: tuple[Process, Process]
) -> None:
    one, two = pair
    one.prober.refuse_tools("m", "refused")
    await look(clock, one)
    clock.advance(LESSON_TTL - 10)
    await look(clock, two)
    assert two.lessons
    clock.advance(20)
    await look(clock, one, two, one)
    assert not one.lessons
    assert not two.lessons


async def test_a_process_that_begins_later_knows_what_was_learned(
    clock: HandClock, store: Any, pair: tuple[Process, Process]
) -> None:
    pair[0].prober.learn("m", 2048, "error")
    await look(clock, pair[0])
    late = Process(store, clock)
    await look(clock, late)
    assert late.lessons == pair[0].lessons


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        f'[["m", "window", ["x"], {NOW + 9}]]'.encode(),
        f'[["m", "flight", ["a", 1], {NOW + 9}]]'.encode(),
    ],
)
async def test_what_is_malformed_in_the_store_is_left_out(
    clock: HandClock, store: Any, pair: tuple[Process, Process], state: bytes
) -> None:
    one, two = pair
    one.prober.learn("m", 2048, "error")
    written, put = [], store.put_state

    async def note(key: str, value: bytes) -> None:
        written.append(key)
        await put(key, value)

    store.put_state = note
    await look(clock, one)
    await put(written[0], state)
    await look(clock, two, one, two)
    assert two.lessons == one.lessons == {("m", "window"): [2048, "error"]}

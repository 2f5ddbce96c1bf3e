from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.store.ledger import Entry, Ledger
from proxy.store.opening import StoreLimits
from tests.store.support import HandClock, digest

KEYS = [(scope, digest(number)) for scope in "ab" for number in range(4)]
YEAR = 365 * 86400.0
_operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "use", "drop", "expire", "replace"]),
        st.sampled_from(KEYS),
        st.integers(1, 40),
    ),
    max_size=60,
)


def ledger_of(clock: HandClock, *, ttl: float, max_bytes: int) -> Ledger:
    clock.now = 0.0
    return Ledger(StoreLimits(clock=clock, steady=clock.steady, ttl=ttl, max_bytes=max_bytes, timeout=1.0))


def test_the_longest_unused_goes_first(clock: HandClock) -> None:
    ledger = ledger_of(clock, ttl=100, max_bytes=30)
    for key in KEYS[:3]:
        ledger.add(key, 10)
        clock.advance(1)
    ledger.use(KEYS[0])
    _, gone = ledger.add(KEYS[3], 15)
    assert gone == [KEYS[1], KEYS[2]]
    assert ledger.bytes == 25


def test_what_has_expired_goes_too(clock: HandClock) -> None:
    ledger = ledger_of(clock, ttl=100, max_bytes=1000)
    ledger.add(KEYS[0], 1)
    clock.advance(50)
    ledger.add(KEYS[1], 1)
    clock.advance(50)
    assert ledger.add(KEYS[2], 1)[1] == [KEYS[0]]
    clock.advance(49.9)
    assert ledger.expire() == []
    clock.advance(51)
    assert ledger.expire() == [KEYS[1], KEYS[2]]


def test_what_goes_at_one_time_is_bounded(clock: HandClock) -> None:
    ledger = ledger_of(clock, ttl=100, max_bytes=100_000)
    for number in range(1000):
        ledger.add(("scope", digest(number)), 1)
    clock.advance(200)
    assert [len(ledger.expire()) for _ in range(5)] == [256, 256, 256, 232, 0]


def test_a_use_noted_here_outlives_a_reload(clock: HandClock) -> None:
    ledger = ledger_of(clock, ttl=100, max_bytes=1000)
    ledger.add(KEYS[0], 1)
    clock.advance(70)
    ledger.use(KEYS[0])
    ledger.replace([(KEYS[0], Entry(1, 0, 0)), (KEYS[1], Entry(1, 30, 30))])
    assert [(key, entry.used, entry.saved) for key, entry in ledger] == [(KEYS[1], 30, 30), (KEYS[0], 70, 0)]


@pytest.mark.parametrize("seconds", [YEAR, -YEAR])
def test_a_clock_that_is_set_ends_nothing_and_keeps_nothing_longer(clock: HandClock, seconds: float) -> None:
    ledger = ledger_of(clock, ttl=100, max_bytes=1000)
    ledger.add(KEYS[0], 1)
    clock.advance(60)
    clock.jump(seconds)
    assert ledger.first(KEYS[0][0], [KEYS[0][1]]) == KEYS[0][1]
    ledger.add(KEYS[1], 1)
    assert ledger.expire() == []
    clock.advance(41)
    assert ledger.expire() == [KEYS[0]]
    clock.jump(-seconds)
    clock.advance(60)
    assert ledger.expire() == [KEYS[1]]


def test_a_use_of_the_future_is_one_of_now(clock: HandClock) -> None:
    ledger = ledger_of(clock, ttl=100, max_bytes=1000)
    ledger.replace([(KEYS[0], Entry(1, YEAR, YEAR))])
    clock.advance(99)
    assert ledger.live(KEYS[0])
    clock.advance(2)
    assert ledger.expire() == [KEYS[0]]


@given(_operations)
def test_its_sums_are_those_of_its_entries(operations: list[tuple[str, tuple[str, bytes], int]]) -> None:
    clock = HandClock()
    ledger = ledger_of(clock, ttl=20, max_bytes=100)
    for name, key, size in operations:
        clock.advance(1)
        match name:
            case "add":
                _, gone = ledger.add(key, size)
                assert key not in gone
            case "use":
                ledger.use(key)
            case "drop":
                ledger.drop(key)
            case "expire":
                assert all(not ledger.live(old) for old in ledger.expire())
            case _:
                ledger.replace([(key, Entry(size, clock(), clock()))])
        entries = dict(ledger)
        assert ledger.bytes == sum(entry.size for entry in entries.values()) <= 100
        assert len(ledger) == len(entries)
        for scope in "ab":
            held = [key[1] for key in entries if key[0] == scope and ledger.live(key)]
            assert (scope in ledger) == any(key[0] == scope for key in entries)
            assert (ledger.first(scope, held) is None) == (not held)

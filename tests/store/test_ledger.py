from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.store.ledger import Entry, Ledger
from tests.store.support import digest

KEYS = [(scope, digest(number)) for scope in "ab" for number in range(4)]
_operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "use", "drop", "expire", "replace"]),
        st.sampled_from(KEYS),
        st.integers(1, 40),
    ),
    max_size=60,
)


def test_the_longest_unused_goes_first() -> None:
    ledger = Ledger(ttl=100, max_bytes=30)
    for now, key in enumerate(KEYS[:3]):
        ledger.add(key, 10, now)
    ledger.use(KEYS[0], 5)
    _, gone = ledger.add(KEYS[3], 15, 6)
    assert gone == [KEYS[1], KEYS[2]]
    assert ledger.bytes == 25


def test_what_has_expired_goes_too() -> None:
    ledger = Ledger(ttl=100, max_bytes=1000)
    ledger.add(KEYS[0], 1, 0)
    ledger.add(KEYS[1], 1, 50)
    assert ledger.add(KEYS[2], 1, 100)[1] == [KEYS[0]]
    assert ledger.expire(149.9) == []
    assert ledger.expire(200) == [KEYS[1], KEYS[2]]


def test_a_use_noted_here_outlives_a_reload() -> None:
    ledger = Ledger(ttl=100, max_bytes=1000)
    ledger.add(KEYS[0], 1, 0)
    ledger.use(KEYS[0], 70)
    ledger.replace([(KEYS[0], Entry(1, 0, 0)), (KEYS[1], Entry(1, 30, 30))])
    assert [(key, entry.used, entry.saved) for key, entry in ledger] == [(KEYS[1], 30, 30), (KEYS[0], 70, 0)]


@given(_operations)
def test_its_sums_are_those_of_its_entries(operations: list[tuple[str, tuple[str, bytes], int]]) -> None:
    ledger = Ledger(ttl=20, max_bytes=100)
    for now, (name, key, size) in enumerate(operations):
        match name:
            case "add":
                _, gone = ledger.add(key, size, now)
                assert key not in gone
            case "use":
                ledger.use(key, now)
            case "drop":
                ledger.drop(key)
            case "expire":
                assert all(not ledger.live(old, now) for old in ledger.expire(now))
            case _:
                ledger.replace([(key, Entry(size, now, now))])
        entries = dict(ledger)
        assert ledger.bytes == sum(entry.size for entry in entries.values()) <= 100
        assert len(ledger) == len(entries)
        for scope in "ab":
            held = [key[1] for key in entries if key[0] == scope and ledger.live(key, now)]
            assert (scope in ledger) == any(key[0] == scope for key in entries)
            assert (ledger.first(scope, held, now) is None) == (not held)

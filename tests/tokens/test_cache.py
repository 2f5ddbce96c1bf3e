"""Caches that share one bound, and shares of credentials."""

from proxy.tokens.cache import ENTRY_BYTES, Cache, CacheMemory, Shares, current_tenant

SIZE = 1000 - ENTRY_BYTES


def test_the_largest_drops_what_it_used_least_recently() -> None:
    memory, dropped = CacheMemory(5000), list[str]()
    large, small = Cache[int, str](memory, dropped=dropped.append), Cache[int, str](memory)
    small.put(0, "kept", SIZE)
    for number in range(4):
        large.put(number, f"value {number}", SIZE)
    assert large.get(0) == "value 0"
    for number in (4, 5, 0):
        large.put(number, f"value {number}", SIZE)
    assert dropped == ["value 1", "value 2"]
    assert (small.get(0), large.get(1), large.get(0)) == ("kept", None, "value 0")
    small.put(1, "new", 2 * SIZE + ENTRY_BYTES)
    assert (memory.size, large.size, dropped[2:]) == (5000, 2000, ["value 3", "value 4"])
    large.remove(5)
    assert (memory.size, large.get(5)) == (4000, None)
    large.put(9, "larger than all", 9000)
    assert (small.get(1), large.get(9), memory.size) == ("new", None, small.size)


def test_nobody_displaces_what_others_hold_within_an_equal_share() -> None:
    shares = Shares[str, str](4)
    for who, key in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")):
        current_tenant.set(who)
        assert shares.put(key, key) is None
    assert shares.get("a1") == "a1"
    current_tenant.set("c")
    assert [shares.put(f"c{n}", f"c{n}") for n in range(4)] == ["a2", "a3", "c0", "c1"]
    assert {*shares.values()} == {"a1", "b1", "c2", "c3"}
    assert (shares.pop("b1"), shares.pop("b1"), shares.put("c4", "c4")) == ("b1", None, None)

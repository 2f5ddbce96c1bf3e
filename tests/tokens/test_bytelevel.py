from __future__ import annotations

import pytest

from proxy.tokens.bytelevel import ranks_by_merges, ranks_by_order, spelt


def test_spelling() -> None:
    assert spelt("ĠtheĊ") == b" the\n"
    assert spelt("Ã©") == "é".encode()
    assert spelt("<▁x>") is None
    assert spelt("") == b""


def test_merges_follow_the_bytes() -> None:
    ranks = ranks_by_merges([("t", "h"), ("th", "e"), ("t", "he"), ("Ġ", "the")])
    assert (ranks[b"a"], ranks[b"th"], ranks[b"the"], ranks[b" the"]) == (97, 256, 257, 258)
    with pytest.raises(ValueError, match="byte-level"):
        ranks_by_merges([("▁", "a")])


def test_order_of_tokens() -> None:
    ranks = ranks_by_order(["b", "a", "<▁x>", "ab", "", "ab"])
    assert (ranks[b"b"], ranks[b"a"], ranks[b"ab"], len(ranks)) == (0, 1, 2, 257)

from __future__ import annotations

import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.lean import MAGIC, pack, unpack


@given(st.lists(st.binary(min_size=1, max_size=255), unique=True, max_size=40))
def test_tokens_survive_packing(tokens: list[bytes]) -> None:
    assert unpack(pack(tokens)) == {token: rank for rank, token in enumerate(tokens)}


def test_a_rank_may_be_free() -> None:
    assert unpack(pack([b"a", b"", b"b"])) == {b"a": 0, b"b": 2}


def test_the_first_ranks_can_be_had_alone() -> None:
    assert unpack(pack([b"a", b"", b"b", b"ab"]), 3) == {b"a": 0, b"b": 2}


@pytest.mark.parametrize(
    "data",
    [b"", b"GGUF", MAGIC, pack([b"ab", b"c"])[:-5], MAGIC + lzma.compress(b"\x00\x00\x00\x02\x01\x01a")],
)
def test_damaged_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        unpack(data)


def test_a_token_can_be_too_long() -> None:
    with pytest.raises(ValueError, match="range"):
        pack([b"a" * 256])

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.anchors import Anchor, Anchors, chain, digest_of, scope_digest
from proxy.tokens.ratios import EMPTY

SCOPE, SYSTEM, OTHER = b"s" * 16, b"a" * 16, b"b" * 16
DIGESTS = [bytes([n]) * 16 for n in range(5)]


def anchor(covered: int, tokens: int) -> Anchor:
    return Anchor(covered, tokens, EMPTY, requested=False)


def test_finds_the_longest_prefix() -> None:
    anchors = Anchors()
    anchors.put(SCOPE, SYSTEM, DIGESTS[0], anchor(1, 10))
    anchors.put(SCOPE, SYSTEM, DIGESTS[2], anchor(3, 30))
    assert anchors.longest(SCOPE, SYSTEM, DIGESTS) == anchor(3, 30)
    assert anchors.longest(SCOPE, SYSTEM, DIGESTS[:2]) == anchor(1, 10)
    assert anchors.longest(b"x" * 16, SYSTEM, DIGESTS) is None
    assert anchors.longest(SCOPE, SYSTEM, []) is None


def test_another_system_message_is_second_best() -> None:
    anchors = Anchors()
    anchors.put(SCOPE, SYSTEM, DIGESTS[0], anchor(1, 10))
    anchors.put(SCOPE, OTHER, DIGESTS[1], anchor(2, 20))
    assert anchors.longest(SCOPE, SYSTEM, DIGESTS) == anchor(1, 10)
    assert anchors.longest(SCOPE, b"c" * 16, DIGESTS) == anchor(2, 20)


def test_forgets_what_was_not_used() -> None:
    anchors = Anchors(limit=4)
    for index, digest in enumerate(DIGESTS[:2]):
        anchors.put(SCOPE, SYSTEM, digest, anchor(index + 1, 10))
    anchors.longest(SCOPE, SYSTEM, DIGESTS[:1])
    anchors.longest(SCOPE, OTHER, DIGESTS[:1])
    anchors.put(SCOPE, SYSTEM, DIGESTS[2], anchor(3, 10))
    assert len(anchors) == 4
    assert anchors.longest(SCOPE, SYSTEM, DIGESTS[:2]) == anchor(1, 10)


MESSAGES: list[Any] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "a", "name": "x"},
    {"role": "user", "content": None},
    {"role": "user", "content": "\ud800"},
    {"content": "a", "x": "user"},
    {"role": "user", "content": ["a"]},
    {"role": None, "content": "a"},
    "user",
    None,
]


def test_any_difference_makes_another_digest() -> None:
    digests = [*map(digest_of, MESSAGES)]
    assert len(set(digests)) == len(MESSAGES)
    assert chain(digests[:2])[0] == chain(digests[:1])[0] != chain(digests[1:2])[0]


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_parts_of_a_scope_do_not_run_together(left: list[bytes], right: list[bytes]) -> None:
    assert (scope_digest(*left) == scope_digest(*right)) == (left == right)

"""Where sentences end, in texts as people type them."""

from __future__ import annotations

import pytest

from proxy.core.history.constraints import constraints
from proxy.core.history.sentences import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Look at page 1. Never touch it.", ["Look at page 1.", "Never touch it."]),
        ("It was 12. That is all", ["It was 12.", "That is all"]),
        ("1. First item. 2. second", ["1. First item.", "2. second"]),
        ("We need: 1. apples 2. pears", ["We need: 1. apples 2. pears"]),
        ("Yes.\n 3. Item Two", ["Yes.", "3. Item Two"]),
        ("Am 3. Mai darfst du nicht. Gut.", ["Am 3. Mai darfst du nicht.", "Gut."]),
        ("Seit dem 2. Weltkrieg. Ja.", ["Seit dem 2. Weltkrieg.", "Ja."]),
        ("J. Smith came. Well.", ["J. Smith came.", "Well."]),
    ],
)
def test_a_number_ends_a_sentence_unless_it_counts_something(text: str, expected: list[str]) -> None:
    assert list(sentences(text, longest=300)) == expected


def test_a_rule_behind_a_number_is_one() -> None:
    told = [{"role": "user", "content": "Look at page 1. Never touch the folder legacy."}]
    assert constraints(told, limit=900) == ["Never touch the folder legacy."]

"""Where sentences end, in texts as people type them, and which names are in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history.sentences import identifiers, sentences


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
        ("Dr. Okafor and Mrs. Lee came. Try. Now.", ["Dr. Okafor and Mrs. Lee came.", "Try.", "Now."]),
        ("Use no pager (e.g. less). Well.", ["Use no pager (e.g. less).", "Well."]),
        ("Nimm z. B. Leim. Gut.", ["Nimm z. B. Leim.", "Gut."]),
        ("Step 10. key10 := v2. Then go.", ["Step 10. key10 := v2.", "Then go."]),
    ],
)
def test_a_number_ends_a_sentence_unless_it_counts_something(text: str, expected: list[str]) -> None:
    assert list(sentences(text, longest=300)) == expected


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("see https://example.org/a?b=c, please", ["https://example.org/a?b=c"]),
        ("in /etc/nginx/nginx.conf and ~/src/app", ["/etc/nginx/nginx.conf", "~/src/app"]),
        ("edit src/app/main.py now", ["src/app/main.py"]),
        ("README.md and Makefile", ["README.md"]),
        ("commit deadbeef1234 of v2-rc1", ["deadbeef1234", "v2-rc1"]),
        ("(see src/app/main.py)", ["src/app/main.py"]),
        ("/usr/lib/x.py", ["/usr/lib/x.py"]),
        ("it costs 1.234,50 at 12:30:45", ["1.234,50", "12:30:45"]),
        ("just words, nothing else", []),
    ],
)
def test_what_models_lose_is_found(text: str, names: list[str]) -> None:
    found = identifiers([text], limit=1000)
    assert found == names


def test_the_newest_are_kept_when_room_is_short() -> None:
    texts = [f"file{n}.py" for n in range(100)]
    assert identifiers(texts, limit=36) == ["file97.py", "file98.py", "file99.py"]
    assert identifiers(["a1b2c.py", "x1y2z.py", "a1b2c.py"], limit=100) == ["x1y2z.py", "a1b2c.py"]


def test_one_that_is_too_long_does_not_hide_the_others() -> None:
    assert identifiers(["short1.py", "https://example.org/" + "x" * 150], limit=60) == ["short1.py"]


@given(st.lists(st.text(st.sampled_from("ab1/._-:~, "), max_size=60)), st.integers(0, 80))
def test_they_are_distinct_and_fit(texts: list[str], limit: int) -> None:
    found = identifiers(texts, limit=limit)
    assert len(set(found)) == len(found)
    assert sum(len(name) + 2 for name in found) <= limit


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["a/", "a-", "/a", "./a", "1.", "a1", "a/a-", "../", "http://", "é/", "1:", "x" * 61 + "/"])
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * 200_000)[:200_000]
    identifiers([text, text + "!"], limit=1000)

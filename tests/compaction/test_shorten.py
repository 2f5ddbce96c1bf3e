"""A text within its bounds: beginning, end and what looks like an error stay, and marks say what is missing."""

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.shorten import Bounds, characters_cut, cut_middle, fit, shorten, water_level

NUMBERED = [f"line {n} of the file" for n in range(400)]


def shown(lines: list[str], most: int = 40) -> list[str]:
    return shorten("\n".join(lines), Bounds(most, 200, 10**6)).split("\n")


def test_beginning_and_end_stay_and_the_cut_says_its_size() -> None:
    done = shown(NUMBERED)
    assert len(done) <= 40
    assert (done[0], done[-1]) == (NUMBERED[0], NUMBERED[-1])
    (at,) = [n for n, line in enumerate(done) if line not in NUMBERED]
    left_out = NUMBERED[at : 400 - (len(done) - at - 1)]
    size = sum(len(line) + 1 for line in left_out)
    assert done[at] == f"[… {len(left_out)} lines, {size} characters left out here …]"


def test_a_cut_counts_what_an_earlier_one_left_out() -> None:
    twice = shown(shown(NUMBERED), 12)
    (mark,) = [line for line in twice if "left out here" in line]
    left = [line for line in twice if line != mark]
    missing = len("\n".join(NUMBERED)) - len("\n".join(left))
    assert mark.startswith(f"[… {400 - len(left)} lines, {missing} characters")
    text = " ".join(NUMBERED)
    again = cut_middle(cut_middle(text, 3000, edge="\n"), 900, edge="\n")
    mark = f"\n[… {characters_cut(again)} characters left out here …]\n"
    assert len(again) - len(mark) == pytest.approx(len(text) - characters_cut(again), abs=2)


def test_lines_that_look_like_errors_stay_with_what_is_around_them() -> None:
    lines = list(NUMBERED)
    lines[200] = "E   TypeError: expected a str"
    lines[300] = "warning: deprecated"
    done = shown(lines)
    assert lines[199:202] == done[done.index(lines[199]) :][:3]
    assert lines[300] in done
    assert len(done) <= 40
    assert sum("left out here" in line for line in done) == 3


def test_one_kind_of_error_does_not_drown_the_others() -> None:
    lines = [f"warning: unused variable x{n}" for n in range(1000)]
    lines[500] = "fatal: the disk is full"
    lines[600] = "panic: no space"
    assert {lines[500], lines[600]} <= set(shown(lines))


def test_long_lines_are_cut_in_their_middle() -> None:
    (line,) = shown(["a" * 5000 + "b" * 5000])
    assert 190 <= len(line) <= 200
    assert line.startswith("aaa")
    assert line.endswith("bbb")
    assert "characters left out here …]" in line


LINES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.sampled_from(["Error: no", "warning: careful", "x" * 900, "", "漢字" * 90, "characters left out here …]"]),
)


@given(st.lists(LINES, max_size=120).map("\n".join), st.integers(5, 60), st.integers(100, 300), st.integers(400, 2000))
def test_a_text_is_within_its_bounds_and_stays_as_it_is(text: str, lines: int, line: int, characters: int) -> None:
    bounds = Bounds(lines, line, characters)
    once = shorten(text, bounds)
    assert shorten(once, bounds) == once
    assert len(once) <= characters
    assert len(once.split("\n")) <= lines
    assert max(map(len, once.split("\n"))) <= line


@pytest.mark.parametrize("text", ["word " * 3000, "漢字かな" * 1500, "a" * 10_000 + "漢" * 5000, "short"])
def test_a_text_is_fitted_to_its_tokens_and_not_to_much_less(text: str) -> None:
    def tokens(text: str) -> float:
        return len(text.encode()) / 4

    done, used = fit(text, len(text), 1000, make=lambda left: cut_middle(text, left), count=tokens)
    assert min(tokens(text), 600) <= used == tokens(done) <= 1000
    assert (done[:20], done[-20:]) == (text[:20], text[-20:])


@given(st.lists(st.floats(0, 1e4), max_size=9), st.floats(0, 2e4))
def test_water_fills_up_to_one_level(sizes: list[float], room: float) -> None:
    level = water_level(sizes, room)
    filled = sum(min(size, level) for size in sizes)
    assert filled <= room * (1 + 1e-9)
    assert filled == pytest.approx(min(room, sum(sizes)))


@pytest.mark.parametrize("text", ["\n" * 400_000, "error\n" * 100_000, "x" * 2_000_000, "e1 fail\nok\n" * 60_000])
def test_huge_texts_take_linear_time(text: str) -> None:
    started = process_time()
    assert len(shorten(text, Bounds(200, 500, 1500))) <= 1500
    assert process_time() - started < 5

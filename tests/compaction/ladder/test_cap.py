from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.cap import cap_results, cap_unread
from proxy.compaction.ladder import Reduction
from proxy.compaction.middles import water_level
from proxy.core.request import Message
from tests.histories import assistant, call, cost, reduction_of, tool, user

LIMITS = {"lines": 40, "line_characters": 200, "output_characters": 1_500, "entries": 10, "result_tokens": 10_000}


def reduction(messages: list[Message], budget: float = 0.0, **limits: int) -> Reduction:
    plain = reduction_of(messages, budget)
    return replace(plain, tail=len(messages), limits=replace(plain.limits, **{**LIMITS, **limits}))  # type: ignore[arg-type] # a table of fields


def capped(text: str, name: str = "read_file", arguments: str = "{}", **limits: int) -> str:
    """A result after capping."""
    messages = [user("a"), assistant(None, tool_calls=[call(1, name, arguments)]), tool(1, text), assistant("b")]
    done = cap_results(reduction(messages, **limits))
    assert done.messages[0] is messages[0]
    result: str = done.messages[2]["content"]
    return result


def numbered(count: int) -> list[str]:
    return [f"line {n} of the file" for n in range(count)]


def test_beginning_and_end_stay_and_the_cut_says_its_size() -> None:
    lines = numbered(400)
    shown = capped("\n".join(lines)).split("\n")
    assert len(shown) <= 40
    assert shown[0] == lines[0]
    assert shown[-1] == lines[-1]
    (at,) = [n for n, line in enumerate(shown) if line not in lines]
    left_out = lines[at : len(lines) - (len(shown) - at - 1)]
    size = sum(len(line) + 1 for line in left_out)
    assert shown[at] == f"[… {len(left_out)} lines, {size} characters left out here …]"


def test_lines_that_look_like_errors_stay_with_what_is_around_them() -> None:
    lines = numbered(400)
    lines[200] = "E   TypeError: expected a str"
    lines[300] = "warning: deprecated"
    shown = capped("\n".join(lines)).split("\n")
    assert lines[199:202] == shown[shown.index(lines[199]) :][:3]
    assert lines[300] in shown
    assert len(shown) <= 40
    assert sum("left out here" in line for line in shown) == 3


def test_one_kind_of_error_does_not_drown_the_others() -> None:
    lines = [f"warning: unused variable x{n}" for n in range(1000)]
    lines[500] = "fatal: the disk is full"
    lines[600] = "panic: no space"
    shown = capped("\n".join(lines))
    assert "fatal: the disk is full" in shown
    assert "panic: no space" in shown


def test_long_lines_are_cut_in_their_middle() -> None:
    shown = capped("a" * 5000 + "b" * 5000)
    assert 190 <= len(shown) <= 200
    assert shown.startswith("aaa")
    assert shown.endswith("bbb")
    assert "characters left out …]" in shown


@pytest.mark.parametrize("name", ["bash", "run_command", "ShellExec", "execute_python"])
def test_the_output_of_commands_has_a_limit_of_its_own(name: str) -> None:
    text = "\n".join("x" * 190 for _ in range(30))
    assert len(capped(text, name)) <= 1500
    assert capped(text, "read_file") == text


@pytest.mark.parametrize(
    ("name", "arguments", "listing"),
    [
        ("list_dir", "{}", True),
        ("LS", "{}", True),
        ("listFiles", "{}", True),
        ("directory_tree", "{}", True),
        ("bash", '{"command":"ls -la /tmp"}', True),
        ("bash", '{"command":"find . -name x"}', True),
        ("bash", '{"command":"ls | wc -l"}', False),
        ("bash", '{"command":"lsof"}', False),
        ("search_directory", "{}", False),
        ("read_file", "{}", False),
    ],
)
def test_directories_show_so_many_entries(name: str, arguments: str, listing: bool) -> None:
    text = "\n".join(f"directory/file{n}.txt" for n in range(35))
    shown = capped(text, name, arguments).split("\n")
    assert len(shown) == (11 if listing else 35)


def test_a_result_larger_than_the_window_fills_what_is_left_of_it() -> None:
    text = "\n".join("some words in a row, " * 20 for _ in range(1500))
    messages = [user("a"), assistant(None, tool_calls=[call(1)]), tool(1, text)]
    before = replace(reduction_of(messages, 4096), enough=5000, unread=8192 * 0.4)
    done = cap_unread(before)
    assert before.total > 8192 * 10
    assert 5000 * 0.85 < done.total <= 5000


def test_a_result_of_one_line_fills_its_room_too() -> None:
    messages = [user("a"), assistant(None, tool_calls=[call(1)]), tool(1, "flags:\n" + "0110 " * 1000)]
    size = sum(cost(messages))
    done = cap_unread(replace(reduction_of(messages, 0), enough=size * 0.8, unread=0.0))
    assert 0.7 * size < done.total <= 0.8 * size


def test_what_the_model_has_not_read_is_shortened_last_and_no_more_than_it_must_be() -> None:
    large = "\n".join(numbered(400))
    messages = [
        user("a"),
        assistant(None, tool_calls=[call(1)]),
        tool(1, large),
        assistant(None, tool_calls=[call(2), call(3)]),
        tool(2, large),
        tool(3, "\n".join(numbered(40))),
    ]
    total, size = sum(cost(messages)), cost(messages)[4]
    for share in (0.7, 0.1):
        read = cap_results(reduction(messages, budget=total * share))
        same = [a is b for a, b in zip(messages, read.messages, strict=True)]
        assert same == [True, True, False, True, True, True]
    plain = reduction(messages, budget=total * 0.1)
    assert cap_unread(plain) is plain, "as long as nothing else is allowed"
    ample = replace(plain, unread=size * 2)
    assert cap_unread(ample) is ample, "as much of it as this is never cut"
    half = cap_unread(replace(plain, unread=size * 0.6))
    assert half.messages[5] is messages[5], "the largest first"
    assert 0.4 * size < half.costs[4] + half.costs[5] <= 0.6 * size
    assert half.messages[4]["content"].startswith("line 0 of the file\n")
    assert half.messages[4]["content"].endswith("\nline 399 of the file")
    assert cap_unread(half) is half
    roomy = cap_unread(replace(plain, unread=size * 0.2, enough=total - size * 0.3))
    assert 0.9 * (total - size * 0.3) < roomy.total <= total - size * 0.3


def test_results_are_capped_as_far_as_needed_the_oldest_first() -> None:
    large = "\n".join(numbered(400))
    steps = [m for n in (1, 2, 3) for m in (assistant(None, tool_calls=[call(n)]), tool(n, large))]
    messages = [user("a"), *steps, assistant("b")]
    total, size = sum(cost(messages)), cost(messages)[2]
    done = cap_results(reduction(messages, budget=total - size * 1.3))
    shares = [done.costs[index] / size for index in (2, 4, 6)]
    assert shares[0] < 0.2, "down to the limits"
    assert 0.3 < shares[1] < 0.6, "as far as needed"
    assert done.messages[6] is messages[6]
    assert total - size * 1.45 < done.total <= total - size * 1.3
    assert cap_results(done) is done


def test_a_cut_counts_what_an_earlier_one_left_out() -> None:
    text = "\n".join(numbered(400))
    once = capped(text, lines=40)
    twice = capped(once, lines=12)
    (mark,) = [line for line in twice.split("\n") if "left out here" in line]
    left = [line for line in twice.split("\n") if line != mark]
    assert mark.startswith(f"[… {400 - len(left)} lines, {len(text) - len(chr(10).join(left))} characters")


@given(st.lists(st.floats(0, 1e4), max_size=9), st.floats(0, 2e4))
def test_water_fills_up_to_one_level(sizes: list[float], room: float) -> None:
    level = water_level(sizes, room)
    filled = sum(min(size, level) for size in sizes)
    assert filled <= room * (1 + 1e-9)
    assert filled == pytest.approx(min(room, sum(sizes)))


def test_pinned_messages_and_the_newest_question_stay() -> None:
    embedded = "See <tool_result tool_name='x'>" + "\n".join(numbered(400)) + "</tool_result>"
    messages = [user(embedded), assistant("b"), user(embedded), assistant("c"), user(embedded)]
    done = cap_results(reduction(messages))
    assert [a is b for a, b in zip(messages, done.messages, strict=True)] == [True, True, False, True, True]
    content = done.messages[2]["content"]
    assert content.startswith("See <tool_result tool_name='x'>line 0 of the file\n")
    assert content.endswith("line 399 of the file</tool_result>")


def test_each_part_of_a_result_is_capped_and_the_rest_of_it_stays() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    part = {"type": "text", "text": "x" * 5000, "cache_control": {"type": "ephemeral"}}
    messages = [
        user("a"),
        assistant(None, tool_calls=[call(1)]),
        {**tool(1, ""), "content": [image, part, part]},
        assistant("b"),
    ]
    content: list[Any] = cap_results(reduction(messages)).messages[2]["content"]
    assert content[0] is image
    assert [{**p, "text": 0} for p in content[1:]] == [{**part, "text": 0}] * 2
    assert {len(p["text"]) for p in content[1:]} == {200}


lines_of_text = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
        st.sampled_from(["Error: no", "warning: careful", "x" * 900, "", "漢字" * 90, "left out here …]"]),
    ),
    max_size=120,
).map("\n".join)


@given(
    lines_of_text,
    st.sampled_from(["read", "bash", "ls"]),
    st.integers(0, 60),
    st.integers(0, 300),
    st.integers(0, 2000),
    st.integers(0, 400),
)
def test_what_was_capped_is_within_the_limits_and_stays_as_it_is(
    text: str, name: str, lines: int, line: int, output: int, tokens: int
) -> None:
    def again(text: str) -> str:
        return capped(text, name, lines=lines, line_characters=line, output_characters=output, result_tokens=tokens)

    once = again(text)
    assert again(once) == once
    if once != text:
        assert sum(cost([tool(1, once)])) < sum(cost([tool(1, text)]))
        assert len(once.split("\n")) <= max(5, lines)
        assert max(map(len, once.split("\n"))) <= max(100, line)
        assert len(once) <= max(400, output) or name != "bash"


@pytest.mark.parametrize("text", ["\n" * 400_000, "error\n" * 100_000, "x" * 2_000_000, "e1 fail\nok\n" * 60_000])
def test_huge_results_take_linear_time(text: str) -> None:
    started = process_time()
    assert len(capped(text, "bash")) <= 1500
    assert process_time() - started < 5

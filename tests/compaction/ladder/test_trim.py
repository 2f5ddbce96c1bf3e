from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ladder import OMITTED, drop_oldest
from proxy.compaction.middles import cut_middles
from proxy.core.request import Message
from tests.histories import assistant, call, cost, flaws, histories, reduction_of, tool, user


def chat(turns: int) -> list[Message]:
    return [m for n in range(turns) for m in (user(f"Question {n} " * 20), assistant(f"Answer {n} " * 20))]


@given(histories(), st.floats(0.01, 1.2))
def test_whole_turns_are_dropped_between_head_and_tail(messages: list[Message], share: float) -> None:
    reduction = reduction_of(messages, sum(cost(messages)) * share)
    done = drop_oldest(reduction)
    assert flaws(done.messages) == []
    assert done.costs == cost(done.messages)
    assert done.total <= reduction.total
    assert list(done.messages[: reduction.floor]) == messages[: reduction.floor]
    kept = [m for m in done.messages if m.get("content") != OMITTED]
    assert all(any(m is original for original in messages) for m in kept)
    if reduction.floor <= reduction.tail:
        assert list(done.messages[len(done.messages) - len(messages) + reduction.tail :]) == messages[reduction.tail :]
    assert done is reduction or done.total < reduction.total


def test_no_more_is_dropped_than_it_takes() -> None:
    messages = [*chat(6), user("And now?")]
    reduction = reduction_of(messages, 0)
    done = drop_oldest(replace(reduction, budget=reduction.total - 1))
    assert [m["content"][:10] for m in done.messages[:3]] == ["Question 0", OMITTED[:10], "Question 1"]


def test_nothing_to_drop_is_the_same_job() -> None:
    for messages in ([user("a")], [user("a"), assistant("b")], [user("a " * 900), user("b")]):
        reduction = reduction_of(messages, 0)
        assert drop_oldest(reduction).total <= reduction.total
    small = reduction_of([user("a"), assistant("b"), user("c")], 0)
    assert drop_oldest(small) is small, "the note would be longer than what it stands for"


@given(histories(), st.floats(0.01, 1.2))
def test_middles_are_cut_and_all_else_stays(messages: list[Message], share: float) -> None:
    reduction = reduction_of(messages, sum(cost(messages)) * share)
    done = cut_middles(reduction)
    assert flaws(done.messages) == []
    assert done.costs == pytest.approx(cost(done.messages))
    assert done.total <= reduction.total
    for before, after in zip(messages, done.messages, strict=True):
        assert before is after or {**before, "content": 0} == {**after, "content": 0}
    again = cut_middles(done)
    assert not done.fits or again.messages == done.messages


def test_the_largest_is_cut_first_and_the_pinned_ones_last() -> None:
    messages = [user("first " * 400), assistant("long " * 600), assistant("short " * 100), user("newest " * 700)]
    reduction = reduction_of(messages, 0)
    done = cut_middles(replace(reduction, budget=reduction.total - 300))
    assert [a is b for a, b in zip(done.messages, messages, strict=True)] == [True, False, True, True]
    all_of_it = cut_middles(replace(reduction, budget=10))
    assert all(len(m["content"]) < 600 for m in all_of_it.messages)


@pytest.mark.parametrize("text", ["word " * 3000, "漢字かな" * 1500, "{'a': 1}, " * 2000, "a" * 10_000 + "漢" * 5000])
def test_a_text_is_cut_to_what_is_needed_and_not_much_more(text: str) -> None:
    reduction = reduction_of([user("q"), assistant(text), user("n")], 1000)
    done = cut_middles(reduction)
    assert 600 < done.total <= 1000
    content = done.messages[1]["content"]
    assert content.startswith(text[:20])
    assert content.endswith(text[-20:])
    assert "left out here to fit the context window" in content


def test_texts_of_parts_are_cut_and_other_parts_stay() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [{"type": "text", "text": "a " * 3000, "x": 1}, image, "odd", {"type": "text", "text": "b " * 3000}]
    done = cut_middles(reduction_of([user("q"), {"role": "user", "content": parts}], 1000))
    content = done.messages[1]["content"]
    assert done.fits
    assert content[1] is image
    assert content[2] == "odd"
    assert content[0]["x"] == 1
    assert len(content[0]["text"]) < 3000 > len(content[3]["text"])


def test_what_has_no_text_is_left_alone() -> None:
    messages: list[Message] = [
        user("q"),
        assistant(None, tool_calls=[call(1, arguments="x" * 5000)]),
        tool(1, "y" * 300),
        {"role": "assistant", "content": {"odd": "z" * 5000}},
    ]
    done = cut_middles(reduction_of(messages, 100))
    assert list(done.messages) == messages

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ladder import Reduction, mask_results
from proxy.core.request import Message, text_of
from tests.histories import assistant, call, flaws, histories, reduction_of, tool, user


def steps(number: int, words: int = 300) -> list[Message]:
    return [m for n in range(number) for m in (assistant(None, tool_calls=[call(n)]), tool(n, f"line {n} " * words))]


def masked(reduction: Reduction) -> list[int]:
    done = mask_results(reduction)
    return [n for n, (a, b) in enumerate(zip(reduction.messages, done.messages, strict=True)) if a is not b]


OLD = [user("Do it"), *steps(5), assistant("Done."), user("And now?")]


@given(histories(), st.floats(0.01, 1), st.integers(0, 200), st.integers(0, 300))
def test_masking_keeps_every_message_in_its_place(
    messages: list[Message], share: float, gain: int, protect: int
) -> None:
    reduction = reduction_of(messages, sum(reduction_of(messages, 0).costs) * share, gain=gain, protect=protect)
    done = mask_results(reduction)
    assert flaws(done.messages) == []
    assert done.total <= reduction.total
    assert done is reduction or reduction.total - done.total >= gain
    for before, after in zip(messages, done.messages, strict=True):
        assert before is after or (before["role"] == "tool" and {**before, "content": 0} == {**after, "content": 0})
    again = mask_results(done)
    assert again.messages == done.messages or again.total < done.total


def test_the_oldest_go_first_and_only_as_many_as_it_takes() -> None:
    reduction = reduction_of(OLD, 0, protect=0)
    one = reduction.total - reduction.costs[2] / 2
    assert masked(replace(reduction, budget=one)) == [2]
    assert masked(replace(reduction, budget=0.0)) == [2, 4, 6, 8, 10]


def test_results_of_the_newest_turn_are_not_old() -> None:
    messages = [user("a"), assistant("b"), user("c"), *steps(3)]
    reduction = reduction_of(messages, 0, protect=0)
    assert masked(reduction) == []
    assert masked(replace(reduction, tail=len(messages))) == [4, 6]


def test_a_batch_that_gains_too_little_is_not_worth_the_cache() -> None:
    assert masked(reduction_of(OLD, 0, protect=0, gain=10**6)) == []


def test_short_results_stay() -> None:
    messages = [user("a"), *steps(3, words=2), assistant("b"), user("c")]
    assert masked(reduction_of(messages, 0, protect=0, gain=0)) == []


@pytest.mark.parametrize(
    "result",
    [
        {"role": "tool", "tool_call_id": "gone", "content": "x " * 900},
        {"role": "tool", "content": [{"type": "text", "text": "x " * 900}, {"type": "image_url"}]},
        {"role": "tool", "name": 5, "tool_call_id": None, "content": "x " * 900},
    ],
)
def test_every_form_of_result_is_masked(result: Message) -> None:
    messages = [user("a"), result, assistant("b", tool_calls=[None, 5, {"function": 7}]), user("c")]
    done = mask_results(reduction_of(messages, 0, protect=0))
    assert text_of(done.messages[1]).startswith("[Tool result left out")
    assert done.total < sum(reduction_of(messages, 0).costs) / 2
    assert {**done.messages[1], "content": 0} == {**result, "content": 0}

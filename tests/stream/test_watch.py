from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxy.stream.answer import Answer, Attempt
from proxy.stream.watch import Watch

WATCH = Watch(window=1000, pause_point=900, resumable=True)


def answer(prompt: int = 500, said: int = 400, text: str = "text", **fields: Any) -> Answer:
    made = Answer(prompt, len)
    made.add_text(text)
    made.attempt.completion_tokens = said
    for name, value in fields.items():
        setattr(made.attempt, name, value)
    return made


def test_the_pause_point_counts_prompt_and_answer() -> None:
    assert WATCH.pause_due(answer(500, 400))
    assert not WATCH.pause_due(answer(500, 399))
    assert not WATCH.pause_due(answer(500, 400, finish="stop"))


@pytest.mark.parametrize(
    "watch", [replace(WATCH, resumable=False), replace(WATCH, window=0, pause_point=0), replace(WATCH, vain_resumes=0)]
)
def test_who_is_not_paused(watch: Watch) -> None:
    assert not watch.pause_due(answer(500, 450))
    assert not watch.may_be_full(answer(500, 500))
    assert not watch.is_full(answer(500, 500))


def test_only_text_is_paused_in() -> None:
    assert not WATCH.pause_due(answer(500, 450, calling=True))
    assert not WATCH.may_resume(Answer(950, len))


def test_a_bound_that_comes_before_the_window_makes_a_pause_needless() -> None:
    assert not replace(WATCH, max_tokens=490).pause_due(answer(500, 400))
    assert replace(WATCH, max_tokens=500).pause_due(answer(500, 400))


def test_a_pause_waits_for_the_end_of_a_word_but_not_for_ever() -> None:
    assert not WATCH.overdue(answer(500, 400))
    assert WATCH.overdue(answer(500, 431))


def test_an_attempt_is_paused_before_a_bound_of_spillways_own() -> None:
    watch = replace(WATCH, max_tokens=400)
    assert watch.pause_due(answer(300, 180, bound=200))
    assert not watch.pause_due(answer(300, 150, bound=200))
    assert not replace(WATCH, max_tokens=190).pause_due(answer(300, 180, bound=200))


def test_a_window_that_is_full_is_told_from_a_bound() -> None:
    used = {"prompt_tokens": 500}
    assert WATCH.is_full(answer(500, 495, usage=used))
    assert not WATCH.is_full(answer(500, 480, usage=used))
    assert WATCH.is_full(answer(500, 450)), "without usage the count is taken for less"
    assert not replace(WATCH, max_tokens=495).is_full(answer(500, 495, usage=used))
    assert replace(WATCH, max_tokens=300).is_full(answer(500, 200, usage=used, bound=200))


def test_a_resume_has_to_gain_room() -> None:
    resumed = answer(500, 400)
    resumed.attempts += [Attempt(880, completion_tokens=40) for _ in range(3)]
    assert not WATCH.pause_due(resumed)
    resumed.attempt.completion_tokens = 70
    assert WATCH.pause_due(resumed)
    resumed.attempt.dropped = 30
    assert not WATCH.pause_due(resumed)
    resumed.attempts.pop()
    assert WATCH.pause_due(resumed), "only two were in vain"


def test_an_attempt_that_the_backend_cleared_was_not_in_vain() -> None:
    resumed = answer(500, 400)
    resumed.attempts += [Attempt(880, completion_tokens=40) for _ in range(4)]
    resumed.attempts[2].cleared = resumed.attempts[3].cleared = True
    assert WATCH.may_resume(resumed)


def test_so_many_good_resumes_as_it_takes_up_to_a_ceiling_or_the_bound_of_the_client() -> None:
    resumed = answer(500, 400)
    resumed.attempts += [Attempt(500, completion_tokens=400) for _ in range(8)]
    assert WATCH.may_resume(resumed)
    ceiling = replace(WATCH, ceiling=3000)
    assert not ceiling.may_resume(resumed)
    assert replace(ceiling, max_tokens=50_000).may_resume(resumed)


def test_an_answer_is_spent_when_it_fills_the_window_and_is_not_gone_on_with() -> None:
    spent = answer(500, 400)
    spent.attempts += [Attempt(960, completion_tokens=40) for _ in range(3)]
    assert WATCH.spent(spent)
    assert not replace(WATCH, vain_resumes=4).spent(spent)
    assert not replace(WATCH, max_tokens=520).spent(spent), "it ends by the client's bound"
    spent.attempt.calling = True
    assert not WATCH.spent(spent)
    assert not WATCH.spent(answer(500, 500)), "it was never gone on with"


def test_an_answer_without_a_word_near_the_window_is_a_refusal() -> None:
    assert WATCH.suspiciously_empty(Answer(900, len))
    assert not WATCH.suspiciously_empty(Answer(899, len))
    assert not WATCH.suspiciously_empty(answer(950, 1))
    assert not Watch().suspiciously_empty(Answer(900, len))


def test_tokens_left() -> None:
    assert WATCH.remaining_tokens(answer()) is None
    assert replace(WATCH, max_tokens=500).remaining_tokens(answer(500, 400)) == 100
    assert replace(WATCH, max_tokens=300).remaining_tokens(answer(500, 400)) == 0

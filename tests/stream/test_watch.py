from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def test_only_text_is_paused_in() -> None:
    assert not WATCH.pause_due(answer(500, 450, calling=True))
    assert not WATCH.may_resume(Answer(950, len))


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


def test_an_answer_is_spent_when_it_fills_the_window_and_is_not_gone_on_with() -> None:
    spent = answer(500, 400)
    spent.attempts += [Attempt(960, completion_tokens=40) for _ in range(3)]
    assert WATCH.spent(spent)
    assert not replace(WATCH, vain_resumes=4).spent(spent)
    assert not replace(WATCH, max_tokens=520).spent(spent), "it ends by the client's bound"
    spent.attempt.calling = True
    assert not WATCH.spent(spent)
    assert not WATCH.spent(answer(500, 500)), "it was never gone on with"

"""What the demo model says, and how it goes on after a cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction import summary as core_summary
from proxy.compaction.source import NOTHING
from proxy.compaction.verification import SummaryReply, checked
from proxy.core.history import marks
from proxy.demo import model
from proxy.demo.model import LOST, WINDOW, reply, tokens_of

COUNT = model.numbers_up_to(3000)


def say(*turns: str, last_role: str = "user") -> str:
    """Reply to a conversation whose turns alternate; `last_role` says whose the last one is."""
    roles = ["user", "assistant"] if (len(turns) % 2 == 1) == (last_role == "user") else ["assistant", "user"]
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return reply(messages, used=409, window=WINDOW)


def test_a_short_answer_says_that_it_is_a_demo_what_it_heard_and_how_full_the_window_is() -> None:
    answer = say("Good morning, is anybody there?")
    assert "demo" in answer
    assert "not a language model" in answer
    assert '"Good morning, is anybody there?"' in answer
    assert "409 of my 4,096 tokens" in answer
    assert "9% full" in answer


@pytest.mark.parametrize("asked", ["count to 3000", "Please count slowly from 1 to 3,000!"])
def test_counting_names_every_number_once(asked: str) -> None:
    body = say(asked).split("\n\n")[1]
    assert body == ", ".join(map(str, range(1, 3001))) + "."


def test_a_long_answer_is_longer_than_the_window_but_not_by_much() -> None:
    assert WINDOW < len(tokens_of(COUNT)) < 1.6 * WINDOW


@given(st.data())
def test_a_partial_answer_is_continued_at_the_very_next_character(data: st.DataObject) -> None:
    request, whole = "count to 3000", COUNT
    cut = data.draw(st.integers(0, len(whole)))
    assert whole[:cut] + say(request, whole[:cut], last_role="assistant") == whole


@given(st.data())
def test_the_end_of_a_partial_answer_is_enough(data: st.DataObject) -> None:
    request, whole = "count to 3000", COUNT
    cut = data.draw(st.integers(600, len(whole)))
    kept = whole[cut - 500 : cut]
    rest = say(request, f"[shortened] {kept}", last_role="assistant")
    assert whole[:cut] + rest == whole


def test_a_partial_answer_is_found_behind_a_summary() -> None:
    messages = [
        {"role": "user", "content": "count to 3000"},
        {"role": "assistant", "content": "[summary] the numbers up to 400"},
        {"role": "user", "content": marks.BRIDGE},
        {"role": "assistant", "content": COUNT[:5000]},
    ]
    assert reply(messages, used=10, window=WINDOW) == COUNT[5000:]


@pytest.mark.parametrize("asked", ["continue", "Please go on.", "Continue exactly where it says '…, 17'"])
def test_a_user_can_ask_to_go_on(asked: str) -> None:
    assert say("count to 3000", COUNT[:700], asked) == COUNT[700:]


def test_a_text_it_never_said_is_not_continued() -> None:
    assert say("hello", "I have never said this. " * 40, last_role="assistant") == LOST


def test_a_summary_is_made_of_what_was_shown() -> None:
    ask = core_summary.instruction(tokens=200)
    answer = say("The launch code is 4711.", "Noted.", "Count to 3000", COUNT, ask)
    assert "The launch code is 4711." in answer
    assert "3000" in answer
    assert checked(SummaryReply(answer), NOTHING, tokens=200).text
    assert len(tokens_of(answer)) < 200


def test_a_fenced_transcript_is_summarised() -> None:
    transcript = "\n".join(f"USER: remark number {number}" for number in range(50))
    message = core_summary.fenced(transcript, tokens=200)
    answer = reply([message], used=10, window=WINDOW)
    assert "remark number 49" in answer
    assert "Sections:" not in answer
    assert checked(SummaryReply(answer), NOTHING, tokens=200).text
    assert len(tokens_of(answer)) < 250

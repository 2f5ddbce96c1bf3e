"""What the models say."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import Brain, Question, Reply, echo, facts, qa, scripted, summariser, walk, words
from tests.fakes.talking import assistant, system, user


def says(brain: Brain, question: Question, items: int = 5) -> str:
    text = brain(question).text
    return text if isinstance(text, str) else "".join(itertools.islice(text, items))


@given(st.integers(1, 1200), st.integers(0, 6000))
def test_walk_completes_any_cut_without_losing_or_doubling(last: int, at: int) -> None:
    whole = words(1, last)
    prefix = whole[:at]
    rest = says(walk(last=last), Question(messages=[user("go")], prefix=prefix), items=last + 1)
    assert prefix + rest == whole


@pytest.mark.parametrize(
    ("history", "text"),
    [
        ([user("go")], "w1 w2"),
        ([user("go"), assistant("w1 w2 w3"), user("on")], "w4 w5"),
        ([user("go"), assistant("w1 w2 w3"), user("you ended with: w2 w3")], "w4 w5"),
        ([system("the last word was w41"), user("on")], "w42 w43"),
    ],
)
def test_walk_goes_on_after_the_last_word_it_is_shown(history: list[dict[str, str]], text: str) -> None:
    assert says(walk(), Question(messages=history), items=2) == text


def test_walk_repeats_a_word_that_was_cut_when_it_starts_a_new_turn() -> None:
    history = [user("go"), assistant("w98 w99 w10"), user("on")]
    assert says(walk(), Question(messages=history), items=1) == "w100"


def test_walk_may_overlap_or_restart() -> None:
    history = [user("go"), assistant("w1 w2 w3 w4"), user("on")]
    assert says(walk(overlap=2), Question(messages=history), items=2) == "w3 w4"
    assert says(walk(restart=True), Question(messages=history), items=2) == "w1 w2"
    assert says(walk(overlap=2), Question(messages=[user("go")], prefix="w1 w2 "), items=2) == "w3 w4"


def test_echo_and_its_prefix() -> None:
    assert says(echo, Question(messages=[user("one"), user("two three")])) == "two three"
    assert says(echo, Question(messages=[user("two three")], prefix="two ")) == "three"


def test_scripted_says_its_lines_and_then_fails() -> None:
    brain = scripted(["one", Reply(text="two", finish="length")])
    question = Question(messages=[user("go")])
    assert [brain(question).text, brain(question).finish, brain(question).error] == [
        "one",
        "length",
        "the script has ended",
    ]


TOLD = [user("remember: the code of anchor is X-17"), assistant("Noted.")]


@pytest.mark.parametrize(
    ("history", "answer"),
    [
        (TOLD, "The code of anchor is X-17."),
        ([*TOLD, user("remember: the code of Anchor is now Y-2")], "The code of anchor is Y-2."),
        ([system("Summary\n- the code of anchor is Z9\n")], "The code of anchor is Z9."),
        ([], "I do not know the code for anchor."),
    ],
)
def test_qa_knows_what_it_is_shown(history: list[dict[str, str]], answer: str) -> None:
    question = Question(messages=[*history, user("what is the code of anchor?")])
    assert qa()(question).text == answer
    assert qa(filler=2)(question).text == answer + " word0 word1"


def test_an_answer_that_knows_nothing_is_no_fact() -> None:
    answer = qa()(Question(messages=[user("what is the code of anchor?")])).text
    assert facts([assistant(str(answer))]) == {}


def test_summariser_hands_on_the_facts() -> None:
    brain = summariser(qa())
    asked = Question(messages=[*TOLD, user("Summarise the conversation so far.")])
    summary = str(brain(asked).text)
    assert "## Files and identifiers\n- the code of anchor is X-17" in summary
    later = [system(summary), user("what is the code of anchor?")]
    assert brain(Question(messages=later)).text == "The code of anchor is X-17."


def test_what_counts_as_asking_for_a_summary_can_be_changed() -> None:
    brain = summariser(echo, lambda question: question.last_user == "shorten", extra="and so on")
    assert "and so on" in str(brain(Question(messages=[user("shorten")])).text)
    assert brain(Question(messages=[user("summarise")])).text == "summarise"

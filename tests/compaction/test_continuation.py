from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.profile import Continuation
from proxy.compaction.asking import Summariser, SummaryAsk
from proxy.compaction.continuation import Partial, SummarisedStart, continuation, shorten_partial
from proxy.core.history import marks
from tests.compaction.driver import driven
from tests.histories import assistant, cost, user

HISTORY = [user("Tell me a long story")]
TEXT = "Once there was {a} «fox», and it ran.\n" * 40
BY = Summariser(window=4000, tokens=100, overhead=0.0, same_model=True)
SAYS = "A fox ran through the wood, and it ran on and on."


def run(
    text: str, said: SummarisedStart, room: float, replies: Iterable[str] = (), by: Summariser = BY
) -> tuple[str, list[SummaryAsk]]:
    answers = iter(replies)
    return driven(shorten_partial(text, said, room=room, by=by, cost=cost), lambda _: next(answers, SAYS))


# -- asking


def test_a_backend_that_knows_flags_gets_them() -> None:
    made = continuation(HISTORY, Partial(TEXT), Continuation.FLAGS)
    assert made.messages == [*HISTORY, assistant(TEXT)]
    assert made.fields == {"continue_final_message": True, "add_generation_prompt": False}
    assert (made.echo, made.quote, made.exact) == ("", "", True)


def test_a_trailing_message_may_be_repeated_whole() -> None:
    made = continuation(HISTORY, Partial(TEXT), Continuation.TRAILING)
    assert made.messages == [*HISTORY, assistant(TEXT)]
    assert (made.fields, made.echo, made.exact) == ({}, TEXT, False)
    assert TEXT.endswith(made.quote), "or its end, where a new turn is begun"


def test_a_user_turn_quotes_the_end() -> None:
    made = continuation(HISTORY, Partial(TEXT), Continuation.QUOTE)
    assert made.messages[:-1] == [*HISTORY, assistant(TEXT)]
    assert made.messages[-1]["role"] == "user"
    assert made.quote in made.messages[-1]["content"]
    assert TEXT.endswith(made.quote)
    assert (made.fields, made.echo) == ({}, "")


@given(st.text(min_size=1, max_size=500), st.sampled_from(Continuation))
def test_any_text_can_be_asked_for(partial: str, how: Continuation) -> None:
    made = continuation(HISTORY, Partial(partial), how)
    assert made.messages[1]["content"] == partial
    assert made.messages[0] is HISTORY[0]


def test_an_answer_that_said_nothing_is_asked_for_from_the_top() -> None:
    made = continuation(HISTORY, Partial(), Continuation.QUOTE)
    assert (made.messages, made.echo, made.quote, made.exact) == (HISTORY, "", "", True)


def test_an_answer_that_the_client_began_goes_on_with_its_beginning() -> None:
    begun = [*HISTORY, assistant("Once upon ")]
    made = continuation(begun, Partial("a time"), Continuation.TRAILING)
    assert made.messages == [*HISTORY, assistant("Once upon a time")]
    assert continuation(begun, Partial(), Continuation.TRAILING).messages == begun


def test_a_thought_goes_on_where_the_backend_can_and_else_comes_back_as_notes() -> None:
    thinking = Partial(thought="<think>First the fox, ")
    flagged = continuation(HISTORY, thinking, Continuation.FLAGS, thoughts=True)
    assert flagged.messages[-1] == {
        "role": "assistant", "content": "", "reasoning_content": "<think>First the fox, ",
    }  # fmt: skip
    assert flagged.exact
    for how in Continuation:
        made = continuation(HISTORY, thinking, how)
        notes, ask = made.messages[-2:]
        assert (notes["role"], ask["role"]) == ("assistant", "user")
        assert "First the fox," in notes["content"]
        assert "<think>" not in notes["content"]
        assert "First the fox, ".endswith(made.quote[-5:])


def test_a_thought_inside_of_the_text_is_not_quoted_as_an_answer() -> None:
    thinking = Partial("<think>First the fox")
    assert thinking.in_thought
    assert len(continuation(HISTORY, thinking, Continuation.QUOTE).messages) == 3
    assert continuation(HISTORY, thinking, Continuation.TRAILING).messages[-1]["content"] == thinking.text
    assert not Partial("<think>Done.</think>It ran").in_thought


@pytest.mark.timeout(60)
def test_a_thought_of_white_space_is_asked_for_in_a_moment() -> None:
    made = continuation(HISTORY, Partial(thought="Hm." + " " * 400_000 + "So."), Continuation.QUOTE)
    notes = made.messages[-2]["content"]
    assert notes.startswith("[My thoughts so far, cut off at the end:]\nHm.  ")
    assert notes.endswith("So.")


# -- shortening


def test_a_short_answer_stays_whole() -> None:
    assert run(TEXT, SummarisedStart(), 10_000) == (TEXT, [])


def test_a_long_one_keeps_its_end_and_tells_its_beginning() -> None:
    said = SummarisedStart()
    short, asked = run(TEXT, said, 200)
    assert short.startswith(f"[The beginning of this answer, shortened:]\n{SAYS}\n")
    tail = short.split("[It goes on:]\n\n")[1]
    assert TEXT.endswith(tail)
    assert len(tail) >= 300
    assert TEXT[said.upto :] == tail
    assert len(asked) == 1
    assert not asked[0].append


def test_only_what_is_new_is_read_again() -> None:
    said = SummarisedStart()
    run(TEXT, said, 200)
    upto = said.upto
    longer = TEXT + "Then a hound came along the way.\n" * 30
    _, asked = run(longer, said, 200)
    content = asked[0].messages[0]["content"]
    assert f"Summary of what came before:\n{SAYS}" in content
    assert longer[upto : said.upto] in content
    assert TEXT[:100] not in content.split(marks.FENCE)[1][:50]


def test_a_failed_summary_is_told_by_its_beginning_and_never_forgets() -> None:
    said = SummarisedStart()
    short, _ = run(TEXT, said, 200, ["no"])
    assert TEXT[:100] in short
    run(TEXT * 2, said, 200, [SAYS])
    assert said.summary == SAYS
    run(TEXT * 3, said, 200, [""])
    assert said.summary == f"{SAYS} […]"
    run(TEXT * 4, said, 200, [""])
    assert said.summary == f"{SAYS} […]"


def test_a_beginning_larger_than_the_summarisers_window_loses_its_middle() -> None:
    small = Summariser(window=600, tokens=100, overhead=0.0, same_model=True)
    _, asked = run(TEXT * 10, SummarisedStart(), 300, by=small)
    assert sum(cost(asked[0].messages)) < 600
    assert "characters left out here" in asked[0].messages[0]["content"]


@given(st.text(max_size=600), st.integers(1, 400), st.sampled_from(["", SAYS]))
def test_the_end_is_always_the_texts_own(text: str, room: int, reply: str) -> None:
    said = SummarisedStart()
    short, asked = run(text, said, room, [reply])
    assert len(asked) <= 1
    tail = short.split("[It goes on:]\n\n", 1)[-1] if asked else short
    assert text.endswith(tail)
    assert len(tail) >= min(len(text), 100)


@pytest.mark.parametrize("text", ["漢字" * 60, "x" * 110, " " * 400])
def test_a_text_without_words_is_cut_where_it_must_be(text: str) -> None:
    short, _ = run(text, SummarisedStart(), 20)
    assert text.endswith(short.split("[It goes on:]\n\n", 1)[-1])

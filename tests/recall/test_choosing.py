from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.recall.choosing import Passage, choose, within
from proxy.recall.passages import passages_of, spoken_text
from proxy.recall.query import query_of
from proxy.recall.ranking import rank

THINGS = [
    "garden",
    "kitchen",
    "train",
    "office",
    "holiday",
    "bicycle",
    "window",
    "winter",
    "doctor",
    "violin",
    "river",
    "pancake",
    "museum",
]
FACT = {"role": "user", "content": "My sister Mathilda keeps two hedgehogs in Leipzig."}


def talk(count: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "role": ("user", "assistant")[n % 2],
            "content": f"turn {n} is about the {THINGS[n % 13]} and the {THINGS[n * 7 % 13]}",
        }
        for n in range(count)
    ]


def recalled(
    messages: list[dict[str, Any]], question: str, *, lost: int, room: float = 400.0, prompt: str = ""
) -> list[Passage]:
    said = [passages_of(message) for message in messages]
    ranking = rank(said, query_of([{"role": "user", "content": question}], 0))
    return choose(
        messages,
        said,
        ranking,
        lost=lambda index: index < lost,
        room=room,
        cost=lambda text: len(text) / 4,
        in_prompt=prompt.__contains__,
    )


def test_what_is_asked_for_comes_back() -> None:
    messages = [*talk(20), FACT, *talk(20)]
    found = recalled(messages, "Which animals does my sister Mathilda keep?", lost=30)
    assert found[0].text == FACT["content"]


def test_what_is_still_in_the_prompt_is_not_recalled() -> None:
    messages = [*talk(20), FACT, *talk(20)]
    question = "Which animals does my sister Mathilda keep?"
    assert recalled(messages, question, lost=20) == []
    kept = recalled(messages, question, lost=30, prompt=f"a summary: {FACT['content']}")
    assert FACT["content"] not in [passage.text for passage in kept]


def test_a_turn_about_nothing_in_particular_gets_nothing() -> None:
    messages = talk(60)
    for text in ("Thanks, that is all for now.", "Tell me a joke!", "How do volcanoes erupt?", "ok", ""):
        assert recalled(messages, text, lost=50) == [], text


def test_who_tells_something_gets_less_easily_something_back_than_who_asks() -> None:
    messages = [*talk(60), FACT, *talk(60)]
    assert recalled(messages, "Did the hedgehogs of my sister like the garden?", lost=100)
    assert recalled(messages, "The hedgehogs like the garden and the office.", lost=100) == []


def test_where_everything_is_in_the_prompt_there_is_nothing_to_recall() -> None:
    assert recalled([*talk(20), FACT], "Which animals does Mathilda keep?", lost=0) == []


def test_a_text_is_recalled_once() -> None:
    messages = [*talk(20), FACT, *talk(6), FACT, *talk(20)]
    found = recalled(messages, "Which animals does my sister Mathilda keep?", lost=40)
    assert [passage.text for passage in found].count(FACT["content"]) == 1


@given(st.floats(0, 300), st.integers(0, 60), st.sampled_from(["Who is Mathilda?", "garden?", "turn 7?"]))
def test_the_room_is_kept_and_the_texts_are_those_of_the_messages(room: float, lost: int, question: str) -> None:
    messages = [*talk(20), FACT, *talk(40)]
    found = recalled(messages, question, lost=lost, room=room)
    assert sum(passage.tokens for passage in found) <= room
    assert all(passage.index < lost for passage in found)
    assert all(spoken_text(messages[p.index])[p.start : p.end] == p.text for p in found)
    assert len({passage.text for passage in found}) == len(found)


@given(st.lists(st.floats(1, 50), max_size=12), st.floats(-10, 200))
def test_the_best_that_fit_are_taken_first(tokens: list[float], room: float) -> None:
    passages = [Passage(n, 0, 1, "x", None, each) for n, each in enumerate(tokens)]
    kept = within(passages, room)
    assert sum(passage.tokens for passage in kept) <= max(room, 0)
    assert not kept or kept == sorted(kept, key=lambda passage: passage.index)
    assert within(kept, room) == kept
    if tokens and tokens[0] <= room:
        assert kept[0] is passages[0]

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.recall.passages import passages_of, spoken_text
from proxy.recall.ranking import _AFTER, _AROUND, _BEFORE, _REACH, Passage, _with_context, choose, query_of, rank, within

FACTS = Path(__file__).parent / "facts.txt"
THINGS = [
    *("garden", "kitchen", "train", "office", "holiday", "bicycle", "window"),
    *("winter", "doctor", "violin", "river", "pancake", "museum"),
]
FACT = {"role": "user", "content": "My sister Mathilda keeps two hedgehogs in Leipzig."}
FILLER = [
    {"role": role, "content": f"{role} talks of the {thing} and the weather"}
    for thing in ("garden", "kitchen", "train", "office", "holiday", "bicycle", "window", "winter")
    for role in ("user", "assistant")
]


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


def test_a_question_weighs_more_than_what_is_said_beside_it() -> None:
    query = query_of(said("I was in Lisbon with Joana. Which hotel in Porto was cheap?"), 0)
    assert query.terms["hotel"] > query.terms["lisbon"] > 0


def test_much_text_around_a_question_does_not_drown_it() -> None:
    words = " ".join(f"word{n}" for n in range(40))
    query = query_of(said(f"{words}. What is the code of item3?"), 0)
    beside = sum(weight for term, weight in query.terms.items() if term.startswith("word"))
    assert beside <= 2 * sum(weight for term, weight in query.terms.items() if not term.startswith("word"))
    assert query.terms["item3"] == 1.0


def test_results_in_a_users_message_are_not_the_users_words() -> None:
    text = "<tool_result tool_name='x'>secret paperwork</tool_result> What now, Sherlock?"
    assert "paperwork" not in query_of(said(text), 0).terms


def test_a_long_paste_is_bounded() -> None:
    pasted = said(" ".join(f"w{n}x" for n in range(5000)))
    assert rank([passages_of(pasted[0])], query_of(pasted, 0)).words[0].bit_length() == 48


def best(messages: list[dict[str, Any]], question: str) -> int:
    ranking = rank([passages_of(m) for m in messages], query_of([{"role": "user", "content": question}], 0))
    at = max(range(len(ranking.scores)), key=lambda at: ranking.scores[at])
    return ranking.places[at][0]


def test_an_answer_without_the_words_of_the_question_is_found_by_the_question_before_it() -> None:
    asked = [
        {"role": "assistant", "content": "Which instrument did you learn as a child?"},
        {"role": "user", "content": "The cello."},
    ]
    messages = [*FILLER, *asked, *FILLER]
    ranking = rank(
        [passages_of(m) for m in messages],
        query_of([{"role": "user", "content": "Do you know what instrument I learned as a child?"}], 0),
    )
    order = sorted(range(len(messages)), key=lambda at: -ranking.scores[at])
    assert order[:2] == [len(FILLER), len(FILLER) + 1]


def test_a_day_that_is_named_finds_what_was_said_on_it() -> None:
    days = [{**m, "day": f"2024-03-{1 + n // 4:02}"} for n, m in enumerate(FILLER)]
    assert best(days, "What did we talk about on March 3rd?") in range(8, 12)


def test_a_message_without_a_day_is_of_the_day_of_those_before_it() -> None:
    messages = [{"role": "user", "content": "[2024-03-01] hello"}, *FILLER[:4]]
    ranking = rank([passages_of(m) for m in messages], query_of(messages, 0))
    assert [day.isoformat() for day in ranking.days if day] == ["2024-03-01"] * 5


@given(st.lists(st.floats(0, 100), max_size=30))
def test_what_stands_around_a_passage_counts_at_every_place(own: list[float]) -> None:
    last = len(own)
    for at, score in enumerate(_with_context(own)):
        around = own[max(0, at - _REACH) : at + _REACH + 1]
        before, after = own[at - 1] if at else 0.0, own[at + 1] if at + 1 < last else 0.0
        wanted = own[at] + _BEFORE * before + _AFTER * after + _AROUND * sum(around) / (2 * _REACH + 1)
        assert score == pytest.approx(wanted, abs=1e-6)


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
        messages, said, ranking, lost=lambda index: index < lost, room=room, cost=lambda text: len(text) / 4,
        in_prompt=prompt.__contains__,
    )  # fmt: skip


def test_what_is_asked_for_comes_back() -> None:
    messages = [*talk(20), FACT, *talk(20)]
    found = recalled(messages, "Which animals does my sister Mathilda keep?", lost=30)
    assert found[0].text == FACT["content"]


def planted() -> Iterator[Any]:
    """Facts of a language with their questions, and a chat in it in which all of them are said."""
    lines = [line for line in FACTS.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    for *facts, others in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        said = others.removeprefix("- ").split("|")
        chat = [{"role": ("user", "assistant")[n % 2], "content": f"{said[n * 3 % 5]} {said[n % 4]}"} for n in range(60)]
        told = [fact.partition(": ")[2].split(" | ") for fact in facts]
        chat[20:20] = [{"role": "user", "content": fact} for fact, _ in told]
        for number, (fact, question) in enumerate(told):
            yield pytest.param(chat, fact, question, id=f"{facts[0].partition(':')[0]}-{number}")


@pytest.mark.parametrize(("messages", "fact", "question"), [*planted()])
def test_the_same_facts_come_back_in_ten_languages(messages: list[dict[str, Any]], fact: str, question: str) -> None:
    assert recalled(messages, question, lost=40)[0].text == fact


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
    beside = " ".join(f"w{n}x" for n in range(30))
    assert recalled(messages, f"The hedgehogs like the garden and the office. {beside}", lost=100) == []


@pytest.mark.parametrize(
    "text",
    [
        *("Where did Tom buy the boat?", "where did Tom buy the boat", "remind me where Tom's boat is from"),
        *("have you got Tom's boat", "did we talk about Tom's boat", "hast du was zu Tom, boat", "as-tu Tom, boat"),
        *("汤姆在哪里买了船\uff1f", "汤姆在哪里买了船", "¿Dónde compró Tom el barco?", "dónde compró Tom el barco"),
    ],
)
def test_a_plain_question_needs_no_more_words_than_the_prompt_has(text: str) -> None:
    """Whoever talks of a boat now, and asks of Tom's, has all of its words in the prompt, or as many."""
    told = {"role": "user", "content": "Tom bought the boat in Kiel. 汤姆在基尔买了船。 Tom compró el barco en Kiel."}
    now = {"role": "user", "content": "Tom paints the boat. 汤姆买了船。 Tom compró el barco."}
    assert told["content"] in [each.text for each in recalled([*talk(60), told, *talk(40), now], text, lost=100)]


def test_what_a_program_puts_around_each_task_is_no_part_of_it() -> None:
    """Else every task of an agent gets steps of other tasks, which share words with its instructions."""
    rules = "Solve it by yourself. Run one command at a time. Edit files with care. Submit the flag when it is found."
    tasks = [
        f"The {kind} problem {name} is worth 10 points. {rules}"
        for kind, name in (("crypto", "eps"), ("web", "id"), ("forensic", "flash"))
    ]
    messages = said(*(text for task in tasks for text in (task, "I run the command and submit the flag.")))
    assert query_of(messages, 0).terms.keys() > {"command", "flag"}
    assert query_of(messages, 4).terms.keys() == {"forens", "flash"}
    assert query_of([*messages, messages[4]], 6) == query_of(messages[4:], 0), "a task that is sent once more"


def test_what_was_said_before_a_question_is_no_part_of_it() -> None:
    messages = [*said("We were at the river.", "Nice.", "The violin is in the office.")]
    asks = {"role": "user", "content": "Where did Tom buy the boat?"}
    pastes = {"role": "user", "content": "It floats on the river."}
    assert query_of([*messages, asks], 3) == query_of([asks], 0)
    assert query_of([*messages, asks, pastes], 4).terms.keys() == {"tom", "buy", "boat", "float", "river"}


@pytest.mark.parametrize("text", ["Tell me which animals Mathilda keeps", "Mathilda's hedgehogs", "ASK hedgehogs"])
def test_a_request_needs_no_question_mark(text: str) -> None:
    assert recalled([*talk(60), FACT, *talk(60)], text, lost=100)[0].text == FACT["content"]


def test_a_piece_of_a_long_answer_gives_way_to_a_message() -> None:
    advice = {"role": "assistant", "content": "\n".join(f"Mind hedgehogs, sister and Leipzig {n}." * 9 for n in range(9))}
    found = recalled([*talk(60), advice, FACT, *talk(60)], "Which animals does my sister keep in Leipzig?", lost=100)
    assert found[0].text == FACT["content"]


def test_a_piece_of_a_long_answer_that_has_all_of_a_question_comes_first() -> None:
    lines = [f"Mind the garden and the {thing}, and plan a day for it. " * 5 for thing in THINGS]
    lines[6] += "For Mathilda I suggest the Brehm cage."
    advice = {"role": "assistant", "content": "\n".join(lines)}
    found = recalled([*talk(60), advice, *talk(20), FACT, *talk(60)], "Which cage was suggested for Mathilda?", lost=100)
    assert "Brehm" in found[0].text


def test_a_value_that_was_replaced_stays_out_where_the_new_one_is_in_the_prompt() -> None:
    old, new = ({"role": "user", "content": f"key-2 := v{n}"} for n in (849901, 887345))
    filler = [*talk(60), old, *talk(40)]
    for lost, extract in ((100, ""), (102, new["content"])):
        found = recalled([*filler, new, *talk(2)], "ASK key-2", lost=lost, prompt=extract)
        assert old["content"] not in [passage.text for passage in found]
    assert recalled([*filler, *talk(2)], "ASK key-2", lost=100)[0].text == old["content"]


def test_the_value_that_holds_stands_last_though_it_is_in_the_prompt() -> None:
    """Where the turn says more than its question, a passage with words of that is recalled."""
    walk = "The weather was nice, and we went for a walk by the river."
    old, new = ({"role": "user", "content": f"The code of item2 is {text}"} for text in (f"red2. {walk}", "blue13 now."))
    found = recalled([*talk(60), old, *talk(40), new, *talk(2)], f"What is the code of item2? {walk}", lost=100)
    assert [(each.text, each.later) for each in found[:2]] == [(new["content"], True), (old["content"], False)]


@pytest.mark.parametrize("room", [30.0, 400.0])
def test_what_was_replaced_never_comes_alone(room: float) -> None:
    old, new = "key-2 := v849901", "From today on, and for all of us in the new office, key-2 := v887345"
    found = recalled(stated_one_after_another(old, new), "ASK key-2", lost=120, room=room)
    assert (found[0].text, found[0].later) == (new, True)
    assert [passage.text for passage in found if not passage.later][:1] in ([], [old])


@pytest.mark.parametrize(("room", "comes"), [(30.0, False), (400.0, True)])
def test_what_shares_only_a_rare_word_with_an_answer_comes_beside_it(room: float, comes: bool) -> None:
    """It may tell what holds by now, or nothing: it takes the answer's room from nobody."""
    fact, linked = "We feed her kibble with chicken.", "Chicken made her ill, so salmon it is."
    found = recalled(stated_one_after_another(fact, linked), "What do we feed the dog?", lost=120, room=room)
    assert (found[0].text, found[0].later) == (fact, False)
    assert [each.later for each in found if each.text == linked] == [True] * comes


def test_of_a_long_passage_the_sentence_that_answers_comes_where_there_is_no_more_room() -> None:
    beside = "The weather was nice all day, and we went for a long walk by the river."
    told = {"role": "user", "content": f"{beside} {FACT['content']} {beside}"}
    found = recalled([*talk(40), told, *talk(60)], "Which animals does my sister Mathilda keep?", lost=60, room=40.0)
    assert found[0].text == FACT["content"]


@pytest.mark.parametrize(
    ("question", "statements"),
    [
        ("On what day do we leave?", "We leave on 12 May.|We only leave on 19 May.|Departure is 21 May!"),
        ("What is the deposit?", "The deposit for that hall is 300.|The hall smells of paint.|They want 350 for the hall!"),
        ("What is the deposit?", "The deposit for that hall is 300.|They want 350 for the hall!|The hall smells of paint."),
    ],
)
def test_a_value_comes_with_a_later_one_of_its_kind(question: str, statements: str) -> None:
    found = recalled(stated_one_after_another(*statements.split("|")), question, lost=200)
    assert [each.text[-1] for each in found if each.later][-1:] == ["!"]


@pytest.mark.parametrize(
    "said_then",
    [
        "The deposit for the hall is 400 euros.|Back to the deposit for the hall.|400 is too little, make it 900.|How much is the deposit for the hall?",
        "Set the timeout of the uploader to 30 s.|timeout of the uploader again|→ 75|What is the timeout of the uploader?",
        "The table of discounts: member 15.|The discount for a member, once more.|member \u2502 22|What discount does a member get?",
        "Die Trauung ist in der Kirche St. Anna.|Wegen der Trauung in der Kirche.|Nein, warte: St. Josef!|In welcher Kirche ist die Trauung?",
        "修水管的师傅周一来。|修水管的师傅打电话了。|改周三|修水管的师傅哪天来",
    ],
)
@pytest.mark.parametrize("between", [0, 2])
def test_a_new_value_in_few_words_comes_with_the_old_one(said_then: str, between: int) -> None:
    old, opened, new, question = said_then.split("|")
    chat = [*talk(40), *said(old, "Noted."), *talk(40), *said(opened, "Yes?"), *talk(between), *said(new, "Fine.")]
    found = recalled([*chat, *talk(60)], question, lost=len(chat) + 30)
    assert {old, new} <= {each.text for each in found}


def stated_one_after_another(*statements: str) -> list[dict[str, Any]]:
    stated = ([{"role": "user", "content": each}, *talk(60)] for each in statements)
    return [*talk(40), *chain.from_iterable(stated)]


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


@pytest.mark.parametrize(("room", "kept"), [(50.0, ["new", "fact", "old"]), (20.0, ["fact"])])
def test_what_was_replaced_needs_the_later_one_and_nothing_else_does(room: float, kept: list[str]) -> None:
    found = [("new", 30.0, ""), ("fact", 5.0, ""), ("old", 5.0, "new")]
    passages = [Passage(0, 0, 1, text, None, tokens, behind=behind) for text, tokens, behind in found]
    assert [each.text for each in within(passages, room)] == kept


@given(st.lists(st.floats(1, 50), max_size=12), st.floats(-10, 200))
def test_the_best_that_fit_are_taken_first(tokens: list[float], room: float) -> None:
    passages = [Passage(n, 0, 1, "x", None, each) for n, each in enumerate(tokens)]
    kept = within(passages, room)
    assert sum(passage.tokens for passage in kept) <= max(room, 0)
    assert not kept or kept == sorted(kept, key=lambda passage: passage.index)
    assert within(kept, room) == kept
    if tokens and tokens[0] <= room:
        assert kept[0] is passages[0]


def messages(count: int = 60) -> list[dict[str, Any]]:
    said = [{"role": ("user", "assistant")[n % 2], "content": f"number {n} of so many"} for n in range(count)]
    return [*said, {"role": "user", "content": "Where did Quentin leave the umbrella?"}]


def chosen(near: list[float] | None, lost: int = 50) -> list[int]:
    sent = messages()
    said = [passages_of(message) for message in sent[:-1]]
    ranking = rank(said, query_of(sent, len(sent) - 1), near)
    found = choose(sent, said, ranking, lost=lambda at: at < lost, room=500.0, cost=len, in_prompt=lambda _: False)
    return [passage.index for passage in found]


@pytest.mark.parametrize("without", [[], [20], [*range(5), *range(20, 60)]])
def test_what_no_word_tells_is_found_by_its_vector_whatever_has_none(without: list[int]) -> None:
    near = [0.0 if at in without else 1.0 + 0.001 * (at % 7) for at in range(60)]
    near[13] = 1.6
    assert chosen(None) == []
    assert chosen(near)[0] == 13


def test_what_stands_out_in_the_prompt_more_than_elsewhere_needs_no_recalling() -> None:
    near = [1.0 + 0.001 * (at % 7) for at in range(60)]
    near[13], near[55] = 1.5, 1.6
    assert chosen(near) == []

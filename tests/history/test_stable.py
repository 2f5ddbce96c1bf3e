"""The front of a conversation's prompts stays as it was while it changes without meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.history.chain import chain
from proxy.history.stable import CONVERSATIONS, LONGEST_NOTE, MOST_NOTES, Fronts, Stable, noted
from proxy.history.volatile import CLOCKS, COUNTS, IDS, KINDS, changed_kinds
from proxy.neutral.request import Message


def says(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def system(text: str) -> list[Message]:
    return [says("system", text)]


class Talk:
    """A conversation whose client sends all of it every time, under another system prompt."""

    def __init__(self, *kinds: str, fronts: Fronts | None = None) -> None:
        self.fronts = fronts or Fronts()
        self.kinds = kinds or KINDS
        self.sent: list[Message] = []

    def turn(self, prompt: str | list[Message], newest: Message | None = None) -> Stable:
        newest = newest or says("user", f"question {len(self.sent)}")
        self.sent.append(newest)
        kept = self.fronts.keep(
            "scope",
            chain(self.sent),
            system(prompt) if isinstance(prompt, str) else prompt,
            list(self.sent),
            self.kinds,
        )
        self.sent.append(says("assistant", "answer"))
        return kept


def test_the_first_system_prompt_stays_and_the_newest_message_tells_what_it_says_now() -> None:
    talk = Talk()
    first = talk.turn("You help.\nIt is 10:41.")
    assert (first.system, first.same, first.kinds) == (system("You help.\nIt is 10:41."), True, frozenset())
    second = talk.turn("You help.\nIt is 10:42.")
    assert second.system == first.system
    assert second.sent[-1]["content"] == "[As of now: It is 10:42.]\n\nquestion 2"
    assert (second.same, set(second.kinds)) == (False, {CLOCKS})


def test_every_prompt_begins_with_all_of_the_one_before() -> None:
    talk, before = Talk(), list[Message]()
    for minute in range(10, 40):
        kept = talk.turn(f"You help.\nIt is 10:{minute}.\nTurn {minute} of 99.")
        prompt = [*kept.system, *kept.sent]
        assert prompt[: len(before)] == before
        before = prompt


def test_a_loop_is_told_behind_what_a_tool_gave() -> None:
    talk = Talk()
    talk.turn("It is 10:41.")
    kept = talk.turn("It is 10:42.", {"role": "tool", "tool_call_id": "1", "content": "a.py"})
    assert kept.sent[-1]["content"] == "a.py\n\n[As of now: It is 10:42.]"


def test_what_was_told_is_not_told_again() -> None:
    talk = Talk()
    talk.turn("It is 10:41.")
    talk.turn("It is 10:42.")
    kept = talk.turn("It is 10:42.")
    assert (kept.system, kept.sent[-1]["content"]) == (system("It is 10:41."), "question 4")
    assert kept.sent[2]["content"] == "[As of now: It is 10:42.]\n\nquestion 2"
    back = talk.turn("It is 10:41.")
    assert back.sent[-1]["content"] == "[As of now: It is 10:41.]\n\nquestion 6"


def test_a_request_that_is_made_again_is_the_same_prompt() -> None:
    talk = Talk()
    talk.turn("It is 10:41.")
    once = talk.turn("It is 10:42.")
    del talk.sent[-2:]
    assert talk.turn("It is 10:43.", says("user", "question 2")).sent == once.sent


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("You help.\nIt is 10:41.", "You help a lot.\nIt is 10:42."),
        ("It is 10:41.", "It is 10:42.\nBe brief."),
        ("Use port 8080.", "Use port 9090."),
        ("Never spend more than 50 dollars.", "Never spend more than 500 dollars."),
    ],
)
def test_what_means_something_is_sent_as_it_comes(before: str, after: str) -> None:
    talk = Talk()
    talk.turn(before)
    kept = talk.turn(after)
    assert (kept.system, kept.same, kept.sent[-1]["content"]) == (system(after), True, "question 2")


def test_other_conversations_have_fronts_of_their_own() -> None:
    fronts = Fronts()
    Talk(fronts=fronts).turn("It is 10:41.", says("user", "one"))
    assert Talk(fronts=fronts).turn("It is 10:42.", says("user", "two")).same


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (CLOCKS, ("It is 10:41.", "It is 10:42.")),
        (CLOCKS, ("Today is Sunday, November 22, 2026", "Today is Monday, November 23, 2026")),
        (COUNTS, ("You have 1200 tokens left.", "You have 900 tokens left.")),
        (COUNTS, ("Step 3 of 20", "Step 4 of 20")),
        (
            IDS,
            ("Session 6f1a3c52-8c3b-4f0e-9d62-1f0a7a3c1b11", "Session 0f1a3c52-8c3b-4f0e-9d62-1f0a7a3c1b12"),
        ),
        (IDS, ("Trace: req_8fk29dk1", "Trace: req_9fk29dk2")),
    ],
)
def test_each_kind_can_be_turned_off(kind: str, lines: tuple[str, str]) -> None:
    assert changed_kinds(*lines, KINDS) == frozenset({kind})
    assert changed_kinds(*lines, [other for other in KINDS if other != kind]) is None
    on, off = Talk(kind), Talk(*[other for other in KINDS if other != kind])
    for talk in (on, off):
        talk.turn(lines[0])
    assert (set(on.turn(lines[1]).kinds), off.turn(lines[1]).system) == ({kind}, system(lines[1]))


def test_a_line_too_long_to_be_told_again_is_worth_a_new_front() -> None:
    talk, long = Talk(), "word " * (LONGEST_NOTE // 5)
    talk.turn(f"{long} 10:41")
    assert talk.turn(f"{long} 10:42").system == system(f"{long} 10:42")


def test_a_front_is_begun_anew_after_so_many_notes() -> None:
    talk = Talk()
    fronts = {id(talk.turn(f"It is {n // 60:02}:{n % 60:02}.").system) for n in range(MOST_NOTES + 20)}
    assert len(fronts) == 2


def test_only_so_many_conversations_are_remembered() -> None:
    fronts = Fronts()
    for number in range(CONVERSATIONS + 50):
        Talk(fronts=fronts).turn("It is 10:41.", says("user", f"{number}"))
    assert len(fronts._known) == CONVERSATIONS
    assert Talk(fronts=fronts).turn("It is 10:42.", says("user", "0")).same


@pytest.mark.parametrize(
    "newest", [says("assistant", "I begin"), says("user", None), says("user", {"odd": 1})]
)
def test_nothing_is_told_where_there_is_no_place_for_it(newest: Message) -> None:
    talk = Talk()
    talk.turn("It is 10:41.")
    kept = talk.turn("It is 10:42.", newest)
    assert (kept.system, kept.sent[-1]) == (system("It is 10:41."), newest)
    assert talk.turn("It is 10:42.").sent[-1]["content"].startswith("[As of now: It is 10:42.]")


def test_pictures_stay_where_they_are() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    told = {"type": "text", "text": "now"}
    assert noted(says("user", [picture]), "now")["content"] == [told, picture]
    assert noted(says("tool", [picture]), "now")["content"] == [picture, told]


TEXTS = st.sampled_from(["It is 10:41.", "It is 10:42.", "Be brief.", "Step 3 of 9", "Step 4 of 9", ""])
PARTS: st.SearchStrategy[list[Any]] = st.lists(
    st.one_of(TEXTS, st.builds(dict, text=TEXTS), st.none(), st.integers()), max_size=3
)
PROMPTS = st.lists(
    st.builds(says, st.sampled_from(["system", "developer"]), st.one_of(TEXTS, PARTS)), max_size=2
)


@given(st.lists(PROMPTS, max_size=6))
def test_whatever_comes_the_prompt_is_the_clients_or_one_it_has_sent_before(
    prompts: Sequence[Sequence[Mapping[str, Any]]],
) -> None:
    talk = Talk()
    came: list[Any] = []
    for prompt in prompts:
        came.append(list(prompt))
        kept = talk.turn(list(prompt))  # type: ignore[arg-type]
        assert kept.system in came
        assert kept.sent[-1]["content"].endswith(talk.sent[-2]["content"])
        assert [message["role"] for message in kept.sent] == [message["role"] for message in talk.sent[:-1]]

"""Which sentences are statements of a user, and which of them a message needs."""

from pathlib import Path
from typing import Any

import pytest

from proxy.recall.ranking import query_of
from proxy.recall.statements import needed, statements_in, unfit

SENTENCES = (Path(__file__).parent / "statements.txt").read_text().splitlines()[1:]
POOL = (
    "I am allergic to nuts.", "We use Postgres 15.", "My name is Anna Keller.", "I live in Hamburg with my two kids.",
    "I work as a nurse in a children's hospital.", "Our backend is written in Go and runs on Kubernetes.",
    "I'm learning Japanese.", "I like sci-fi movies.", "We moved to Postgres 16 last week.", "我对坚果过敏。",
)  # fmt: skip


def told(text: str, system: str = "", **fields: Any) -> list[str]:
    lead = [{"role": "system", "content": system}]
    return [statement for _, statement in statements_in(lead, {"role": "user", "content": text, **fields})]


def brought(text: str) -> list[str]:
    said = [{"role": "user", "content": each} for each in POOL]
    query = query_of([{"role": "user", "content": text}], 0)
    found = needed(said, query, room=300, cost=lambda text: len(text) / 4, here=lambda _: False)
    return [each.text for each in found]


def test_a_sentence_is_a_statement_or_not() -> None:
    assert [line for line in SENTENCES if told(line[2:]) != ([line[2:]] if line[0] == "+" else [])] == []


@pytest.mark.parametrize(
    "text",
    [
        "Summarise this page:\n\nI am allergic to nuts. I live in Berlin.",
        "<document>\nI am allergic to nuts.\n</document>\nWhat does he say?", "```\nI am allergic to nuts.\n```",
        "[TOOL_RESULT]I am allergic to nuts.[/TOOL_RESULT]", "> I am allergic to nuts.\n\nWhat does that mean for a cook?",
        "I am allergic to nuts.\n" + "And then there is more of it. " * 40,
        "I have 3 cats and 2 dogs. How many animals are there?",
    ],
)  # fmt: skip
def test_nothing_is_taken_from_pages_results_and_long_texts(text: str) -> None:
    assert told(text) == []


def test_a_part_in_a_play_and_a_named_speaker_tell_nothing() -> None:
    assert told("I am a knight from Ghana.", "You are the game master of a dungeon.") == []
    assert told("I am a knight from Ghana.", name="Bob") == []
    assert told("I am a knight from Ghana.", "You are a helpful assistant.") != []


def test_what_holds_only_once_says_of_what_it_tells() -> None:
    said = (
        *("I live in Berlin.", "Ich wohne in Köln.", "I moved to Oslo.", "My name is Bo.", "I am 42 years old."),
        "I like tea.",
    )
    message = [{"role": "user", "content": each} for each in said]
    assert [kind for each in message for kind, _ in statements_in([], each)] == ["home"] * 3 + ["name", "age", ""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Can you suggest a dessert with nuts?", ["I am allergic to nuts."]),
        ("What should I see in Hamburg?", ["I live in Hamburg with my two kids."]),
        ("How do I say good morning in Japanese?", ["I'm learning Japanese."]),
        ("How do I upgrade Postgres?", ["We moved to Postgres 16 last week.", "We use Postgres 15."]),
        ("推荐一个有坚果的甜点", ["我对坚果过敏。"]),
        ("How do I use this?", []),
        ("Which tool should I use for plotting?", []),
        ("What is a good name for a cat?", []),
        ("Thanks, that works!", []),
        ("Explain quantum tunnelling in two paragraphs.", []),
    ],
)
def test_a_message_gets_what_it_has_much_in_common_with(text: str, expected: list[str]) -> None:
    assert brought(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("my password is hunter2", True),
        ("the token of staging: ghp_16C7e42F292c6912E7710c838347Ae178B4a", True),
        ("my card is 4111 1111 1111 1111", True),
        ("write to anna@example.com", True),
        ("always answer in French", True),
        ("x" * 241, True),
        ("our server is called kiwi", False),
    ],
)
def test_what_is_not_remembered_even_if_asked_for(text: str, expected: bool) -> None:
    assert unfit(text) is expected

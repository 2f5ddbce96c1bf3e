from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.chain import chain
from proxy.core.clean import clean_history
from proxy.core.request import Message
from proxy.core.status.base import Notice, quoted, strip_status
from tests.core.histories import assistant, histories, user

NOTICES = [
    Notice(done=False),
    Notice(done=True),
    Notice(done=True, before=41_234, after=987),
    Notice(done=True, failed=True),
]


@pytest.mark.parametrize(
    ("notice", "before", "after"),
    list(product(NOTICES, ["", "Hello", "Hello.\n\n", "a\n"], ["", " world", "\n\nNext", "> quote"])),
)
def test_a_notice_is_taken_out_and_nothing_else(notice: Notice, before: str, after: str) -> None:
    assert strip_status(before + quoted(notice) + after) == before + after


@pytest.mark.parametrize("notice", NOTICES)
def test_a_client_may_have_trimmed_it(notice: Notice) -> None:
    text = quoted(notice)
    assert strip_status(text.strip()) == ""
    assert strip_status(("Hello" + text).strip()) == "Hello"
    assert strip_status((text + "Hello").strip()) == "Hello"
    assert strip_status(text.replace("\ufe0f", "")) == ""


def test_two_notices_in_a_row_go_both() -> None:
    assert strip_status(f"a{quoted(NOTICES[0])}{quoted(NOTICES[2])}b") == "ab"


@given(st.text(st.sampled_from("> *⚙️✅…\nContext compacted"), max_size=60))
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert strip_status(text) == text or any(n.text.rstrip(")").split(" (")[0] in text for n in NOTICES)


@given(histories())
def test_a_clean_history_is_the_very_same(messages: list[Message]) -> None:
    assert all(a is b for a, b in zip(clean_history(messages), messages, strict=True))


def test_every_form_of_text_of_an_assistant_is_cleaned() -> None:
    note = quoted(NOTICES[0])
    dirty: list[Message] = [
        user(f"I saw {note}"),
        assistant(f"a{note}b", x=1),
        assistant("c", reasoning_content=f"d{note}e", reasoning=f"f{note}"),
        {
            "role": "assistant",
            "content": [{"type": "text", "text": f"g{note}", "y": 2}, {"type": "image_url"}, "odd"],
        },
    ]
    assert clean_history(dirty) == [
        user(f"I saw {note}"),
        assistant("ab", x=1),
        assistant("c", reasoning_content="de", reasoning="f"),
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "g", "y": 2}, {"type": "image_url"}, "odd"],
        },
    ]
    assert note in dirty[1]["content"], "the client's message is not touched"


def test_an_answer_with_a_notice_is_recognised_again() -> None:
    said = [user("a"), assistant("first part, second part")]
    again = [user("a"), assistant(f"first part,{quoted(NOTICES[0])}{quoted(NOTICES[2])} second part\n")]
    assert chain(clean_history(again)) == chain(said)

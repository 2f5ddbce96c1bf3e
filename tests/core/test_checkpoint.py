from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from proxy.core.history.checkpoint import DIGEST_BYTES, chain, message_digest
from proxy.core.request import Message
from tests.histories import assistant, call, histories, tool, user


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


SAME: list[tuple[Message, Message]] = [
    (assistant("answer"), assistant("  answer\n\n")),
    (assistant("answer"), assistant("answer", reasoning_content="long thoughts", refusal=None, annotations=[])),
    (user("text"), {"role": "user", "content": parts("text")}),
    (user("one\ntwo"), {"role": "user", "content": parts("one", "two ")}),
    (assistant(None, tool_calls=[call(1)]), assistant("", tool_calls=[call(1)])),
    (assistant("", tool_calls=[]), assistant(None)),
    (assistant("", tool_calls=None), {"role": "assistant"}),
    (
        assistant("", tool_calls=[call(1)]),
        assistant(
            "",
            tool_calls=[
                {"index": 0, "function": {"arguments": '{"path":"a.py"}', "name": "read_file"}, "id": "call_1"}
            ],
        ),
    ),
    ({"role": "user", "content": "a"}, {"content": "a", "role": "user"}),
]

DIFFERENT: list[tuple[Message, Message]] = [
    (user("a"), user("b")),
    (user("a"), assistant("a")),
    (user("a b"), user("a  b")),
    (user("a"), user("a", name="Ann")),
    (tool(1, "a"), tool(2, "a")),
    (assistant("", tool_calls=[call(1)]), assistant("", tool_calls=[call(2)])),
    (assistant("", tool_calls=[call(1)]), assistant("", tool_calls=[call(1, arguments='{"path":"b.py"}')])),
    (assistant("", tool_calls=[call(1)]), assistant("", tool_calls=[call(1), call(2)])),
    (
        assistant("", tool_calls=[{"id": "1", "type": "custom", "custom": {"input": "a"}}]),
        assistant("", tool_calls=[{"id": "1", "type": "custom", "custom": {"input": "b"}}]),
    ),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}]},
    ),
    ({"role": "user", "content": parts("a")}, {"role": "user", "content": [*parts("a"), {"type": "image_url"}]}),
]


@pytest.mark.parametrize(("sent", "sent_again"), SAME)
def test_what_clients_change_when_they_send_it_again_does_not_count(sent: Message, sent_again: Message) -> None:
    assert message_digest(sent) == message_digest(sent_again)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_a_message_says_counts(one: Message, other: Message) -> None:
    assert message_digest(one) != message_digest(other)


@pytest.mark.no_cover
@given(histories(), histories())
def test_a_link_stands_for_the_whole_beginning(one: list[Message], other: list[Message]) -> None:
    links = chain(one)
    assert len(links) == len(set(links)) == len(one)
    assert all(len(link) == DIGEST_BYTES for link in links)
    assert chain([*one, *other])[: len(one)] == links
    assert chain(one[1:])[:1] != links[1:2] or len(one) < 2


def test_an_edit_changes_every_link_from_there_on() -> None:
    history = [user("a"), assistant("b"), user("c"), assistant("d")]
    edited = [user("a"), assistant("b!"), user("c"), assistant("d")]
    same = [a == b for a, b in zip(chain(history), chain(edited), strict=True)]
    assert same == [True, False, False, False]


@pytest.mark.parametrize(
    "message",
    [{}, {"role": None}, {"role": "user", "content": 5}, {"role": "user", "content": [None, 5]}, {"tool_calls": "x"},
     {"tool_calls": [None, {"function": "f"}]}, {"content": {"a": "half an emoji \ud83d"}}, {"content": float("nan")}],
)  # fmt: skip
def test_odd_messages_have_a_digest(message: Message) -> None:
    assert message_digest(message) == message_digest(dict(message))

from typing import Any

import pytest

from proxy.core.request import Request, leading_system, text_of
from tests.histories import assistant, user


def request(*, stream: bool = False, **fields: Any) -> Request:
    return Request(body={"messages": [user("a")], **fields}, model="m", stream=stream, raw=b"{}", wire=b"{}")


def test_options_are_set_and_removed() -> None:
    made = request(x=1, y=2)
    changed = made.changed(x=None, max_tokens=5)
    assert changed.body == {"messages": [user("a")], "y": 2, "max_tokens": 5}
    assert (changed.raw, changed.wire, changed.model) == (None, None, "m"), "it is to be written anew"
    assert made.body["x"] == 1, "the request itself stays as it was"


def test_a_bound_is_set_by_the_name_that_the_client_uses() -> None:
    made = Request(body={"messages": []}, bounds=("max_completion_tokens",))
    bounded = made.bounded(7)
    assert bounded.body["max_completion_tokens"] == bounded.max_tokens == 7


@pytest.mark.parametrize(
    ("fields", "chore"),
    [
        ({"messages": [user("### Task:\nGenerate a title")]}, True),
        ({"messages": [user("### Task:\nGenerate a title")], "stream": True}, False),
        ({"messages": [user("### Task:"), assistant("x")]}, False),
        ({"messages": [user("What is ### Task:?")]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "### Task:"}]}]}, False),
        ({"messages": [user("### Task:")], "tools": [{}]}, False),
    ],
)
def test_a_clients_own_chores(fields: dict[str, Any], chore: bool) -> None:
    assert request(**fields).background is chore


def test_leading_system_messages_are_counted() -> None:
    system, developer = {"role": "system", "content": "s"}, {"role": "developer", "content": "d"}
    assert [leading_system(each) for each in ([], [system], [system, developer, user("a"), system])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "text"),
    [("a", "a"), (None, ""), (5, ""), ([], ""), ([{"text": "a"}, {"type": "x"}, "odd", {"text": 5}, {"text": "b"}], "a\nb")],
)
def test_the_text_of_a_message(content: Any, text: str) -> None:
    assert text_of({"role": "user", "content": content}) == text

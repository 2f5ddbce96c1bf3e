"""The validator of histories."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import GenericFake, check_history
from tests.fakes.talking import ask, assistant, system, user


def call(name: str = "c1", arguments: Any = "{}") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }


def result(name: str | None = "c1") -> dict[str, Any]:
    return {"role": "tool", "content": "done", **({} if name is None else {"tool_call_id": name})}


@pytest.mark.parametrize(
    "history",
    [
        [user("a")],
        [system("s"), user("a"), assistant("b"), user("c")],
        [user("a"), call(), result(), assistant("b")],
        [
            user("a"),
            {**call(), "tool_calls": call()["tool_calls"] + call("c2")["tool_calls"]},
            result("c2"),
            result(),
        ],
        [user("a"), call(arguments={"x": 1}), result(None)],
        [user("a"), {"role": "assistant", "content": "", "reasoning_content": "hm"}],
    ],
)
def test_good_histories(history: list[dict[str, Any]]) -> None:
    assert check_history(history) == []


@pytest.mark.parametrize(
    ("history", "flaw"),
    [
        ([user("a"), result()], "has no call before it"),
        ([user("a"), call(), user("b")], "has no result before it"),
        ([user("a"), call()], "at the end: call 'c1' has no result"),
        ([user("a"), call(), result(), result()], "comes twice"),
        ([user("a"), call(), result(), user("b"), result()], "does not follow its call"),
        ([user("a"), call(arguments='{"x":'), result()], "not valid JSON"),
        ([system("s"), assistant("a")], "no user message"),
        ([user("a"), assistant("  "), user("b")], "says nothing"),
        ([user("a"), system("s"), assistant("b"), system("s")], "several system messages"),
        ([user("a"), None], "not an object"),
    ],
)
def test_errors(history: list[dict[str, Any]], flaw: str) -> None:
    texts = [one.text for one in check_history(history) if one.severity == "error"]
    assert len(texts) == 1
    assert flaw in texts[0]


@pytest.mark.parametrize(
    ("history", "note"),
    [
        ([user("a"), user("b")], "two user messages in a row"),
        ([user("a"), assistant("b"), assistant("c")], "two assistant messages in a row"),
        ([user("a"), assistant("b"), system("s"), user("c")], "a system message in the middle"),
        ([system("s"), assistant("b"), user("c")], "before the user"),
    ],
)
def test_notes(history: list[dict[str, Any]], note: str) -> None:
    flaws = check_history(history)
    assert [one.severity for one in flaws] == ["note"]
    assert note in flaws[0].text


def test_a_fake_keeps_what_it_found() -> None:
    with GenericFake() as fake:
        ask(fake, user("a"), user("b"), result("c9"), max_tokens=1)
        assert fake.invalid_histories == ["message 2: result of 'c9' has no call before it"]
        assert fake.history_notes == ["message 1: two user messages in a row"]

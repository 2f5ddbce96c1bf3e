from typing import Any

import pytest

from proxy.core.jsontext import dumps, loads
from proxy.core.request import Request
from proxy.core.settings import Settings
from proxy.dialects.chat.request import read, written
from proxy.shaping.shape import shaped, tool_name
from tests.histories import user

LONG = "Reads a file. " + "It has many more things to say about files. " * 40


def tool(name: str, description: str = "Reads.") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description}}


def request(**fields: Any) -> Request:
    return read(dumps({"model": "m", "messages": [user("a")], **fields}))


def shape(asked: Request, settings: Settings, window: int | None) -> Request:
    return shaped(asked, settings, window)[0]


def sent(made: Request) -> dict[str, Any]:
    body: dict[str, Any] = loads(written(made, None, {}, ask_usage=False))
    assert body == made.body
    return body


def test_what_the_policy_leaves_alone_is_the_same_request() -> None:
    asked = request(tools=[tool("read")], tool_choice="required")
    assert shape(asked, Settings(), 8192) is asked
    assert shape(asked, Settings(), None) is asked
    assert shape(asked, Settings(policy="standard"), 100) is asked
    assert shape(asked, Settings(policy="local", limits={"answer_cap": 0}), 8192) is asked


# -- tools


def test_only_tools_that_are_allowed_are_offered() -> None:
    asked = request(tools=[tool("read"), tool("write"), tool("run")])
    made = shape(asked, Settings(tools_allowed=("r*",)), 8192)
    assert [tool_name(each) for each in sent(made)["tools"]] == ["read", "run"]


def test_a_tool_that_is_not_offered_is_not_demanded() -> None:
    settings = Settings(tools_allowed=("read",))
    offered = [{"name": "read"}, {"name": "write"}]
    assert sent(shape(request(tools=offered, tool_choice={"name": "write"}), settings, 8192))["tool_choice"] == "auto"
    kept = sent(shape(request(tools=offered, tool_choice={"name": "read"}), settings, 8192))
    assert kept["tool_choice"] == {"name": "read"}


@pytest.mark.parametrize("copies", [1, 200], ids=["few", "too many to be remembered"])
def test_tools_are_described_in_a_sentence_under_local(copies: int) -> None:
    tools = [tool(f"read{number}", LONG) for number in range(copies)]
    asked = request(tools=tools)
    made = sent(shape(asked, Settings(policy="local", limits={"tools": 10**6, "answer_cap": 0}), 10**7))["tools"]
    assert {each["function"]["description"] for each in made} == {"Reads a file."}
    assert [tool_name(each) for each in made] == [tool_name(each) for each in tools]
    assert shape(asked, Settings(), 10**7) is asked


# -- the answer


def test_an_answer_without_a_bound_is_capped() -> None:
    settings = Settings(limits={"answer_cap": 700})
    assert sent(shape(request(), settings, None))["max_tokens"] == 700
    newer = sent(shape(request(max_completion_tokens=None), settings, None))
    assert newer["max_completion_tokens"] == 700
    assert "max_tokens" not in newer


@pytest.mark.parametrize("bound", [{"max_tokens": 9}, {"max_completion_tokens": 9}, {"n_predict": 9}])
def test_a_bound_of_the_client_stands(bound: dict[str, int]) -> None:
    asked = request(**bound)
    assert shape(asked, Settings(limits={"answer_cap": 700}), None) is asked


# -- the system prompt


def test_the_system_prompt_is_replaced_under_local_where_there_is_one() -> None:
    settings = Settings(policy="local", limits={"answer_cap": 0}, system_prompt="Be brief.")
    first, second = ({"role": "system", "content": text} for text in ("Long.", "Longer."))
    made = shape(request(messages=[first, second, user("a")]), settings, 8192)
    assert sent(made)["messages"] == [{"role": "system", "content": "Be brief."}, user("a")]
    for policy in ("auto", "standard"):  # a limit for guides, so that the prompt is looked at
        others = Settings(policy=policy, limits={"answer_cap": 0, "guide": 2000}, system_prompt="Be brief.")
        assert sent(shape(request(messages=[first, user("a")]), others, 8192))["messages"] == [first, user("a")]
    chore = request()
    assert shape(chore, settings, 8192) is chore

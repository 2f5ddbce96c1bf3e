"""Large fixed parts in small windows: tools that are not used say less of themselves, and what can't fit is told in figures."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, ToolCall, summariser
from tests.proxying import Proxy, running_proxy

WINDOW = 8192
WORDS = "A sentence about what this is for and when it is of use to whom it may concern. "


def tool(name: str) -> dict[str, Any]:
    properties = {f"field_{n}": {"type": "string", "description": WORDS * 2} for n in range(4)}
    parameters = {"type": "object", "properties": properties, "required": ["field_0"]}
    return {"type": "function", "function": {"name": name, "description": WORDS * 3, "parameters": parameters}}


TOOLS = [tool(name) for name in ("run", *(f"never_{n}" for n in range(14)))]


class Loop:
    """An agent that calls its one tool again and again, and sends all of it every time."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You work."},
            {"role": "user", "content": "Go on until it is enough."},
        ]

    def step(self) -> None:
        body = {"model": "m", "messages": self.messages, "tools": TOOLS, "max_tokens": 100}
        answer = self.proxy.chat(body)
        assert answer.status_code == 200, answer.text
        said = answer.json()["choices"][0]["message"]
        self.messages.append(said)
        for call in said["tool_calls"]:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "done " + "word " * 150})


def works(_: Question) -> Reply:
    return Reply(tool_calls=[ToolCall("run", '{"field_0": "x"}')])


def asks(question: Question) -> bool:
    return "Summarise the conversation" in question.last_user or not question.tools


def described(body: dict[str, Any]) -> set[str]:
    return {each["function"]["name"] for each in body["tools"] if each["function"].get("description")}


def test_tools_that_a_long_session_never_called_go_without_words() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], summariser(works, asks)) as fake, running_proxy(fake) as proxy:
        loop = Loop(proxy)
        for _ in range(36):
            loop.step()
        assert (fake.overflows, fake.invalid_histories) == (0, [])
        asked = [
            chat.json for chat in fake.chats() if chat.json.get("tools") and chat.json.get("tool_choice") != "none"
        ]
        first, last = asked[0], asked[-1]
        assert len(described(first)) == len(TOOLS)
        assert described(last) == {"run"}
        # How each is called is what it was.
        for before, after in zip(first["tools"], last["tools"], strict=True):
            fields = after["function"]["parameters"]
            assert fields["required"] == ["field_0"]
            assert fields["properties"].keys() == before["function"]["parameters"]["properties"].keys()
        # They change where the prompt does anyway, and not from turn to turn.
        forms = [json.dumps(body["tools"]) for body in asked]
        assert len(set(forms)) == 2
        assert forms == sorted(forms, key=forms.index)


# What can't fit


def test_what_can_not_fit_is_refused_with_the_figures_and_what_to_do() -> None:
    with LlamaCppFake([FakeModel("m", 2048)]) as fake, running_proxy(fake) as proxy:
        messages = [{"role": "system", "content": WORDS * 200}, {"role": "user", "content": "hi"}]
        answer = proxy.chat({"model": "m", "messages": messages, "tools": TOOLS[:3]})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["n_ctx"]) == (400, "context_length_exceeded", 2048)
        for part in ("window of m is 2048 tokens", " for the system prompt", " for 3 tools", " for the newest turn"):
            assert part in error["message"]
        assert "larger window" in error["message"]
        assert "--tools" in error["message"]

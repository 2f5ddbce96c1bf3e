"""The policy `local` and what agents put in front of every prompt, seen from the backend."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from proxy.core.jsontext import dumps
from proxy.core.request import text_of
from tests.agent_prompts import ENVIRONMENT, PROMPT, TOOLS
from tests.agent_prompts import RULES as RULES_OF_AGENT
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, Question, Reply, ToolCall, qa, summariser
from tests.fakes.tokens import FakeTokenizer
from tests.proxying import Proxy, running_proxy
from tests.shaping.test_guide import ASK, FORMS, GUIDE, RULES, text

WINDOW = 16_000


@contextmanager
def staged(window: int = WINDOW, **settings: Any) -> Iterator[tuple[FakeBackend, Proxy]]:
    fake = LlamaCppFake([FakeModel("m", window)], summariser(qa()))
    with fake, running_proxy(fake, **{"policy": "local", **settings}) as proxy:
        yield fake, proxy


def ask(proxy: Proxy, messages: list[dict[str, Any]], **fields: Any) -> Any:
    answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 20, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def said(answer: Any) -> dict[str, Any]:
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


# The guide layer


@pytest.mark.parametrize("form", FORMS)
def test_a_guide_is_brought_within_bounds_and_stays_so_while_the_conversation_grows(form: Any) -> None:
    with staged() as (fake, proxy):
        messages = form(GUIDE)
        for number in range(4):
            answer = ask(proxy, messages)
            assert answer.headers["x-spillway-action"] == "shaped"
            saved = int(answer.headers["x-spillway-shaped"].removeprefix("guide="))
            assert saved > 800
            messages += [said(answer), {"role": "user", "content": f"And {number}?"}]
        sent = [chat.json["messages"] for chat in fake.chats()]
    assert all(now[: len(before)] == before for before, now in itertools.pairwise(sent))
    for rule in RULES:
        assert rule in text(sent[0])
    assert ASK in text_of(sent[0][-1])


# The prompt and the tools of a coding agent


TASK = {"role": "user", "content": "Mend the parser."}
AGENT: list[dict[str, Any]] = [{"role": "system", "content": PROMPT}, TASK]


def fixed(body: dict[str, Any]) -> int:
    """Tokens of what stands in front of the conversation."""
    return FakeTokenizer().count(text(body["messages"][:1]) + dumps(body["tools"]).decode())


def by_name(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tool["function"]["name"]: tool["function"] for tool in body["tools"]}


def caller(name: str, *, native: bool, **arguments: str) -> Any:
    """Calls a tool once, and then says that it is done."""
    made = dumps(arguments).decode()
    written = f'<tool_call>{{"name": "{name}", "arguments": {made}}}</tool_call>'

    def brain(question: Question) -> Reply:
        if len(question.messages) > 2:
            return Reply(text="Done.")
        return Reply(tool_calls=(ToolCall(name, made),)) if native else Reply(text=written)

    return brain


def test_one_switch_takes_four_fifths_off_what_an_agent_sends_in_front_of_every_prompt() -> None:
    given = {"messages": AGENT, "tools": TOOLS}
    with staged() as (fake, proxy):
        told = proxy.client.post("/spillway/explain", json={"model": "m", **given}).json()["shaped"]
        answer = ask(proxy, AGENT, tools=TOOLS)
        sent = fake.chats()[-1].json
    assert fixed(given) > 5000
    assert fixed(sent) < fixed(given) / 5
    shaped = dict(part.split("=") for part in answer.headers["x-spillway-shaped"].split(", "))
    assert {kind: str(tokens) for kind, tokens in told.items()} == shaped
    assert set(shaped) == {"system", "tools"}
    assert sum(map(int, shaped.values())) == pytest.approx(fixed(given) - fixed(sent), rel=0.3)


def test_rules_environment_names_and_guides_are_kept_word_for_word() -> None:
    prompt = f"{PROMPT}\nInstructions from: /home/me/work/AGENTS.md\nUse tabs."
    with staged() as (fake, proxy):
        ask(proxy, [{"role": "system", "content": prompt}, TASK], tools=TOOLS)
        system, user = fake.chats()[-1].json["messages"]
    assert user == TASK
    assert system["role"] == "system"
    for kept in (*RULES_OF_AGENT, *ENVIRONMENT, "release-notes", "Instructions from: /home/me/work/AGENTS.md\nUse tabs."):
        assert system["content"].count(kept) == 1, kept
    assert system["content"].startswith("You are crafter, a coding agent ")
    assert "2+2" not in system["content"]


def test_a_prompt_that_is_no_coding_agents_stays() -> None:
    others = [
        (PROMPT.replace("software engineering", "cooking").replace("CLI", "kitchen"), TOOLS),
        (PROMPT, [t for t in TOOLS if t["function"]["name"] in {"webfetch", "task", "skill"}] * 3),
        (PROMPT * 3, []),
    ]
    with staged() as (fake, proxy):
        for prompt, tools in others:
            messages = [{"role": "system", "content": prompt}, TASK]
            ask(proxy, messages, **({"tools": tools} if tools else {}))
            assert fake.chats()[-1].json["messages"] == messages


def test_a_prompt_of_the_users_own_comes_first() -> None:
    with staged(system_prompt="Be brief.") as (fake, proxy):
        ask(proxy, AGENT, tools=TOOLS)
        assert fake.chats()[-1].json["messages"][0] == {"role": "system", "content": "Be brief."}


def test_tools_that_are_used_most_tell_what_they_do() -> None:
    with staged(limits={"tools": 600}) as (fake, proxy):
        ask(proxy, AGENT, tools=TOOLS)
        usual = by_name(fake.chats()[-1].json)
    assert {name for name, tool in usual.items() if "description" in tool} >= {"bash", "read", "edit"}
    assert "description" not in usual["webfetch"]
    assert list(usual) == list(by_name({"tools": TOOLS}))


@pytest.mark.parametrize("native", [True, False])
def test_a_tool_that_tells_only_its_name_is_called_and_tells_more_from_the_next_turn_on(native: bool) -> None:
    model = FakeModel("m", WINDOW, tools=native)
    fake = LlamaCppFake([model], caller("webfetch", native=native, url="https://example.org/"))
    with fake, running_proxy(fake, policy="local", limits={"tools": 600}) as proxy:
        messages = list(AGENT)
        called = said(ask(proxy, messages, tools=TOOLS, max_tokens=200))
        (call,) = called["tool_calls"]
        assert call["function"]["name"] == "webfetch"
        messages += [called, {"role": "tool", "tool_call_id": call["id"], "content": "It is a page."}]
        messages += [said(ask(proxy, messages, tools=TOOLS))]
        ask(proxy, [*messages, {"role": "user", "content": "And now?"}], tools=TOOLS)
        first, second, third = (chat.json for chat in fake.chats())
    assert second["messages"][: len(first["messages"])] == first["messages"]
    if native:
        assert first["tools"] == second["tools"]
        assert "description" not in by_name(second)["webfetch"]
        assert by_name(third)["webfetch"]["description"] == "Does webfetch."
        others = [tool for name, tool in by_name(third).items() if name != "webfetch"]
        assert others == [tool for name, tool in by_name(first).items() if name != "webfetch"]
    else:
        assert "Does webfetch." not in text_of(second["messages"][0])
        assert "Does webfetch." in text_of(third["messages"][0])

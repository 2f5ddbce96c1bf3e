"""What the policy and history repair make of a request, seen from the backend."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config import load_settings
from proxy.core.errors import SettingError
from proxy.core.jsontext import dumps
from proxy.core.settings import ModelOverrides
from tests.fakes import FAKES, FakeModel, LlamaCppFake, qa, summariser, walk
from tests.fakes.tokens import FakeTokenizer
from tests.proxying import Proxy, running_proxy

pytestmark = pytest.mark.slow

HELLO = [{"role": "system", "content": "You are a helpful assistant. " * 20}, {"role": "user", "content": "hi"}]


def tool(number: int) -> dict[str, Any]:
    """About 200 tokens, as large as Open WebUI's own (36 of them take about 6,000)."""
    what = {"type": "string", "description": f"What {number} needs. " + "It says in detail what that is. " * 4}
    about = f"Does thing {number}. " + "Use it whenever somebody asks for that. " * 6
    parameters = {"type": "object", "title": "Args", "properties": {"what": what}, "required": ["what"]}
    return {"type": "function", "function": {"name": f"tool_{number}", "description": about, "parameters": parameters}}


def tokens(tools: list[dict[str, Any]]) -> int:
    return FakeTokenizer().count(dumps(tools).decode())


def effective(proxy: Proxy) -> dict[str, Any]:
    found: dict[str, Any] = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"]["effective"]
    return found


def metric(proxy: Proxy, name: str) -> list[str]:
    return [line for line in proxy.client.get("/metrics").text.split("\n") if line.startswith(name)]


# Tools


def test_36_tools_in_a_small_window_leave_room_to_talk() -> None:
    tools = [tool(number) for number in range(36)]
    with LlamaCppFake([FakeModel("m", 8192)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        messages: list[dict[str, Any]] = []
        for number in range(12):
            messages.append({"role": "user", "content": f"The code of item{number} is c{number}. " + "word " * 60})
            answer = proxy.chat({"model": "m", "messages": messages, "tools": tools, "max_tokens": 50})
            assert answer.status_code == 200, answer.text
            messages.append(answer.json()["choices"][0]["message"])
            # There is room for the conversation: nothing of it is touched.
            assert answer.headers["x-spillway-action"] == "shaped"
            assert float(answer.headers["x-spillway-fill"]) < 0.8
        assert (fake.overflows, fake.invalid_histories) == (0, [])
        assert tokens(tools) > 0.7 * 8192
        sent = [chat.json["tools"] for chat in fake.chats()]
        assert all(each == sent[0] for each in sent)
        assert tokens(sent[0]) < 0.25 * 8192


@pytest.mark.parametrize(
    ("policy", "count", "shortened"), [("auto", 2, False), ("auto", 36, True), ("local", 2, True), ("standard", 36, False)]
)
def test_when_tools_go_on_a_diet(policy: str, count: int, shortened: bool) -> None:
    body = {"model": "m", "messages": HELLO, "tools": [tool(n) for n in range(count)], "max_tokens": 9}
    with LlamaCppFake([FakeModel("m", 16_000)], walk(last=2)) as fake, running_proxy(fake, policy=policy) as proxy:
        assert proxy.chat(body).status_code == 200
        (sent,) = fake.chats()
        assert (sent.json["tools"] != body["tools"]) is shortened
        if not shortened:
            assert sent.json == body


def test_only_tools_on_the_list_are_offered() -> None:
    body = {
        "model": "m", "messages": HELLO, "tools": [tool(1), tool(2), tool(11)],
        "tool_choice": {"type": "function", "function": {"name": "tool_2"}},
    }  # fmt: skip
    with LlamaCppFake([FakeModel("m", 8192)], walk(last=2)) as fake, running_proxy(fake, tools_allowed=("tool_1*",)) as proxy:
        assert proxy.chat(body).status_code == 200
        assert proxy.chat({**body, "tools": [tool(2)], "parallel_tool_calls": True}).status_code == 200
        first, second = (chat.json for chat in fake.chats())
        assert first == {**body, "tools": [tool(1), tool(11)], "tool_choice": "auto"}
        assert second == {"model": "m", "messages": HELLO}
        assert effective(proxy)["tools_allowed"] == ["tool_1*"]


# Answers


@pytest.mark.parametrize(
    ("settings", "window", "cap"),
    [
        ({}, 4096, None),
        ({"policy": "standard"}, 4096, None),
        ({"policy": "local"}, 8192, 1000),
        ({"policy": "local"}, 2048, 512),
        ({"policy": "local", "limits": {"answer_cap": 0}}, 8192, None),
        ({"policy": "local", "limits": {"answer_cap": 300}}, 8192, 300),
        ({"limits": {"answer_cap": 300}}, 8192, 300),
        ({"models": {"m": ModelOverrides(policy="local")}}, 8192, 1000),
        ({"policy": "local", "models": {"m": ModelOverrides(limits={"answer_cap": 200})}}, 8192, 200),
    ],
)
def test_the_answer_is_capped_by_setting_then_by_policy(settings: dict[str, Any], window: int, cap: int | None) -> None:
    with LlamaCppFake([FakeModel("m", window)], walk(last=2)) as fake, running_proxy(fake, **settings) as proxy:
        proxy.chat({"model": "m", "messages": HELLO})
        proxy.chat({"model": "m", "messages": HELLO, "max_tokens": 7})
        assert [chat.json.get("max_tokens") for chat in fake.chats()] == [cap, 7]
        assert effective(proxy)["answer_cap"] == cap


@pytest.mark.parametrize(
    "settings",
    [{}, {"policy": "standard"}, {"policy": "local"}, {"models": {"m": ModelOverrides(policy="local")}}],
    ids=["auto", "standard", "local", "model"],
)
def test_a_request_chooses_its_policy(settings: dict[str, Any], stream: bool) -> None:
    body = {"model": "m", "messages": HELLO, "tools": [tool(n) for n in range(3)], "stream": stream}
    with LlamaCppFake([FakeModel("m", 8192)], walk(last=2)) as fake, running_proxy(fake, **settings) as proxy:
        for policy in ("local", "standard", "local", "auto"):
            assert proxy.chat(body, **{"x-spillway-policy": policy}).status_code == 200
            sent = fake.chats()[-1]
            assert sent.header("x-spillway-policy") is None
            shortened = len(dumps(sent.json["tools"])) < 0.6 * len(dumps(body["tools"]))
            assert (sent.json.get("max_tokens"), shortened) == ((1000, True) if policy == "local" else (None, False))
        limited = settings.get("policy") == "local" or "models" in settings
        proxy.chat(body)
        assert fake.chats()[-1].json.get("max_tokens") == (1000 if limited else None)


def test_a_policy_that_there_is_not_is_refused_with_those_there_are() -> None:
    with LlamaCppFake([FakeModel("m", 8192)], walk(last=2)) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": HELLO}, **{"x-spillway-policy": "Lokal"})
        assert answer.status_code == 400
        assert "auto, standard, local, not 'Lokal'" in answer.json()["error"]["message"]
        assert fake.chats() == []


# System prompt


def test_each_limit_is_the_most_special_that_was_set_and_tells_where_it_comes_from() -> None:
    models = {
        "*": ModelOverrides(limits={"lines": 50, "entries": 7}),
        "m": ModelOverrides(limits={"entries": 9}, policy="local"),
    }
    settings = {"limits": {"lines": 40, "minimum_gain": 60}, "models": models}
    with LlamaCppFake([FakeModel("m", 8192)], walk()) as fake, running_proxy(fake, **settings) as proxy:
        shown = effective(proxy)
        explained = proxy.client.post("/spillway/explain", json={"model": "m", "messages": HELLO}).json()
    assert (shown["lines"], shown["entries"]) == (50, 9)
    assert (shown["minimum_gain"], shown["protect_newest"]) == (60, 1638)
    assert shown["limits_from"] == {
        "protect_newest": "window", "minimum_gain": "SPILLWAY_LIMITS", "lines": "SPILLWAY_MODELS *", "line_characters": "local",
        "output_characters": "local", "entries": "SPILLWAY_MODELS m", "result_tokens": "window", "guide": "window",
        "tools": "window", "answer_cap": "local", "recall": "window",
    }  # fmt: skip
    assert explained["limits"].items() <= shown.items()


def test_a_limit_is_set_in_the_environment_and_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "spillway.toml"
    file.write_text("[limits]\nlines = 30\nentries = 4\n")
    monkeypatch.setenv("SPILLWAY_LIMITS__LINES", "20")
    assert load_settings(file).limits == {"lines": 20, "entries": 4}
    monkeypatch.setenv("SPILLWAY_LIMITS__LINE", "20")
    with pytest.raises(SettingError, match=r"SPILLWAY_LIMITS__LINE='line': .*'line_characters'"):
        load_settings(file)


# Repair


def calls(*numbers: int, arguments: str = "{}") -> dict[str, Any]:
    made = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": arguments}} for n in numbers]
    return {"role": "assistant", "content": None, "tool_calls": made}


BROKEN: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": "gone", "content": "an old result"}, {"role": "user", "content": "Look."}, calls(1, 2),
    {"role": "tool", "tool_call_id": "c2", "content": "second"}, {"role": "assistant", "content": ""},
    {"role": "user", "content": "Well?"}, calls(3, arguments='{"half'),
    {"role": "tool", "tool_call_id": "c3", "content": "third"}, {"role": "user", "content": "And now?"},
]  # fmt: skip


@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("model", ["m", "mistral-small"])
def test_a_backend_never_sees_an_invalid_history(kind: str, model: str) -> None:
    fake = FAKES[kind]([FakeModel(model, 4096)], walk(last=3))
    with fake, running_proxy(fake, models={model: {"window": 4096}}) as proxy:
        for end in range(1, len(BROKEN) + 1):
            answer = proxy.chat({"model": model, "messages": BROKEN[:end], "max_tokens": 20})
            assert answer.status_code == 200, answer.text
        assert fake.invalid_histories == []
        if model != "m":
            assert [note for note in fake.history_notes if "in a row" in note] == []
        counted = "\n".join(metric(proxy, "spillway_repairs_total"))
        for repaired in ("orphaned_call", "orphaned_result", "arguments", "empty_answer"):
            assert f'kind="{repaired}"' in counted

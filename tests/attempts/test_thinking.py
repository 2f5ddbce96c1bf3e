"""How much a model is to think is said in the words of each client, and told in those of each backend."""

from typing import Any

import pytest

from tests.fakes import FAKES, FakeModel, scripted
from tests.proxying import Proxy, running_proxy

ANTHROPIC = {"max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]}
OLLAMA = {"stream": False, "messages": [{"role": "user", "content": "hi"}]}
WISHES: dict[str, tuple[str, dict[str, Any]]] = {
    "budget": ("/v1/messages", {**ANTHROPIC, "thinking": {"type": "enabled", "budget_tokens": 2048}}),
    "disabled": ("/v1/messages", {**ANTHROPIC, "thinking": {"type": "disabled"}}),
    "adaptive": ("/v1/messages", {**ANTHROPIC, "thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}),
    "effort": ("/v1/responses", {"input": "hi", "reasoning": {"effort": "minimal"}}),
    "none": ("/v1/responses", {"input": "hi", "reasoning": {"effort": "none", "summary": "auto"}}),
    "on": ("/api/chat", {**OLLAMA, "think": True}),
    "off": ("/api/chat", {**OLLAMA, "think": False}),
    "low": ("/api/chat", {**OLLAMA, "think": "low"}),
    "nothing": ("/v1/messages", {**ANTHROPIC, "thinking": {"type": "adaptive"}}),
    "odd": ("/v1/messages", {**ANTHROPIC, "thinking": 5, "output_config": {"effort": "absurd"}}),
}
ON, OFF = ({"chat_template_kwargs": {"enable_thinking": switch}} for switch in (True, False))
NEVER = ("disabled", "none", "off")
TOLD: dict[str, dict[str, dict[str, Any]]] = {
    "llamacpp": dict.fromkeys(NEVER, OFF)
    | {
        "budget": {**ON, "thinking_budget_tokens": 2048}, "adaptive": {"reasoning_effort": "xhigh"},
        "effort": {"reasoning_effort": "minimal"}, "on": ON, "low": {"reasoning_effort": "low"},
    },
    "vllm": dict.fromkeys(NEVER, OFF)
    | {
        "budget": ON, "adaptive": {"reasoning_effort": "high"}, "effort": {"reasoning_effort": "low"}, "on": ON,
        "low": {"reasoning_effort": "low"},
    },
    "ollama": {key: {"think": False} for key in NEVER}
    | {"adaptive": {"think": "high"}, "effort": {"think": "low"}, "on": {"think": True}, "low": {"think": "low"}},
    "lmstudio": {key: {"reasoning_effort": "none"} for key in NEVER}
    | {
        "budget": {"reasoning_effort": "medium"}, "adaptive": {"reasoning_effort": "high"},
        "effort": {"reasoning_effort": "low"}, "on": {"reasoning_effort": "medium"}, "low": {"reasoning_effort": "low"},
    },
    "openrouter": {key: {"reasoning": {"effort": "none"}} for key in NEVER}
    | {
        "budget": {"reasoning": {"max_tokens": 2048}}, "adaptive": {"reasoning": {"effort": "xhigh"}},
        "effort": {"reasoning": {"effort": "minimal"}}, "on": {"reasoning": {"enabled": True}},
        "low": {"reasoning": {"effort": "low"}},
    },
    "generic": {"effort": {"reasoning_effort": "minimal"}, "none": {"reasoning_effort": "none"}},
}  # fmt: skip
"""What is not here is told by nothing."""
UNABLE: dict[str, dict[str, Any]] = {"ollama": {"think": False}, "lmstudio": {}, "openrouter": {}}
"""What is told of a wish that it should not think, of a model that does not do so in any case; of others, nothing."""
FIELDS = ("reasoning_effort", "chat_template_kwargs", "thinking_budget_tokens", "reasoning", "think", "thinking")


def sent(proxy: Proxy, path: str, body: dict[str, Any]) -> None:
    answer = proxy.client.post(path, json={"model": "m", **body})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", FAKES)
def test_every_wish_is_told_in_the_backends_words(kind: str) -> None:
    fake = FAKES[kind]([FakeModel("m", thinking=True)], scripted(["Hi."] * len(WISHES)))
    with fake, running_proxy(fake) as proxy:
        for path, body in WISHES.values():
            sent(proxy, path, body)
        told = [{name: chat.json[name] for name in FIELDS if name in chat.json} for chat in fake.chats()]
    assert dict(zip(WISHES, told, strict=True)) == {name: TOLD[kind].get(name, {}) for name in WISHES}


@pytest.mark.parametrize("kind", UNABLE)
def test_a_model_that_does_not_think_is_asked_for_nothing_that_is_refused(kind: str) -> None:
    fake = FAKES[kind]([FakeModel("m")], scripted(["Hi."] * len(WISHES)))
    with fake, running_proxy(fake) as proxy:
        # Ollama's clients say in its own words what it refuses, and are told so by it.
        wishes = {name: wish for name, wish in WISHES.items() if kind != "ollama" or name not in ("on", "low")}
        for path, body in wishes.values():
            sent(proxy, path, body)
        told = [{name: chat.json[name] for name in FIELDS if name in chat.json} for chat in fake.chats()]
    assert dict(zip(wishes, told, strict=True)) == {name: UNABLE[kind] if name in NEVER else {} for name in wishes}


@pytest.mark.parametrize("kind", FAKES)
def test_what_a_chat_client_says_itself_stays_as_it_is(kind: str) -> None:
    own = {"reasoning_effort": "none", "reasoning": {"x": 1}, "chat_template_kwargs": {"y": 2}}
    fake = FAKES[kind]([FakeModel("m", thinking=True)], scripted(["Hi."]))
    with fake, running_proxy(fake) as proxy:
        sent(proxy, "/v1/chat/completions", {"messages": OLLAMA["messages"], **own})
        (chat,) = fake.chats()
    expected = {"think": False} if kind == "ollama" else own
    assert {name: chat.json[name] for name in expected} == expected


def test_a_prompt_is_counted_as_it_would_be_sent() -> None:
    with FAKES["llamacpp"]([FakeModel("m", thinking=True)]) as fake, running_proxy(fake) as proxy:
        path, body = WISHES["disabled"]
        assert proxy.client.post(f"{path}/count_tokens", json={"model": "m", **body}).status_code == 200
        counted = [each for each in fake.requests if each.path.startswith("/v1/chat/completions/input_tokens")]
        assert [each.json["chat_template_kwargs"] for each in counted] == [{"enable_thinking": False}]

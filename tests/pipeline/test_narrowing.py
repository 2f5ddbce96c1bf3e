"""Large fixed parts in small windows: what can't fit is told in figures."""

import re
from typing import Any

import pytest

from tests.agent_prompts import PROMPT
from tests.agent_prompts import TOOLS as AGENT_TOOLS
from tests.fakes import FakeModel, LlamaCppFake
from tests.proxying import running_proxy

WORDS = "A sentence about what this is for and when it is of use to whom it may concern. "


def tool(name: str) -> dict[str, Any]:
    properties = {f"field_{n}": {"type": "string", "description": WORDS * 2} for n in range(4)}
    parameters = {"type": "object", "properties": properties, "required": ["field_0"]}
    return {"type": "function", "function": {"name": name, "description": WORDS * 3, "parameters": parameters}}


TOOLS = [tool(name) for name in ("run", *(f"never_{n}" for n in range(14)))]


# What can't fit

HI = {"role": "user", "content": "hi"}
LITELLM_KNOWS = "this model's maximum context length is"
"""Substring of the error, in small letters, by which LiteLLM (`is_error_str_context_window_exceeded`) falls back to a larger model."""


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


@pytest.mark.parametrize(
    ("body", "window", "policy", "parts", "saving"),
    [
        pytest.param(
            {"messages": [system(PROMPT), HI], "tools": AGENT_TOOLS}, 2048, "auto", ["system_prompt", "tools", "newest_turn"],
            ["policy_local", "tools", "system_prompt"], id="an agent's prompt",
        ),
        pytest.param(
            {"messages": [system(WORDS * 400), HI], "tools": TOOLS[:3]}, 2048, "local",
            ["system_prompt", "tools", "newest_turn"], ["system_prompt"], id="a long system prompt, under the local policy",
        ),
        pytest.param({"messages": [HI], "tools": TOOLS[:7]}, 512, "local", ["tools", "newest_turn"], ["tools"], id="tools"),
        pytest.param(
            {"messages": [{**HI, "content": "word " * 60_000}]}, 4096, "auto", ["newest_turn"], ["newest_turn"],
            id="a newest message of which too little would be left",
        ),
    ],
)  # fmt: skip
def test_what_can_not_fit_is_refused_with_one_count_and_what_would_make_it_fit(
    body: dict[str, Any], window: int, policy: str, parts: list[str], saving: list[str]
) -> None:
    with LlamaCppFake([FakeModel("m", window)]) as fake, running_proxy(fake, policy=policy, documents="off") as proxy:
        answer = proxy.chat({"model": "m", **body})
        error = answer.json()["error"]
        tokens, message = error["n_prompt_tokens"], error["message"]
        assert (answer.status_code, error["code"], error["n_ctx"]) == (400, "context_length_exceeded", window)
        assert message.startswith(
            f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens"
        )
        assert LITELLM_KNOWS in message.lower()
        assert [*error["parts"]] == parts
        assert sum(error["parts"].values()) == tokens > window
        assert [*error["savings"]] == saving
        assert error["n_ctx_needed"] >= tokens
        figures = [error["excess"], *error["savings"].values(), error["n_ctx_needed"]]
        assert [int(each) for each in re.findall(r"\d+", message.partition("Take out at least ")[2])] == figures
        for name, setting in (("policy_local", "SPILLWAY_POLICY=local"), ("tools", "SPILLWAY_TOOLS_ALLOWED")):
            assert (setting in message) == (name in saving)
        assert fake.chats() == []


def test_what_the_refusal_says_that_the_local_policy_saves_it_saves() -> None:
    body = {"model": "m", "messages": [system(PROMPT), HI], "tools": AGENT_TOOLS, "max_tokens": 20}
    with LlamaCppFake([FakeModel("m", 2048)]) as fake:
        with running_proxy(fake) as proxy:
            error = proxy.chat(body).json()["error"]
        with running_proxy(fake, policy="local") as proxy:
            sent = proxy.chat(body).json()["usage"]["prompt_tokens"]
    promised = error["savings"]["policy_local"]
    assert promised >= error["excess"]
    assert abs(error["n_prompt_tokens"] - sent - promised) < 0.2 * promised


def test_a_window_as_large_as_the_refusal_names_is_enough() -> None:
    body = {"model": "m", "messages": [system("rule " * 2000), HI], "max_tokens": 20}
    needed = 512
    for status in (400, 200):
        with LlamaCppFake([FakeModel("m", needed)]) as fake, running_proxy(fake) as proxy:
            answer = proxy.chat(body)
            assert answer.status_code == status
            needed = answer.json().get("error", {}).get("n_ctx_needed", needed)


@pytest.mark.parametrize(
    ("path", "body", "first"),
    [
        ("/v1/responses", {"instructions": WORDS * 200, "input": [HI]}, ""),
        ("/v1/messages", {"system": WORDS * 200, "messages": [HI], "max_tokens": 9}, "prompt is too long: {} tokens > 2048 maximum. "),
    ],
)  # fmt: skip
def test_the_refusal_begins_as_each_dialect_has_it(path: str, body: dict[str, Any], first: str) -> None:
    with LlamaCppFake([FakeModel("m", 2048)]) as fake, running_proxy(fake) as proxy:
        answer = proxy.client.post(path, json={"model": "m", **body})
        message = answer.json()["error"]["message"]
        tokens = message.partition("resulted in ")[2].split()[0]
        assert answer.status_code == 400
        assert message.startswith(first.format(tokens) + "This model's maximum context length is 2048 tokens. However, ")


def test_a_backend_that_refuses_what_seems_to_fit_has_the_last_word() -> None:
    refusal = {"error": {"message": "prompt is too long: 1900 tokens > 1024 maximum", "code": 400}}
    with LlamaCppFake([FakeModel("m", 1024)]) as fake, running_proxy(fake) as proxy:
        for _ in range(8):
            fake.fail_next(400, refusal)
        error = proxy.chat({"model": "m", "messages": [HI]}).json()["error"]
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (1900, 1024), error

"""The fakes that stand in front of others: shapes as they were recorded, or as their sources have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fakes import FakeModel, LlamaCppFake, VllmFake
from tests.fakes.base import CHAT, HttpFake
from tests.fakes.litellm import Deployment, LiteLlmFake
from tests.fakes.llamaswap import Entry, LlamaSwapFake
from tests.fakes.reading import chunks, text
from tests.fakes.talking import fetch, user


@pytest.fixture
def swap() -> Iterator[LlamaSwapFake]:
    servers = [LlamaCppFake([FakeModel("file.gguf", window)]) for window in (500, 900)]
    with LlamaSwapFake({"a": Entry(servers[0], context=500), "b/c": Entry(servers[1])}) as running:
        yield running


@pytest.fixture
def litellm() -> Iterator[LiteLlmFake]:
    with LlamaCppFake([FakeModel("m", 500)]) as llama, VllmFake([FakeModel("m", 500)]) as vllm:
        deployments = {
            "lc": Deployment(llama, "m", max_input_tokens=500),
            "vl": Deployment(vllm, "m", "hosted_vllm"),
        }
        with LiteLlmFake(deployments, api_key="sk-1234") as running:
            yield running


KEY = {"authorization": "Bearer sk-1234"}


def get(fake: HttpFake, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return fetch("GET", fake.url + path, headers=headers or {})


def ask(fake: HttpFake, words: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return fetch("POST", fake.url + CHAT, json={"messages": [user(words)], **fields}, headers=headers or {})


def test_llama_swap_lists_what_is_configured(swap: LlamaSwapFake) -> None:
    listed = {entry["id"]: entry for entry in get(swap, "/v1/models").json()["data"]}
    assert [entry["status"] for entry in listed.values()] == [{"value": "unloaded"}] * 2
    assert (listed["a"]["context_length"], listed["a"]["meta"]["n_ctx"]) == (500, 500)
    assert "context_length" not in listed["b/c"]
    assert {entry["owned_by"] for entry in listed.values()} == {"llama-swap"}
    assert get(swap, "/running").json() == {"running": []}
    assert swap.loads == []


def test_llama_swap_loads_what_is_asked_for(swap: LlamaSwapFake) -> None:
    for model in ("a", "b/c", "b/c"):
        assert ask(swap, "hi", model=model, max_tokens=3).json()["model"] == "file.gguf"
    assert swap.loads == ["a", "b/c"]
    (running,) = get(swap, "/running").json()["running"]
    assert (running["model"], running["state"], running["ttl"]) == ("b/c", "ready", 0)
    assert get(swap, "/upstream/a/props").json()["default_generation_settings"]["n_ctx"] == 500
    assert get(swap, "/props?model=b/c&autoload=false").json()["default_generation_settings"]["n_ctx"] == 900
    assert swap.loads == ["a", "b/c", "a", "b/c"], "both load the model"
    assert get(swap, "/unload").content == b"OK"
    assert get(swap, "/running").json() == {"running": []}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": []}, "no model id could be identified"),
        ({"model": "x", "messages": []}, "no router for requested model"),
    ],
)
def test_llama_swap_refuses_in_an_envelope(swap: LlamaSwapFake, body: dict[str, object], said: str) -> None:
    reply = fetch("POST", swap.url + CHAT, json=body)
    error = {"message": said, "type": "invalid_request_error", "param": None, "code": "not_found"}
    assert (reply.status_code, reply.json()) == (404, {"src": "llama-swap", "error": error})


def test_llama_swap_writes_a_refusal_into_the_stream_that_tells_of_the_loading(swap: LlamaSwapFake) -> None:
    swap.send_loading_state = True
    reply = ask(swap, "word " * 600, model="a", stream=True)
    assert reply.status_code == 200
    assert reply.content.startswith(b'data: {"choices":[{"delta":{"reasoning_content":')
    assert b'\n\n{"error":{' in reply.content


def test_litellm_lists_windows_and_wants_a_key(litellm: LiteLlmFake) -> None:
    created = 1677610602
    assert get(litellm, "/v1/models", headers=KEY).json() == {
        "data": [
            {
                "id": "lc",
                "object": "model",
                "created": created,
                "owned_by": "openai",
                "max_input_tokens": 500,
            },
            {"id": "vl", "object": "model", "created": created, "owned_by": "openai"},
        ],
        "object": "list",
    }
    told = get(litellm, "/v1/model/info", headers=KEY).json()["data"][0]
    assert (told["model_name"], told["model_info"]["max_input_tokens"]) == ("lc", 500)
    assert get(litellm, "/v1/models").status_code == 500
    assert get(litellm, "/health/liveliness").json() == "I'm alive!"


def test_litellm_puts_its_words_around_those_of_the_server(litellm: LiteLlmFake) -> None:
    refused = ask(litellm, "word " * 600, model="lc", headers=KEY).json()["error"]
    assert refused == {
        "message": (
            "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: OpenAIException "
            "- request (607 tokens) exceeds the available context size (500 tokens), try increasing it\nmodel=lc. "
            "context_window_fallbacks=None. fallbacks=None.\n\nSet 'context_window_fallback' - "
            "https://docs.litellm.ai/docs/routing#fallbacks\n\nLiteLLM: model group 'lc' failed with the error above. "
            "No fallback was attempted."
        ),
        "type": "invalid_request_error",
        "param": None,
        "code": "400",
    }
    whole = ask(litellm, "word " * 600, model="vl", headers=KEY).json()["error"]["message"]
    assert 'Hosted_vllmException - {"error":{"message":"This model\'s maximum context length is 500' in whole
    unknown = ask(litellm, "hi", model="nope", headers=KEY)
    assert unknown.status_code == 400
    assert "Invalid model name passed in model=nope." in unknown.json()["error"]["message"]


def test_litellm_gives_the_model_its_own_name(litellm: LiteLlmFake) -> None:
    whole: httpx.Response = ask(litellm, "hi", model="lc", max_tokens=4, headers=KEY)
    assert whole.json()["model"] == "lc"
    assert whole.headers["x-litellm-model-group"] == "lc"
    events = chunks(ask(litellm, "hi", model="lc", max_tokens=4, stream=True, headers=KEY).content)
    assert {event["model"] for event in events} == {"lc"}
    assert text(events) == "w1 w2"

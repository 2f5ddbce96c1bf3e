"""A gateway stands between Spillway and the servers: LiteLLM's proxy, or llama-swap with a model that comes and goes."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.client import frames_of
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, VllmFake, summariser, words
from tests.fakes.base import HttpFake
from tests.fakes.litellm import Deployment, LiteLlmFake
from tests.fakes.llamaswap import Entry, LlamaSwapFake
from tests.proxying import Proxy, Streamed, metric, read_stream, running_proxy

WINDOW = 2048
LARGE = 8192
TURNS = 14


def always(question: Question) -> Reply:
    return Reply(text=words(1, 30))


def llama(window: int = WINDOW) -> LlamaCppFake:
    return LlamaCppFake([FakeModel("file.gguf", window)], summariser(always))


def said(proxy: Proxy, history: list[dict[str, Any]], model: str, **fields: Any) -> Streamed:
    """One turn of a stateless client: 250 tokens of the user's, and the answer."""
    number = len(history) // 2
    history.append({"role": "user", "content": f"Part {number}: " + f"Some words on topic {number}. " * 30})
    answer = proxy.chat({"model": model, "stream": True, "messages": history, **fields})
    assert answer.status_code == 200, answer.text
    seen = read_stream(answer.content)
    assert seen.errors == []
    assert seen.text == words(1, 30)
    assert (seen.finishes, seen.done) == (["stop"], 1)
    history.append({"role": "assistant", "content": seen.text})
    return seen


def refused(proxy: Proxy) -> float:
    return sum(metric(proxy, "spillway_overflows_total").values())


# -- LiteLLM


def behind_litellm(server: HttpFake, model: str, provider: str, **told: Any) -> LiteLlmFake:
    return LiteLlmFake({"team-model": Deployment(server, model, provider, **told)})


@pytest.mark.slow
@pytest.mark.parametrize("told", [WINDOW, None], ids=["window told", "window not told"])
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_conversation_through_litellm(provider: str, told: int | None) -> None:
    """Where nothing tells the window, the first refusal does, in LiteLLM's words around the server's."""
    kind: type[LlamaCppFake | VllmFake] = LlamaCppFake if provider == "openai" else VllmFake
    server = kind([FakeModel("m", WINDOW)], summariser(always))
    with server, behind_litellm(server, "m", provider, max_input_tokens=told) as gateway, running_proxy(gateway) as proxy:
        history: list[dict[str, Any]] = []
        for _ in range(TURNS):
            said(proxy, history, "team-model")
        assert server.overflows == refused(proxy) == (0 if told else 1)
        assert server.invalid_histories == []
        known = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["team-model"]
        assert known["window"]["value"] == WINDOW


# -- llama-swap


@pytest.fixture
def swap() -> Iterator[LlamaSwapFake]:
    entries = {
        "small": Entry(llama(), context=WINDOW),
        "started": Entry(llama(), command=f"llama-server -m file.gguf -c {WINDOW}"),
        "untold": Entry(llama()),
        "large": Entry(llama(LARGE), context=LARGE),
        "broken": Entry(llama(), starts=False),
    }
    with LlamaSwapFake(entries) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("model", ["small", "started", "untold"])
def test_a_conversation_through_llama_swap(swap: LlamaSwapFake, model: str) -> None:
    with running_proxy(swap) as proxy:
        history: list[dict[str, Any]] = []
        for _ in range(TURNS):
            said(proxy, history, model)
        server = swap.entries[model].server
        assert server.overflows == refused(proxy) <= (model == "untold")
        assert server.invalid_histories == []
    assert swap.loads == [model], "nothing that Spillway asks loads another model"


def test_looking_at_llama_swap_loads_nothing(swap: LlamaSwapFake) -> None:
    with running_proxy(swap) as proxy:
        listed = proxy.client.get("/v1/models").json()["data"]
        assert {entry["id"] for entry in listed} >= set(swap.entries)
        proxy.client.get("/spillway/models")
    assert swap.loads == []


def test_two_models_in_turns(swap: LlamaSwapFake) -> None:
    """Each conversation keeps its own window while the other's model is loaded."""
    with running_proxy(swap) as proxy:
        small: list[dict[str, Any]] = []
        large: list[dict[str, Any]] = []
        for _ in range(8):
            said(proxy, small, "small")
            said(proxy, large, "large")
        assert refused(proxy) == 0
        chats = swap.entries["large"].server.chats()
        assert len(chats[-1].json["messages"]) == 15, "the large window had room for all of it"
    assert swap.loads == ["small", "large"] * 8


def test_a_model_that_does_not_start(swap: LlamaSwapFake, stream: bool) -> None:
    with running_proxy(swap) as proxy:
        body = {"model": "broken", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
        answer = proxy.chat(body)
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "unspecific error: upstream command exited prematurely"
        assert said(proxy, [], "small").text


def test_a_stream_that_tells_of_the_loading(swap: LlamaSwapFake) -> None:
    swap.send_loading_state = True
    with running_proxy(swap) as proxy:
        answer = proxy.chat({"model": "small", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
        frames = frames_of(answer.content)[0]
        deltas = [choice["delta"] for frame in frames for choice in frame.get("choices", ())]
        thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        assert "llama-swap loading model: small" in thought
        assert "".join(delta.get("content") or "" for delta in deltas) == words(1, 30)


def test_a_model_that_is_unloaded_in_the_middle_of_an_answer(swap: LlamaSwapFake) -> None:
    """The client is told that the answer broke off; the next turn loads the model again."""
    server = swap.entries["small"].server
    server.delay = 0.01
    with running_proxy(swap) as proxy:
        body = {"model": "small", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        with proxy.client.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = response.iter_bytes()
            first = next(pieces)
            assert proxy.client.post(f"{swap.url}/api/models/unload").json() == {"msg": "ok"}
            seen = read_stream(first + b"".join(pieces))
        assert seen.errors or seen.finishes == ["length"], seen
        server.delay = 0
        assert said(proxy, [], "small").text
    assert swap.loads == ["small", "small"]

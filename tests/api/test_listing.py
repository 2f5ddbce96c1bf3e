"""Lists of models: the true window, and a larger one for the two clients that do not run in it."""

from typing import Any

import anthropic
import httpx
import pytest

from proxy.core.settings import BackendSetting
from tests.fakes import FakeModel, GenericFake, LlamaCppFake, OllamaFake, OpenRouterFake, VllmFake, scripted
from tests.proxying import Proxy, running_proxy

VERSION = {"anthropic-version": "2023-06-01"}
CLAUDE_CODE = {**VERSION, "user-agent": "claude-code/2.1.330"}
VIRTUAL = 200_000


def first(proxy: Proxy, **headers: str) -> dict[str, Any]:
    listed: dict[str, Any] = proxy.client.get("/v1/models", headers=headers).json()["data"][0]
    return listed


def codex(proxy: Proxy) -> int:
    listed = proxy.client.get("/v1/models?client_version=0.169.0").json()["models"]
    return int(listed[0]["context_window"])


def claude_code(proxy: Proxy) -> int:
    return int(first(proxy, **CLAUDE_CODE)["max_input_tokens"])


@pytest.mark.parametrize("agent", ["OpenAI/Python 2.9.0", "Anthropic/JS 0.99.0", "python-httpx/0.28", ""])
def test_only_codex_and_claude_code_get_a_larger_window(agent: str) -> None:
    with VllmFake([FakeModel("m", 16384)]) as fake, running_proxy(fake) as proxy:
        assert (codex(proxy), claude_code(proxy)) == (VIRTUAL, VIRTUAL)
        model = first(proxy, **{"user-agent": agent})
        assert (model["context_length"], model["max_model_len"]) == (16384, 16384)
        assert first(proxy, **VERSION, **{"user-agent": agent})["max_input_tokens"] == 16384
        assert proxy.client.get("/v1/models/m").json() == model
        single = proxy.client.get("/v1/models/m", headers=CLAUDE_CODE | {"user-agent": "claude-cli/2.1.330"})
        assert single.json()["max_input_tokens"] == VIRTUAL


def test_a_window_that_nobody_knows_is_promised_to_nobody() -> None:
    with GenericFake([FakeModel("m", 16384)]) as fake, running_proxy(fake) as proxy:
        assert first(proxy)["context_length"] is None
        assert first(proxy, **VERSION)["max_input_tokens"] is None


@pytest.mark.parametrize("make", [LlamaCppFake, VllmFake, OllamaFake, OpenRouterFake])
def test_a_spillway_in_front_of_another_knows_the_true_window(make: Any) -> None:
    with (
        make([FakeModel("m", 8192)]) as fake,
        running_proxy(fake) as inner,
        running_proxy(BackendSetting(url=inner.url)) as outer,
    ):
        assert codex(inner) == codex(outer) == VIRTUAL
        assert first(outer)["context_length"] == 8192


# Anthropic's form


def test_anthropics_clients_get_their_list() -> None:
    models = [FakeModel(f"m{number}", 16384, vision=number == 0) for number in range(5)]
    with VllmFake(models) as fake, running_proxy(fake) as proxy:
        with anthropic.Anthropic(base_url=proxy.url, api_key="none") as client:
            listed = list(client.models.list(limit=2))
            assert [each.id for each in listed] == [f"m{number}" for number in range(5)]
            assert [each.max_input_tokens for each in listed] == [16384] * 5
            assert (listed[0].type, listed[0].max_tokens) == ("model", 4096)
            assert listed[0].capabilities is not None
            beta = client.beta.models.retrieve("m1").capabilities
            assert beta is not None
            managing = beta.context_management.model_dump()
            assert all(each if isinstance(each, bool) else each["supported"] for each in managing.values())
            assert len(managing) == 4
            assert beta.compaction is not None
            assert beta.compaction.summarize.supported
            one = client.models.retrieve("m3")
            assert (one.id, one.max_input_tokens, one.lifecycle) == ("m3", 16384, "active")
            with pytest.raises(anthropic.NotFoundError) as caught:
                client.models.retrieve("none")
        assert caught.value.body == {
            "type": "error",
            "error": {"type": "not_found_error", "message": "No backend lists the model 'none'; GET /v1/models shows what there is."},
        }  # fmt: skip


def test_a_client_without_a_key_is_told_so_in_its_own_words() -> None:
    with VllmFake([FakeModel("m", 16384)]) as fake, running_proxy(fake, api_keys=("key",)) as proxy:
        refused = proxy.client.get("/v1/models", headers=VERSION)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert refused.json()["type"] == "error"
        assert proxy.client.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
        let_in = proxy.client.get("/v1/models", headers={**VERSION, "x-api-key": "key"})
        assert let_in.json()["data"][0]["id"] == "m"


# Codex's catalog


def test_codex_gets_a_catalog_where_it_asks_for_one() -> None:
    with VllmFake([FakeModel("m", 16384), FakeModel("big", 400_000)]) as fake, running_proxy(fake) as proxy:
        answer = proxy.client.get("/v1/models?client_version=0.169.0")
        small, big = answer.json()["models"]
        assert (small["slug"], small["context_window"]) == ("m", VIRTUAL)
        assert small["truncation_policy"] == {"mode": "tokens", "limit": 2048}
        assert (big["context_window"], big["truncation_policy"]["limit"]) == (400_000, 10_000)
        assert answer.json()["data"][0]["id"] == "m"
        again = proxy.client.get("/v1/models?client_version=0.169.0")
        assert answer.headers["etag"] == again.headers["etag"]
        assert "models" not in proxy.client.get("/v1/models").json()


# Ollama's


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags", "/api/ps", "/spillway/models"])
def test_a_long_list_asks_for_no_model_one_by_one(path: str) -> None:
    models = [FakeModel(f"m{number}:7b") for number in range(250)]
    with OllamaFake(models) as fake, running_proxy(fake) as proxy:
        assert path == "/api/ps" or proxy.client.get(path).text.count("m249:7b")
        assert len(fake.requests) < 32


def test_ollamas_clients_get_the_true_window() -> None:
    with LlamaCppFake([FakeModel("m", 16384)]) as fake, running_proxy(fake) as proxy:
        shown = proxy.client.post("/api/show", json={"model": "m"}).json()
        assert shown["parameters"] == "num_ctx 16384"
        assert shown["model_info"]["llama.context_length"] == 16384
        assert proxy.client.get("/api/tags").json()["models"][0]["details"]["context_length"] == 16384
        assert proxy.client.get("/api/ps").json()["models"][0]["context_length"] == 16384


def test_in_front_of_an_ollama_too_and_all_else_as_it_says() -> None:
    """Copilot sizes itself by it (microsoft/vscode#320558)."""
    with OllamaFake([FakeModel("d", 16384, trained_window=131072)]) as fake, running_proxy(fake) as proxy:
        told = httpx.post(f"{fake.url}/api/show", json={"model": "d"}).json()
        ((name, trained),) = [each for each in told["model_info"].items() if each[0].endswith("context_length")]
        for field in ("model", "name"):
            shown = proxy.client.post("/api/show", json={field: "d"}).json()
            assert shown["model_info"].pop(name) == 16384 != trained
            assert {**told, "model_info": {**told["model_info"], name: 0}} == {
                **shown,
                "model_info": {**shown["model_info"], name: 0},
            }


# Answers that are asked to be longer than the window


HELLO = [{"role": "user", "content": "hello"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": HELLO, "max_tokens": 32_000},
    "/v1/messages": {"model": "m", "messages": HELLO, "max_tokens": 32_000},
    "/v1/responses": {"model": "m", "input": "hello", "max_output_tokens": 32_000},
    "/api/chat": {"model": "m", "messages": HELLO, "options": {"num_predict": 32_000}},
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("make", [LlamaCppFake, VllmFake, OpenRouterFake, GenericFake])
def test_a_bound_larger_than_the_window_is_brought_down(make: Any, path: str, stream: bool) -> None:
    """OpenRouter, older vLLM and others add it to the prompt when they admit a request, and refuse."""
    counts = {"counts_max_tokens": True} if make is GenericFake else {}
    with (
        make([FakeModel("m", 16384)], brain=scripted(["fine"]), **counts) as fake,
        running_proxy(fake, models={"m": {"window": 16384}}) as proxy,
    ):
        answer = proxy.client.post(path, json={**ASKED[path], "stream": stream})
        assert (answer.status_code, b"fine" in answer.content) == (200, True), answer.text
        assert b'"error"' not in answer.content.replace(b'"error":null', b"")

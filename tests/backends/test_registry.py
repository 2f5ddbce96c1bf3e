"""Telling the kinds apart, each by the replies of the others."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.backends import BACKENDS, backend_of, detect
from proxy.backends.base import Reply
from tests.backends.driver import paths, payloads, play
from tests.fakes.llamacpp_info import INSTEAD
from tests.fakes.vllm import UNTEMPLATED

LMSTUDIO, OLLAMA, LLAMACPP = payloads("lmstudio"), payloads("ollama"), payloads("llamacpp")
UNKNOWN_200 = Reply(200, LMSTUDIO["unknown_path"])

SERVERS: dict[str, tuple[str, dict[str, Any], Reply]] = {
    "LM Studio 0.4": ("lmstudio", {"/api/v1/models": LMSTUDIO["v1"], "/v1/models": LMSTUDIO["openai"]}, UNKNOWN_200),
    "LM Studio 0.3": ("lmstudio", {"/api/v0/models": LMSTUDIO["v0"], "/v1/models": LMSTUDIO["openai"]}, UNKNOWN_200),
    "Ollama": (
        "ollama",
        {"/api/version": OLLAMA["version"], "/api/tags": OLLAMA["tags"], "/v1/models": OLLAMA["openai"]},
        Reply(404, None, "404 page not found"),
    ),
    "llama.cpp": (
        "llamacpp",
        {"/props": LLAMACPP["props"], "/v1/models": LLAMACPP["models"]},
        Reply(404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}),
    ),
    "llama.cpp, loading": ("llamacpp", {}, Reply(503, LLAMACPP["loading"])),
    "llama.cpp, router": (
        "llamacpp",
        {"/props": LLAMACPP["router_props"], "/v1/models": LLAMACPP["router_models"]},
        Reply(404),
    ),
    "vLLM": (
        "vllm",
        {"/v1/models": payloads("vllm")["models"], "/version": payloads("vllm")["version"]},
        Reply(404, {"detail": "Not Found"}),
    ),
    "OpenRouter's shape": ("openrouter", {"/v1/models": payloads("openrouter")["models"]}, Reply(404)),
    "llama-cpp-python": (
        "generic",
        {"/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "me"}]}},
        Reply(404, {"detail": "Not Found"}),
    ),
    "a web page for everything": ("generic", {}, Reply(200, None, "<html></html>")),
    "nobody": ("generic", {}, Reply(0)),
}


@pytest.mark.parametrize("name", SERVERS)
def test_each_server_is_told_apart(name: str) -> None:
    kind, replies, otherwise = SERVERS[name]
    found, asked = play(detect("http://127.0.0.1:9999"), replies, otherwise=otherwise)
    assert found.kind == kind
    assert len(set(paths(asked))) == len(asked), "a path was asked for twice"


def test_openrouter_is_told_by_its_address_without_asking() -> None:
    found, asked = play(detect("https://openrouter.ai/api"), {})
    assert (found.kind, asked) == ("openrouter", [])


def test_every_kind_can_be_named() -> None:
    assert [backend_of(backend.kind) for backend in BACKENDS] == list(BACKENDS)
    with pytest.raises(KeyError):
        backend_of("tgi")


# Chat templates

ASKED: dict[str, tuple[str, Any, Any, Any]] = {
    "llamacpp": (
        "/props?model=m&autoload=false",
        {"chat_template": "{{ messages }}"},
        {"chat_template": INSTEAD},
        {"role": "router"},
    ),
    "ollama": (
        "/api/show",
        {"template": "{{ .System }}{{ .Prompt }}"},
        {"template": "{{ .Prompt }}"},
        {"template": "{{ .Prompt }}", "modelfile": "FROM x\nRENDERER qwen3-coder\n"},
    ),
    "vllm": ("/tokenize", {"count": 7}, Reply(400, {"error": {"message": UNTEMPLATED}}), Reply(404)),
}


@pytest.mark.parametrize("kind", [backend.kind for backend in BACKENDS])
def test_whether_a_model_has_a_chat_template_is_told_by_those_that_know(kind: str) -> None:
    backend = backend_of(kind)
    if kind not in ASKED:
        assert play(backend.is_for_chats("m"), {}) == (None, [])
        return
    path, *answers = ASKED[kind]
    assert [play(backend.is_for_chats("m"), {path: each})[0] for each in answers] == [True, False, None]

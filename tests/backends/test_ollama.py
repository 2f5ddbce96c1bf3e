from __future__ import annotations

from typing import Any

import pytest

from proxy.backends.base import Reply
from proxy.backends.ollama import Ollama, canonical_name
from proxy.backends.profile import Continuation, Fact, Trust
from tests.backends.driver import payloads, play

BACKEND = Ollama()
SENT = payloads("ollama")


def replies(show: str | None, *, loaded: bool = False) -> dict[str, Any]:
    ps = SENT["ps"] if loaded else SENT["ps_empty"]
    shown = SENT[show] if show is not None else Reply(404, {"error": "model not found"})
    return {"/api/ps": ps, "/api/show": shown, "/api/tags": SENT["tags"]}


def test_is_detected_by_version_and_tags() -> None:
    assert play(BACKEND.detect("h"), {"/api/version": SENT["version"], "/api/tags": SENT["tags"]})[0]


def test_a_version_alone_may_be_anybodys() -> None:
    assert not play(BACKEND.detect("h"), {"/api/version": {"version": "0.6.5"}})[0]


@pytest.mark.parametrize("model", ["llama3.1", "llama3.1:latest", "Llama3.1"])
def test_a_loaded_model_has_the_window_it_was_loaded_with(model: str) -> None:
    profile, asked = play(BACKEND.profile(model), replies("show_llama", loaded=True))
    assert profile.window == Fact(8192, "Ollama, loaded model", Trust.LOADED)
    assert not profile.provisional
    assert profile.trained_window is not None
    assert profile.trained_window.value == 131072
    assert profile.tools is not None
    assert profile.tools.value is True
    assert profile.vision is not None
    assert profile.vision.value is False
    assert profile.tokenizer is not None
    assert profile.tokenizer.value == "llama-bpe"
    assert profile.continuation is not None
    assert profile.continuation.value is Continuation.TRAILING
    assert [(probe.method, probe.path) for probe in asked] == [("GET", "/api/ps"), ("POST", "/api/show")]
    assert asked[1].json == {"model": model}


def test_another_tag_is_another_model() -> None:
    profile, _ = play(BACKEND.profile("llama3.1:70b"), replies("show_llama", loaded=True))
    assert profile.provisional


def test_an_unloaded_model_has_the_window_of_its_parameters() -> None:
    profile, _ = play(BACKEND.profile("llama3.1"), replies("show_llama"))
    assert profile.window == Fact(16384, "Ollama, num_ctx of the model file", Trust.CONFIGURED)
    assert profile.provisional


def test_parameters_are_capped_by_what_the_model_was_trained_for() -> None:
    shown = SENT["show_gemma"] | {"parameters": "num_ctx 999999"}
    profile, _ = play(BACKEND.profile("gemma3"), {"/api/show": shown})
    assert profile.window is not None
    assert profile.window.value == 2048


def test_the_window_of_an_unloaded_model_without_parameters_is_unknown() -> None:
    shown = {"model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960}}
    profile, _ = play(BACKEND.profile("qwen3"), {"/api/show": shown})
    assert profile.window is None
    assert profile.provisional


def test_an_unloaded_model_is_loaded_by_a_chat_without_messages() -> None:
    _, asked = play(BACKEND.load("qwen3", {}), {})
    assert [(probe.path, probe.json, probe.loads) for probe in asked] == [("/api/chat", {"model": "qwen3"}, True)]


def test_what_nobody_reports_of_a_loaded_model_is_never_above_the_trained_window() -> None:
    loaded = {"models": [{"name": "gemma3:latest", "model": "gemma3:latest"}]}
    profile, _ = play(BACKEND.profile("gemma3"), replies("show_gemma") | {"/api/ps": loaded})
    assert profile.window == Fact(2048, "Ollama's usual default", Trust.FALLBACK)
    assert profile.vision is not None
    assert profile.vision.value is True
    assert profile.tokenizer is not None
    assert profile.tokenizer.value == "gemma3"  # the pre-tokenizer "default" says nothing


def test_a_loaded_model_of_an_old_version_is_not_provisional() -> None:
    loaded = {"models": [{"name": "llama3.1:latest", "model": "llama3.1:latest"}]}
    profile, _ = play(BACKEND.profile("llama3.1"), replies("show_llama") | {"/api/ps": loaded})
    assert profile.window is not None
    assert profile.window.trust is Trust.CONFIGURED
    assert not profile.provisional


def test_a_cloud_model_has_its_full_window() -> None:
    profile, _ = play(BACKEND.profile("gpt-oss:120b-cloud"), replies("show_cloud"))
    assert profile.window == Fact(131072, "Ollama, cloud model", Trust.LISTED)
    assert not profile.provisional
    assert profile.continuation is not None
    assert profile.continuation.value is Continuation.QUOTE


def test_tags_tell_when_show_does_not() -> None:
    profile, _ = play(BACKEND.profile("qwen3:8b"), replies(None))
    assert profile.trained_window is not None
    assert profile.trained_window.value == 40960
    assert profile.tools is not None
    assert profile.tools.value is True


def test_an_architecture_under_another_name_still_tells_its_length() -> None:
    info = {"general.architecture": "x", "y.context_length": 8192, "y.vision.context_length": 1024}
    profile, _ = play(BACKEND.profile("m"), {"/api/show": {"model_info": info}})
    assert profile.trained_window is not None
    assert profile.trained_window.value == 1024


def test_models_carry_what_the_lists_tell() -> None:
    given = replies(None, loaded=True) | {"/v1/models": SENT["openai"]}
    listed, _ = play(BACKEND.models(), given)
    assert [one.raw for one in listed] == SENT["openai"]["data"]
    windows = [one.profile.window.value if one.profile.window else None for one in listed]
    assert windows == [8192, None, 131072]
    assert [one.profile.provisional for one in listed] == [False, True, False]


def test_there_is_no_counting() -> None:
    assert play(BACKEND.count({"model": "m", "messages": []}), {}) == (None, [])


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("llama3", "llama3:latest"),
        ("hf.co/unsloth/Qwen3-GGUF:Q4_K_M", "hf.co/unsloth/qwen3-gguf:q4_k_m"),
        ("localhost:5000/me/model", "localhost:5000/me/model:latest"),
    ],
)
def test_names_are_compared_with_their_tag(name: str, full: str) -> None:
    assert canonical_name(name) == full


@pytest.mark.parametrize(
    ("modelfile", "expected"),
    [
        ("FROM x\nRENDERER qwen3-coder\nPARSER qwen3-coder\n", Continuation.TRAILING),
        ("FROM x\nRENDERER qwen3-vl-thinking\n", Continuation.TRAILING),
        ('FROM x\nRENDERER "deepseek3.1"\n', Continuation.QUOTE),
        ("FROM x\nTEMPLATE {{ .Prompt }}{{ .Response }}\n", Continuation.TRAILING),
        (None, Continuation.TRAILING),
    ],
)
def test_a_built_in_renderer_continues_only_if_it_is_known_to(modelfile: str | None, expected: Continuation) -> None:
    shown = SENT["show_llama"] | {"modelfile": modelfile}
    continuation = play(BACKEND.profile("m"), {"/api/show": shown})[0].continuation
    assert continuation is not None
    assert continuation.value is expected

from __future__ import annotations

import pytest

from proxy.backends import detect
from proxy.backends.llamaswap import LlamaSwap
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from tests.backends.driver import paths, payloads, play

BACKEND = LlamaSwap()
RECORDED = payloads("llamaswap")
LISTED = {"/v1/models": RECORDED["models"], "/running": RECORDED["running"]}


def test_is_known_by_the_owner_of_its_models() -> None:
    assert play(detect("http://127.0.0.1:8080"), {**LISTED, "/api/version": {"version": "238"}})[0].kind == "llamaswap"
    assert not play(BACKEND.detect("h"), {"/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]}})[0]


def test_a_model_that_does_not_run_has_the_window_of_the_configuration_and_is_left_alone() -> None:
    for name in ("qwen3-8b", "team"):
        profile, asked = play(BACKEND.profile(name), LISTED)
        assert profile.window is not None
        assert (profile.window.value, profile.window.trust) == (16384, Trust.CONFIGURED)
        assert profile.provisional
        assert paths(asked) == ["/v1/models"]


def started(command: str, model: str = "author/walk") -> ModelProfile:
    running = {"model": model, "state": "ready", "cmd": command}
    profile, asked = play(BACKEND.profile(model), LISTED | {"/running": {"running": [running]}})
    assert paths(asked) == ["/v1/models", "/running"], "asking the server itself would load it"
    return profile


@pytest.mark.parametrize(
    ("command", "window"),
    [
        ("llama-server --port 5801 -m walk.gguf -c 2048", 2048),
        ("llama-server --port 5801 --ctx-size=8192 --parallel 2 -m walk.gguf", 4096),
        ("llama-server -c 8192 -np 2 -kvu -m walk.gguf", 8192),
        ("docker run -p 5801:8000 vllm/vllm-openai:v0.10.0 --model a/b\n--max-model-len 65536", 65536),
        ("llama-server --port 5801 -c 0", None),
        ("llama-server --port 5801 --rpc-c 2048", None),
        ("", None),
    ],
)
def test_of_a_model_that_runs_the_command_tells_the_window(command: str, window: int | None) -> None:
    profile = started(command)
    assert not profile.provisional
    assert profile.window == (Fact(window, "llama-swap, command of the server", Trust.LOADED) if window else None)


def test_the_command_goes_before_the_configuration() -> None:
    assert [started(c, "told").window.value for c in ("llama-server -c 4096", "tabby")] == [4096, 8192]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("command", "way"),
    [("/opt/llama-server -c 1", Continuation.FLAGS), ("vllm serve m", Continuation.FLAGS), ("x", Continuation.QUOTE)],
)
def test_the_command_tells_how_an_answer_is_gone_on_with(command: str, way: Continuation) -> None:
    told = started(command).continuation
    assert told is not None
    assert told.value is way


def test_all_are_listed() -> None:
    listed, _ = play(BACKEND.models(), LISTED)
    assert [one.profile.window.value if one.profile.window else None for one in listed] == [16384, None, 8192]


def test_a_model_is_loaded_by_its_name_behind_an_alias() -> None:
    _, asked = play(BACKEND.load("team", {}), LISTED)
    assert paths(asked) == ["/v1/models", "/upstream/qwen3-8b/health"]


@pytest.mark.parametrize(("model", "busy"), [("author/walk", False), ("told", True)])
def test_nothing_is_done_ahead_for_a_model_that_would_have_to_be_loaded(model: str, busy: bool) -> None:
    assert play(BACKEND.busy(model), LISTED)[0] is busy
    assert play(BACKEND.busy(model), {})[0] is False

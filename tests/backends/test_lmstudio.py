from __future__ import annotations

import pytest

from proxy.backends.base import Reply
from proxy.backends.lmstudio import LmStudio
from proxy.backends.profile import Continuation, Fact, Trust
from tests.backends.driver import paths, payloads, play

BACKEND = LmStudio()
SENT = payloads("lmstudio")
UNKNOWN = Reply(200, SENT["unknown_path"])
V1 = {"/api/v1/models": SENT["v1"], "/v1/models": SENT["openai"]}
V0 = {"/api/v0/models": SENT["v0"], "/v1/models": SENT["openai"]}


@pytest.mark.parametrize("replies", [V1, V0])
def test_is_detected_by_either_native_list(replies: dict[str, object]) -> None:
    assert play(BACKEND.detect("http://h"), replies, otherwise=UNKNOWN)[0]


def test_status_200_for_an_unknown_path_proves_nothing() -> None:
    assert not play(BACKEND.detect("http://h"), {}, otherwise=UNKNOWN)[0]


def test_a_model_loaded_twice_has_the_smaller_window() -> None:
    profile, asked = play(BACKEND.profile("qwen/qwen3-8b"), V1, otherwise=UNKNOWN)
    assert profile.window == Fact(8192, "LM Studio, loaded instance", Trust.LOADED)
    assert profile.trained_window is not None
    assert profile.trained_window.value == 40960
    assert profile.tools is not None
    assert profile.tools.value is True
    assert profile.vision is not None
    assert profile.vision.value is False
    assert profile.tokenizer is not None
    assert profile.tokenizer.value == "qwen3"
    assert profile.parallel is not None
    assert profile.parallel.value == 2
    assert profile.continuation is not None
    assert profile.continuation.value is Continuation.TRAILING
    assert not profile.provisional
    assert paths(asked) == ["/api/v1/models"]


def test_an_instance_can_be_addressed_by_its_id() -> None:
    models = {
        "models": [
            {
                "key": "m",
                "loaded_instances": [
                    {"id": "m:1", "config": {"context_length": 4096}},
                    {"id": "m:2", "config": {"context_length": 32768}},
                ],
            }
        ]
    }
    profile, _ = play(BACKEND.profile("m:2"), {"/api/v1/models": models})
    assert profile.window is not None
    assert profile.window.value == 32768


def test_a_variant_is_its_model() -> None:
    profile, _ = play(BACKEND.profile("qwen/qwen3-8b@q8_0"), V1)
    assert profile.window is not None
    assert profile.window.value == 8192


def test_the_window_of_a_model_that_is_not_loaded_is_unknown() -> None:
    profile, asked = play(BACKEND.profile("google/gemma-3-4b"), V1)
    assert profile.window is None
    assert profile.provisional
    assert profile.vision is not None
    assert profile.vision.value is True
    assert paths(asked) == ["/api/v1/models"]


@pytest.mark.parametrize(
    ("model", "window", "provisional"),
    [
        ("qwen/qwen3-8b", Fact(12288, "LM Studio, loaded model", Trust.LOADED), False),
        ("google/gemma-3-4b", None, True),
        ("nobody", None, True),
    ],
)
def test_older_versions_tell_in_their_own_list(model: str, window: Fact[int] | None, *, provisional: bool) -> None:
    profile, _ = play(BACKEND.profile(model), V0, otherwise=UNKNOWN)
    assert profile.window == window
    assert profile.provisional is provisional


@pytest.mark.parametrize("body", [{}, {"ttl": 300}])
def test_a_model_is_loaded_just_in_time_for_as_long_as_the_client_chose(body: dict[str, int]) -> None:
    _, (probe,) = play(BACKEND.load("m", body), {})
    assert (probe.path, probe.json["max_tokens"], probe.loads) == ("/v1/chat/completions", 1, True)
    assert probe.json.get("ttl") == body.get("ttl")


def test_older_versions_tell_capabilities() -> None:
    text, _ = play(BACKEND.profile("qwen/qwen3-8b"), V0, otherwise=UNKNOWN)
    images, _ = play(BACKEND.profile("google/gemma-3-4b"), V0, otherwise=UNKNOWN)
    assert text.tools == Fact(value=True, origin="LM Studio, model list", trust=Trust.LISTED)
    assert images.tools is None  # before 0.3.16 nobody said
    assert images.vision is not None
    assert images.vision.value is True


def test_a_loaded_instance_without_a_length_is_looked_up_in_the_older_list() -> None:
    models = {"models": [{"key": "qwen/qwen3-8b", "loaded_instances": [{"id": "x", "config": {}}]}]}
    profile, _ = play(BACKEND.profile("qwen/qwen3-8b"), {"/api/v1/models": models, "/api/v0/models": SENT["v0"]})
    assert profile.window is not None
    assert profile.window.value == 12288


def test_models_are_those_that_may_be_asked_for() -> None:
    listed, _ = play(BACKEND.models(), V1, otherwise=UNKNOWN)
    assert [one.raw for one in listed] == SENT["openai"]["data"]
    windows = [one.profile.window.value if one.profile.window else None for one in listed]
    assert windows == [8192, 8192, None]
    assert [one.profile.provisional for one in listed] == [False, False, True]


def test_models_of_an_older_version() -> None:
    listed, _ = play(BACKEND.models(), V0, otherwise=UNKNOWN)
    assert len(listed) == 3
    assert listed[0].profile.window is not None
    assert listed[0].profile.window.value == 12288


def test_models_without_the_openai_list_are_the_native_ones() -> None:
    listed, _ = play(BACKEND.models(), {"/api/v1/models": SENT["v1"]}, otherwise=UNKNOWN)
    assert [one.id for one in listed] == ["qwen/qwen3-8b", "google/gemma-3-4b", "nomic-embed"]
    assert all(one.raw["object"] == "model" for one in listed)


def test_there_is_no_counting() -> None:
    assert play(BACKEND.count({"model": "m", "messages": []}), V1) == (None, [])


@pytest.mark.parametrize(
    "replies",
    [
        {"/api/v1/models": {"models": [{"key": "m", "capabilities": {"trained_for_tool_use": False}}]}},
        {"/api/v0/models": {"data": [{"id": "m", "state": "loaded", "capabilities": []}]}},
    ],
)
def test_a_model_that_is_not_trained_for_tools_is_given_a_format_of_lm_studios_own(replies: dict[str, object]) -> None:
    tools = play(BACKEND.profile("m"), replies, otherwise=UNKNOWN)[0].tools
    assert tools is not None
    assert (tools.value, tools.trust) == (True, Trust.FALLBACK)
    assert "not trained" in tools.origin

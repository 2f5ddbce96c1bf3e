from __future__ import annotations

import pytest

from proxy.backends.openrouter import OpenRouter, cancels, is_openrouter
from proxy.backends.profile import Continuation, Trust
from tests.backends.driver import paths, payloads, play

BACKEND = OpenRouter()
SENT = payloads("openrouter")
MODEL = "qwen/qwen3-coder:free"
LIST = {"/v1/models": SENT["models"]}
ENDPOINTS = {f"/v1/models/{MODEL}/endpoints": SENT["endpoints"]}


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("https://openrouter.ai/api", True),
        ("https://eu.openrouter.ai/api", True),
        ("https://openrouter.ai.example.org/api", False),
        ("http://127.0.0.1:9000/openrouter.ai", False),
        ("http://[broken", False),
    ],
)
def test_is_known_by_its_host(url: str, *, known: bool) -> None:
    assert is_openrouter(url) is known


def test_its_own_host_is_not_asked() -> None:
    assert play(BACKEND.detect("https://openrouter.ai/api"), {}) == (True, [])


def test_is_detected_by_its_catalogue_under_another_address() -> None:
    assert play(BACKEND.detect("http://127.0.0.1:1"), LIST)[0]
    assert not play(BACKEND.detect("http://127.0.0.1:1"), {"/v1/models": {"data": [{"id": "m"}]}})[0]


def test_the_window_is_the_largest_of_the_providers_in_service() -> None:
    profile, _ = play(BACKEND.profile(MODEL), LIST | ENDPOINTS)
    assert profile.window is not None
    assert (profile.window.value, profile.window.trust) == (262144, Trust.LISTED)
    assert profile.max_output is not None
    assert profile.max_output.value == 65536
    assert profile.tools is not None
    assert profile.tools.value is True
    assert profile.vision is not None
    assert profile.vision.value is False
    assert profile.tokenizer is not None
    assert profile.tokenizer.value == "Qwen3"
    assert not profile.provisional


def test_without_providers_the_catalogue_is_believed() -> None:
    profile, _ = play(BACKEND.profile(MODEL), LIST)
    assert profile.window is not None
    assert profile.window.value == 262000  # of the top provider, not the advertised 1048576


def test_without_the_catalogue_the_providers_are_believed() -> None:
    profile, _ = play(BACKEND.profile(MODEL), ENDPOINTS)
    assert profile.window is not None
    assert profile.window.value == 262144
    assert profile.max_output is not None
    assert profile.max_output.value == 8192
    assert profile.tools is not None
    assert profile.tools.value is True
    assert profile.tokenizer is not None


def test_a_provider_that_is_down_counts_when_none_is_up() -> None:
    down = [one for one in SENT["endpoints"]["data"]["endpoints"] if one["status"] < 0]
    profile, _ = play(BACKEND.profile("a/b"), {"/v1/models/a/b/endpoints": {"data": {"endpoints": down}}})
    assert profile.window is not None
    assert profile.window.value == 4096


def test_a_single_entry_spares_the_catalogue() -> None:
    single = {f"/v1/model/{MODEL}": {"data": SENT["models"]["data"][0]}}
    profile, asked = play(BACKEND.profile(MODEL), single)
    assert profile.window is not None
    assert profile.window.value == 262000
    assert "/v1/models" not in paths(asked)


def test_a_routing_variant_is_its_model() -> None:
    profile, _ = play(BACKEND.profile("openai/gpt-4o-mini:nitro"), LIST)
    assert profile.window is not None
    assert profile.window.value == 128000
    assert profile.tools is not None
    assert profile.tools.value is False
    assert profile.max_output is None


def test_an_unknown_model_has_no_window() -> None:
    assert play(BACKEND.profile("a/b"), LIST)[0].window is None


@pytest.mark.parametrize("model", ["../../credits", "a/../key", "a/b?x=1", "a/b/c", "auto", "", "ä/b"])
def test_a_strange_id_is_never_put_into_a_path(model: str) -> None:
    _, asked = play(BACKEND.profile(model), LIST)
    assert paths(asked) == ["/v1/models"]


@pytest.mark.parametrize(
    ("model", "continuation"),
    [
        ("qwen/qwen3-coder", Continuation.TRAILING),
        ("anthropic/claude-3.5-sonnet", Continuation.TRAILING),
        ("anthropic/claude-sonnet-4", Continuation.TRAILING),
        ("anthropic/claude-opus-4.5:beta", Continuation.TRAILING),
        ("anthropic/claude-opus-4.6", Continuation.QUOTE),
        ("anthropic/claude-sonnet-5", Continuation.QUOTE),
        ("~anthropic/claude-sonnet-latest", Continuation.QUOTE),
        ("openai/gpt-4o-mini", Continuation.QUOTE),
        ("deepseek/deepseek-r1", Continuation.QUOTE),
        ("mistralai/mistral-large", Continuation.QUOTE),
    ],
)
def test_continuation_is_a_matter_of_the_vendor(model: str, continuation: Continuation) -> None:
    profile, _ = play(BACKEND.profile(model), {})
    assert profile.continuation is not None
    assert profile.continuation.value is continuation


def test_models_are_the_whole_catalogue() -> None:
    listed, _ = play(BACKEND.models(), LIST)
    assert [one.id for one in listed] == [MODEL, "openai/gpt-4o-mini"]
    assert listed[0].profile.window is not None
    assert listed[0].profile.window.value == 262000


def test_there_is_no_counting() -> None:
    assert play(BACKEND.count({"model": "m", "messages": []}), {}) == (None, [])


# -- cancelling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "provider", ["OpenAI", "DeepInfra", "deepinfra/fp8", "xAI", "X-AI", "Octo AI", "SF Compute", "chutes"]
)
def test_some_providers_stop_when_a_stream_is_broken_off(provider: str) -> None:
    assert cancels(provider)


@pytest.mark.parametrize(
    "provider", ["Groq", "Google AI Studio", "AWS Bedrock", "Mistral", "Venice", "", "/", "OpenAI Compatible"]
)
def test_others_and_unknown_ones_do_not(provider: str) -> None:
    assert not cancels(provider)


@pytest.mark.parametrize(
    ("preferences", "stops"),
    [
        (None, False),
        ({"only": ["deepinfra/fp8"]}, True),
        ({"only": ["deepinfra/turbo"]}, False),
        ({"only": ["groq", "mistral"]}, False),
        ({"only": ["groq", "deepinfra"]}, False),
        ({"ignore": ["Groq"]}, True),
        ({"ignore": ["DeepInfra", "OpenAI", "Groq"]}, False),
        ({"order": ["DeepInfra"]}, False),
        ({"order": ["DeepInfra"], "allow_fallbacks": False}, True),
        ({"order": ["groq", "openai"], "only": ["openai"], "allow_fallbacks": False}, True),
        ({"only": "groq", "order": [7, None]}, False),
        ("groq", False),
    ],
)
def test_a_stream_stops_where_every_provider_that_the_request_allows_does(preferences: object, stops: bool) -> None:
    names = [("DeepInfra", "deepinfra/fp8"), ("OpenAI", "openai"), ("Groq", "groq"), ("OpenAI", "openai")]
    endpoints = [{"provider_name": name, "tag": tag, "context_length": 8192} for name, tag in names]
    down = {"provider_name": "Down", "context_length": 8192, "status": -2}
    sent = {"/v1/models/a/b/endpoints": {"data": {"endpoints": [*endpoints, down]}}}
    profile, _ = play(BACKEND.profile("a/b"), sent)
    assert profile.providers is not None
    assert [each.name for each in profile.providers.value] == ["DeepInfra", "OpenAI", "Groq"]
    assert BACKEND.stops_on_disconnect({"provider": preferences}, profile) is stops


def test_the_catalogue_alone_tells_nothing_of_providers() -> None:
    listed, _ = play(BACKEND.models(), LIST)
    assert [one.profile.providers for one in listed] == [None] * 2

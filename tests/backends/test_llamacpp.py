from __future__ import annotations

from typing import Any

import pytest

from proxy.backends.base import Probe, Reply
from proxy.backends.llamacpp import LlamaCpp
from proxy.backends.profile import Continuation, Fact, Trust
from tests.backends.driver import paths, payloads, play

BACKEND = LlamaCpp()
SENT = payloads("llamacpp")
PROPS = "/props?model=walk&autoload=false"
LOADED = "/props?model=qwen%2Fqwen3%3A8b&autoload=false"


@pytest.mark.parametrize("name", ["props", "router_props"])
def test_is_detected_by_its_properties(name: str) -> None:
    assert play(BACKEND.detect("http://h"), {"/props": SENT[name]})[0]


def test_is_detected_while_it_loads() -> None:
    assert play(BACKEND.detect("http://h"), {"/props": Reply(503, SENT["loading"])})[0]


def test_another_server_that_is_unavailable_is_not_llamacpp() -> None:
    busy = Reply(503, {"error": {"message": "Busy", "type": "unavailable_error", "code": 503}})
    assert not play(BACKEND.detect("http://h"), {"/props": busy})[0]


def test_profile_of_a_server_with_one_model() -> None:
    replies = {PROPS: SENT["props"], "/v1/models": SENT["models"]}
    profile, asked = play(BACKEND.profile("walk"), replies)
    assert profile.window == Fact(1024, "llama.cpp, slot", Trust.LOADED)
    assert profile.trained_window is not None
    assert profile.trained_window.value == 131072
    assert profile.tools is not None
    assert profile.tools.value is True
    assert profile.vision is not None
    assert profile.vision.value is False
    assert profile.parallel is not None
    assert profile.parallel.value == 2
    assert profile.tokenizer is not None
    assert profile.tokenizer.value == "/models/Qwen3-8B-Q4_K_M.gguf"
    assert profile.continuation is not None
    assert profile.continuation.value is Continuation.FLAGS
    assert not profile.provisional
    assert len(asked) == 2


def test_a_server_with_one_model_answers_to_any_name() -> None:
    replies = {"/props?model=gpt-4&autoload=false": SENT["props"], "/v1/models": SENT["models"]}
    profile, _ = play(BACKEND.profile("gpt-4"), replies)
    assert profile.window is not None
    assert profile.window.value == 1024
    assert profile.trained_window is not None


def test_without_a_number_in_the_properties_the_list_is_believed() -> None:
    props = SENT["props"] | {"default_generation_settings": {"n_ctx": 0}}
    profile, asked = play(BACKEND.profile("walk"), {PROPS: props, "/v1/models": SENT["models"]})
    assert profile.window == Fact(1024, "llama.cpp, model list", Trust.LOADED)
    assert "/slots" not in paths(asked)


def test_without_a_number_in_either_the_smallest_slot_is_believed() -> None:
    props = SENT["props"] | {"default_generation_settings": {}}
    models = {"object": "list", "data": [{"id": "walk", "meta": None}]}
    replies = {PROPS: props, "/v1/models": models, "/slots": SENT["slots"]}
    profile, _ = play(BACKEND.profile("walk"), replies)
    assert profile.window == Fact(512, "llama.cpp, slots", Trust.LOADED)


def test_without_any_number_the_window_is_unknown() -> None:
    assert play(BACKEND.profile("walk"), {})[0].window is None


def test_router_tells_of_a_loaded_model_without_loading_another() -> None:
    replies = {LOADED: SENT["props"], "/v1/models": SENT["router_models"]}
    profile, asked = play(BACKEND.profile("qwen/qwen3:8b"), replies)
    assert profile.window is not None
    assert profile.window.value == 1024  # the child's own word, not the list's
    assert not profile.provisional
    assert paths(asked) == [LOADED, "/v1/models"]


def test_router_list_tells_of_a_loaded_model_by_its_alias() -> None:
    profile, _ = play(BACKEND.profile("big"), {"/v1/models": SENT["router_models"]})
    assert profile.window == Fact(8192, "llama.cpp, model list", Trust.LOADED)
    assert profile.vision is not None
    assert profile.vision.value is True


def test_router_knows_no_window_of_a_model_that_is_not_loaded() -> None:
    profile, _ = play(BACKEND.profile("small"), {"/v1/models": SENT["router_models"]})
    assert profile.window is None
    assert profile.provisional


def test_router_loads_a_model_that_is_asked_for_its_properties() -> None:
    _, asked = play(BACKEND.load("qwen/qwen3:8b", {}), {})
    assert [(probe.path, probe.loads) for probe in asked] == [("/props?model=qwen%2Fqwen3%3A8b", True)]


def test_models_are_the_openai_part_of_the_list() -> None:
    listed, _ = play(BACKEND.models(), {"/v1/models": SENT["router_models"]})
    assert [one.id for one in listed] == ["qwen/qwen3:8b", "small", "bare"]
    assert [one.profile.provisional for one in listed] == [False, True, True]


def test_count_sends_the_whole_body() -> None:
    body = {"model": "walk", "messages": [{"role": "user", "content": "hi"}], "tools": []}
    path = "/v1/chat/completions/input_tokens?autoload=false"
    counted, asked = play(BACKEND.count(body), {PROPS: SENT["props"], path: SENT["input_tokens"]})
    assert counted == 15
    assert asked[-1] == Probe("POST", path, body)


def test_count_renders_and_tokenizes_on_older_builds() -> None:
    replies = {
        PROPS: SENT["props"],
        "/apply-template?autoload=false": {"prompt": "<|im_start|>user\nhi"},
        "/tokenize?autoload=false": {"tokens": [1, 2, 3]},
    }
    counted, asked = play(BACKEND.count({"model": "walk", "messages": []}), replies)
    assert counted == 3
    # Measured: the rendered prompt has no BOS token, the counted one has (b11549).
    assert asked[-1].json["add_special"] is True


def test_count_gives_up_on_a_template_that_fails() -> None:
    assert play(BACKEND.count({"model": "walk"}), {PROPS: SENT["props"]})[0] is None


@pytest.mark.parametrize("props", [Reply(400, {"error": {"message": "model is not loaded"}}), {"is_sleeping": True}])
def test_count_wakes_nobody(props: object) -> None:
    counted, asked = play(BACKEND.count({"model": "walk", "messages": []}), {PROPS: props})
    assert counted is None
    assert paths(asked) == [PROPS]


@pytest.mark.parametrize(
    ("caps", "expected"),
    [
        ({"supports_tools": True, "supports_tool_calls": True}, True),
        ({"supports_tools": True, "supports_tool_calls": False}, False),
        ({"supports_tools": False, "supports_tool_calls": True}, False),
        ({"supports_tools": True}, True),
        ({"supports_tools": "yes"}, None),
        (None, None),
    ],
)
def test_the_template_has_to_know_tools_and_calls(caps: object, expected: object) -> None:
    props = SENT["props"] | {"chat_template_caps": caps}
    tools = play(BACKEND.profile("walk"), {PROPS: props})[0].tools
    assert (tools.value if tools is not None else None) is expected
    assert tools is None or tools.trust is Trust.LOADED


@pytest.mark.parametrize(("told", "several"), [(True, True), (False, False), (None, None)])
def test_the_template_tells_of_several_calls_at_once(told: object, several: object) -> None:
    props = SENT["props"] | {"chat_template_caps": {"supports_parallel_tool_calls": told}}
    fact = play(BACKEND.profile("walk"), {PROPS: props})[0].parallel_tool_calls
    assert (fact.value if fact is not None else None) is several


@pytest.mark.parametrize(
    ("slots", "busy"),
    [
        ([{"id": 0, "is_processing": False}, {"id": 1, "is_processing": True}], True),
        ([{"id": 0, "is_processing": False}], False),
        ({"error": {"code": 501, "message": "This server does not support slots endpoint."}}, False),
        (None, False),
    ],
)
def test_it_is_busy_while_a_slot_is(slots: Any, busy: bool) -> None:
    told, (probe,) = play(BACKEND.busy("a/b"), {"/slots?model=a%2Fb&autoload=false": slots})
    assert told is busy
    assert probe.method == "GET"

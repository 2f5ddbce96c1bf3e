from __future__ import annotations

from proxy.backends.base import Probe
from proxy.backends.profile import Continuation, Fact, Trust
from proxy.backends.vllm import Vllm
from tests.backends.driver import payloads, play

BACKEND = Vllm()
SENT = payloads("vllm")
LIST = {"/v1/models": SENT["models"]}


def test_is_detected_by_the_owner_of_its_models() -> None:
    assert play(BACKEND.detect("h"), LIST)[0]


def test_a_fork_is_detected_by_length_and_version() -> None:
    models = {"data": [{"id": "m", "owned_by": "acme", "root": "m", "max_model_len": 4096}]}
    assert play(BACKEND.detect("h"), {"/v1/models": models, "/version": SENT["version"]})[0]
    assert not play(BACKEND.detect("h"), {"/v1/models": models})[0]


def test_a_version_alone_may_be_anybodys() -> None:
    assert not play(BACKEND.detect("h"), {"/version": SENT["version"]})[0]


def test_profile_of_a_base_model() -> None:
    profile, asked = play(BACKEND.profile("qwen"), LIST)
    assert profile.window == Fact(32768, "vLLM, max_model_len", Trust.LOADED)
    assert profile.tokenizer is not None
    assert profile.tokenizer.value == "Qwen/Qwen2.5-7B-Instruct"
    assert profile.tools is None  # there is no way to ask
    assert profile.continuation is not None
    assert profile.continuation.value is Continuation.FLAGS
    assert not profile.provisional
    assert len(asked) == 1


def test_an_adapter_has_window_and_vocabulary_of_its_base() -> None:
    profile, _ = play(BACKEND.profile("qwen-sql"), LIST)
    assert profile.window is not None
    assert profile.window.value == 32768
    assert profile.tokenizer is not None
    assert profile.tokenizer.value == "Qwen/Qwen2.5-7B-Instruct"


def test_without_a_length_in_the_list_counting_tells_it() -> None:
    models = {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}
    profile, _ = play(BACKEND.profile("m"), {"/v1/models": models, "/tokenize": SENT["tokenize"]})
    assert profile.window is not None
    assert profile.window.value == 32768


def test_an_unknown_model_has_no_window() -> None:
    assert play(BACKEND.profile("nobody"), LIST)[0].window is None


def test_models_with_adapters() -> None:
    listed, _ = play(BACKEND.models(), LIST)
    assert [one.id for one in listed] == ["qwen", "qwen-sql"]
    assert all(one.profile.window is not None and one.profile.window.value == 32768 for one in listed)


def test_count_sends_what_changes_the_prompt() -> None:
    body = {
        "model": "qwen",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [],
        "temperature": 0.5,
        "stream": True,
    }
    counted, asked = play(BACKEND.count(body), {"/tokenize": SENT["tokenize"]})
    assert counted == 27
    question = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}], "tools": []}
    assert asked == [Probe("POST", "/tokenize", question)]

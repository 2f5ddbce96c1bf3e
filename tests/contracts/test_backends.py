"""What every kind of backend must hold to, whatever a server replies."""

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.backends import BACKENDS, detect
from proxy.backends.base import Backend, Flow, Probe, Reply
from proxy.backends.profile import Continuation, Fact, ModelProfile, Provider, Trust
from tests.backends.driver import payloads

MOST_PROBES = 12
READING = {("POST", "/api/show"), ("POST", "/tokenize"), ("POST", "/v1/chat/completions/input_tokens")}
"""All that may be posted: none of these generates, loads or changes anything."""

RECORDED = [reply for backend in BACKENDS if backend.kind != "generic" for reply in payloads(backend.kind).values()]
ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["m", "a/b", "loaded", "8192", "num_ctx 4096", "", "\ud800", [], {}, [[]], [{}], {"": []}])
    | st.text(max_size=5)
)
JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A recorded reply, some of whose values, at any depth, were replaced by what does not belong there."""
    reply = copy.deepcopy(draw(st.sampled_from(RECORDED)))
    for _ in range(draw(st.integers(0, 4))):
        node = reply
        while isinstance(node, dict | list) and node:
            place = draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[place], dict | list) or not node[place] or draw(st.booleans()):
                node[place] = copy.deepcopy(draw(ODD))
                break
            node = node[place]
    return reply


REPLIES = st.builds(Reply, st.sampled_from([200, 200, 200, 0, 400, 404, 503]), damaged() | JSON)
MODELS = st.sampled_from(
    ["m", "qwen/qwen3-8b", "qwen/qwen3:8b", "llama3.1", "walk", "", "../x", "x?y=1&z", "\ud800"]
) | st.text(max_size=5)


def drive(flow: Flow[Any], replies: list[Reply]) -> tuple[Any, list[Probe]]:
    asked: list[Probe] = []
    reply: Reply | None = None
    while True:
        try:
            probe = next(flow) if reply is None else flow.send(reply)
        except StopIteration as stop:
            return stop.value, asked
        asked.append(probe)
        assert len(asked) <= MOST_PROBES
        reply = replies[len(asked) % len(replies)]


def assert_harmless(asked: list[Probe]) -> None:
    for probe in (each for each in asked if each.method != "FILE"):  # a file of this machine: no request
        path = probe.path.split("?")[0]
        assert probe.path.startswith("/")
        assert probe.path.isascii()
        assert probe.method == "GET" or (probe.method, path) in READING
        assert "/load" not in path
        if "model=" in probe.path:
            assert probe.path.endswith("&autoload=false")


def assert_sound(profile: object) -> None:
    assert isinstance(profile, ModelProfile)
    for fact in (profile.window, profile.trained_window, profile.max_output):
        assert fact is None or (type(fact.value) is int and 0 < fact.value <= 10**9)
    for switch in (profile.tools, profile.vision):
        assert switch is None or type(switch.value) is bool
    assert profile.tokenizer is None or isinstance(profile.tokenizer.value, str)
    assert profile.refused_continuations is None, "only an error tells"
    for field in (profile.window, profile.tools, profile.tokenizer, profile.providers):
        assert field is None or (isinstance(field, Fact) and field.origin)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.kind)
class TestEveryBackend:
    @example("m", [Reply(200, True), Reply(200, {"model_path": "/m.gguf"}), Reply(200)])
    @given(model=MODELS, replies=st.lists(REPLIES, min_size=1, max_size=3))
    def test_reads_any_json_without_failing(self, backend: Backend, model: str, replies: list[Reply]) -> None:
        profile, asked = drive(backend.profile(model), replies)
        assert_sound(profile)
        assert_harmless(asked)
        listed, asked = drive(backend.models(), replies)
        assert_harmless(asked)
        for one in listed:
            assert isinstance(one.id, str)
            assert isinstance(one.raw, dict)
            assert one.id == one.raw["id"]
            assert_sound(one.profile)
        found, asked = drive(backend.detect(), replies)
        assert found in {True, False}
        assert_harmless(asked)

    @given(
        body=st.dictionaries(st.sampled_from(["model", "messages", "tools"]), JSON, max_size=3),
        replies=st.lists(REPLIES, min_size=1, max_size=3),
    )
    def test_counts_or_says_that_it_does_not(self, backend: Backend, body: dict[str, Any], replies: list[Reply]) -> None:
        counted, asked = drive(backend.count(body), replies)
        assert counted is None or (type(counted) is int and counted > 0)
        assert_harmless(asked)

    def test_a_server_that_is_not_there_is_no_failure(self, backend: Backend) -> None:
        profile, _ = drive(backend.profile("m"), [Reply(0)])
        assert_sound(profile)
        assert drive(backend.models(), [Reply(0)])[0] == []
        assert drive(backend.detect(), [Reply(0)])[0] is False

    def test_can_always_quote_as_the_last_resort(self, backend: Backend) -> None:
        assert backend.continuations[-1] is Continuation.QUOTE
        assert len(set(backend.continuations)) == len(backend.continuations)

    def test_profile_offers_a_continuation_that_the_backend_has(self, backend: Backend) -> None:
        profile, _ = drive(backend.profile("m"), [Reply(404)])
        assert profile.continuation is not None
        assert profile.continuation.value in backend.continuations


def test_only_a_catalogue_of_providers_bills_what_was_cancelled() -> None:
    profile = ModelProfile(providers=Fact((Provider("Groq", "groq", 8192),), "test", Trust.LISTED))
    assert [b.kind for b in BACKENDS if not b.stops_on_disconnect({}, profile)] == ["openrouter"]


@given(replies=st.lists(REPLIES, min_size=1, max_size=3))
def test_detection_finds_a_kind_or_none(replies: list[Reply]) -> None:
    found, asked = drive(detect("http://127.0.0.1:1"), replies)
    assert found is None or found in BACKENDS
    assert_harmless(asked)

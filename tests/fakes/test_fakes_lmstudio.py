"""LM Studio's own ways."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from tests.fakes import FakeModel, LmStudioFake, Reply, scripted
from tests.fakes.lmstudio import WORDINGS
from tests.fakes.reading import chunks, finishes, frames, text, usage
from tests.fakes.talking import ask, assistant, body, fetch, get, post, user

LONG = user("word " * 600)
PARTIAL = (user("count"), assistant("w1 w2"))


@pytest.fixture
def fake() -> Iterator[LmStudioFake]:
    with LmStudioFake([FakeModel("fake-model", 500, 8000)]) as running:
        yield running


def told(fake: LmStudioFake, wording: str = "input") -> str:
    return WORDINGS[wording].format(n=fake.count(body(LONG)), m=500)


def test_a_stream_that_does_not_fit_is_200_with_an_error_event(fake: LmStudioFake) -> None:
    response = ask(fake, LONG, stream=True)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    (frame,) = frames(response.content)
    event, data = frame.split(b"\n")
    assert event == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: ")) == {
        "error": {"message": told(fake)},
        "message": told(fake),
    }
    assert fake.overflows == 1


@pytest.mark.parametrize("wording", sorted(WORDINGS))
def test_a_whole_answer_that_does_not_fit_is_400_with_a_text(fake: LmStudioFake, wording: str) -> None:
    fake.wording = wording
    response = ask(fake, LONG)
    assert (response.status_code, response.json()) == (400, {"error": told(fake, wording)})


def test_a_stream_that_does_not_fit_may_be_empty() -> None:
    with LmStudioFake(window=500, empty_overflow=True) as fake:
        response = ask(fake, LONG, stream=True)
        assert (response.status_code, response.content) == (200, b"")


def test_a_window_that_fills(fake: LmStudioFake) -> None:
    assert ask(fake).json()["usage"]["total_tokens"] == 500
    fake.full_window = "stop"
    assert finishes(chunks(ask(fake, stream=True).content)) == ["stop"]
    assert finishes(chunks(ask(fake, stream=True, max_tokens=5).content)) == ["length"]


def test_a_rolling_window_goes_on() -> None:
    with LmStudioFake([FakeModel("fake-model", 100, shifts=True)]) as fake:
        assert ask(fake, max_tokens=300).json()["usage"]["completion_tokens"] == 300


def test_a_trailing_answer_is_continued(fake: LmStudioFake) -> None:
    assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=2).content)) == " w3"
    assert ask(fake, *PARTIAL, max_tokens=2).json()["choices"][0]["message"]["content"] == " w3"


@pytest.mark.parametrize("stream", [True, False])
def test_the_prefix_may_be_doubled(fake: LmStudioFake, stream: bool) -> None:
    fake.models[0].prefill = "echo"
    response = ask(fake, *PARTIAL, stream=stream, max_tokens=2)
    said = text(chunks(response.content)) if stream else response.json()["choices"][0]["message"]["content"]
    assert said == "w1 w2 w3"


def test_other_ends_of_a_trailing_answer(fake: LmStudioFake) -> None:
    fake.models[0].prefill = "new"
    assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=2).content)) == "w3"
    fake.models[0].prefill = "refuse"
    assert "consecutive assistant responses" in ask(fake, *PARTIAL).json()["error"]


def test_loading_by_request() -> None:
    with LmStudioFake([FakeModel("fake-model", 500, 8000, loaded=False)]) as fake:
        v0 = get(fake, "/api/v0/models")["data"][0]
        assert (v0["state"], v0["max_context_length"]) == ("not-loaded", 8000)
        assert "loaded_context_length" not in v0
        assert get(fake, "/api/v1/models")["models"][0]["loaded_instances"] == []
        ask(fake, max_tokens=1)
        v0 = get(fake, "/api/v0/models/fake-model")
        assert (v0["state"], v0["loaded_context_length"], v0["capabilities"]) == ("loaded", 500, ["tool_use"])
        (instance,) = get(fake, "/api/v1/models")["models"][0]["loaded_instances"]
        assert (instance["id"], instance["config"]["context_length"]) == ("fake-model", 500)
        assert get(fake, "/v1/models")["data"] == [
            {"id": "fake-model", "object": "model", "owned_by": "organization_owner"}
        ]


def test_without_jit_nothing_is_loaded() -> None:
    with LmStudioFake([FakeModel("fake-model", loaded=False)], jit=False) as fake:
        assert get(fake, "/v1/models")["data"] == []
        refused = ask(fake)
        assert refused.status_code == 404
        assert refused.json()["error"]["message"].startswith("No models loaded.")


def test_loading_with_a_length(fake: LmStudioFake) -> None:
    load = {"model": "fake-model", "context_length": 2000, "echo_load_config": True}
    assert post(fake, "/api/v1/models/load", load)["load_config"] == {"context_length": 2000}
    assert ask(fake, LONG, max_tokens=1).status_code == 200
    post(fake, "/api/v1/models/unload", {"instance_id": "fake-model"})
    assert get(fake, "/api/v0/models")["data"][0]["state"] == "not-loaded"


def test_instances_of_one_model() -> None:
    models = [FakeModel("qwen", 4096, 32000), FakeModel("qwen:2", 2048, 32000, instance_of="qwen")]
    with LmStudioFake(models) as fake:
        (entry,) = get(fake, "/api/v1/models")["models"]
        lengths = {one["id"]: one["config"]["context_length"] for one in entry["loaded_instances"]}
        assert (entry["key"], lengths) == ("qwen", {"qwen": 4096, "qwen:2": 2048})


def test_unknown_paths_are_200(fake: LmStudioFake) -> None:
    response = fetch("GET", fake.url + "/props")
    assert response.status_code == 200
    assert response.json() == {"error": "Unexpected endpoint or method. (GET /props)"}
    old = LmStudioFake(api_v1=False)
    with old:
        assert "error" in get(old, "/api/v1/models")


def test_usage_and_odd_fields(fake: LmStudioFake) -> None:
    events = chunks(ask(fake, stream=True, max_tokens=1, stream_options={"include_usage": True}).content)
    assert usage(events)
    assert events[-1]["choices"] == []
    fake.empty_fields = True
    message = ask(fake, max_tokens=1).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["tool_calls"]) == ("", [])


def test_an_error_in_mid_stream_has_an_event_name() -> None:
    with LmStudioFake(brain=scripted([Reply(text="one two", error="Compute error.", after=1)])) as fake:
        frame = frames(ask(fake, stream=True).content)[-1]
        assert frame.startswith(b"event: error\ndata: ")
        assert b"Compute error." in frame


def test_the_native_chat_has_named_events(fake: LmStudioFake) -> None:
    request = {"model": "fake-model", "input": "hello"}
    assert post(fake, "/api/v1/chat", request)["output"][0]["content"] == "seen hello"
    raw = fetch("POST", fake.url + "/api/v1/chat", json={**request, "stream": True}).content
    assert frames(raw)[-1].startswith(b"event: chat.end\n")

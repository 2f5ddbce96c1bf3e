"""OpenRouter's own ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.fakes import FakeModel, OpenRouterFake, Provider, Question, Reply, scripted, walk
from tests.fakes.openrouter import NO_PREFILL
from tests.fakes.reading import chunks, deltas, finishes, text, usage
from tests.fakes.talking import ask, assistant, body, get, system, user

LONG = user("word " * 600)
OFF = {"plugins": [{"id": "context-compression", "enabled": False}]}
PARTIAL = (user("count"), assistant("w1 w2"))
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.fixture
def fake() -> Iterator[OpenRouterFake]:
    with OpenRouterFake(window=500) as running:
        yield running


@pytest.mark.parametrize("stream", [True, False])
def test_max_tokens_counts_at_admission(fake: OpenRouterFake, stream: bool) -> None:
    size = fake.count(body())
    assert ask(fake, max_tokens=500 - size, stream=stream, **OFF).status_code == 200
    refused = ask(fake, max_tokens=501 - size, stream=stream, **OFF)
    assert refused.status_code == 400
    assert refused.json()["error"] == {
        "message": (
            "This endpoint's maximum context length is 500 tokens. However, you requested about 501 tokens "
            f"({size} of text input, 0 of tool input, {501 - size} in the output). Please reduce the length of "
            "either one, or use the context-compression plugin to compress your prompt automatically."
        ),
        "code": 400,
        "metadata": {"provider_name": None},
    }
    assert fake.overflows == 1


def test_tools_are_counted_apart(fake: OpenRouterFake) -> None:
    fake.error_types = True
    error = ask(fake, LONG, tools=[TOOL], **OFF).json()["error"]
    tools = fake.count(body(tools=[TOOL])) - fake.count(body())
    assert f"{tools} of tool input, 0 in the output" in error["message"]
    assert error["metadata"]["error_type"] == "context_length_exceeded"


@pytest.mark.parametrize("status", [400, 502])
def test_the_provider_may_refuse(fake: OpenRouterFake, status: int) -> None:
    fake.provider_errors, fake.provider_status = True, status
    response = ask(fake, LONG, **OFF)
    error = response.json()["error"]
    assert (response.status_code, error["message"]) == (status, "Provider returned error")
    raw = orjson.loads(error["metadata"]["raw"])
    assert "tokens > 500 maximum" in raw["error"]["message"]
    assert error["metadata"]["provider_name"] == "Fake"


def test_small_endpoints_drop_the_middle_unless_forbidden() -> None:
    shown: list[Question] = []

    def brain(question: Question) -> Reply:
        shown.append(question)
        return Reply(text="ok")

    history = [system("rules"), user("first"), assistant("word " * 300), user("word " * 300), user("last")]
    with OpenRouterFake(window=500, brain=brain) as fake:
        assert ask(fake, *history).status_code == 200
        assert (fake.cuts, fake.overflows) == (1, 0)
        assert [one["content"] for one in (shown[0].messages[0], shown[0].messages[-1])] == ["rules", "last"]
        assert len(shown[0].messages) < len(history)
        assert ask(fake, *history, **OFF).status_code == 400
    with OpenRouterFake(window=500, brain=brain, compression=False) as fake:
        assert ask(fake, *history).status_code == 400


def test_shape_of_a_stream(fake: OpenRouterFake) -> None:
    response = ask(fake, stream=True, max_tokens=2)
    assert response.content.startswith(b": OPENROUTER PROCESSING\n\n")
    events = chunks(response.content)
    assert events[0]["id"].startswith("gen-")
    assert response.headers["x-generation-id"]
    assert {event["provider"] for event in events} == {"Fake"}
    assert all(delta["role"] == "assistant" for delta in deltas(events))
    assert events[-1]["choices"] == []
    told = usage(events)
    assert told is not None
    assert told["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_usage_may_come_on_a_choice(fake: OpenRouterFake) -> None:
    fake.usage_on_choice = True
    events = chunks(ask(fake, stream=True, max_tokens=2).content)
    assert finishes(events) == ["length", "length"]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert "usage" in events[-1]


def test_reasoning_has_details() -> None:
    with OpenRouterFake(brain=scripted([Reply(text="so", reasoning="hm")])) as fake:
        details = [
            delta["reasoning_details"] for delta in deltas(chunks(ask(fake, stream=True).content))[1:2]
        ]
        assert details == [[{"type": "reasoning.text", "text": "hm", "format": "unknown", "index": 0}]]


def test_an_error_in_mid_stream_is_a_chunk() -> None:
    with OpenRouterFake(brain=scripted([Reply(text="one two", error="gone", after=1)])) as fake:
        last = chunks(ask(fake, stream=True).content)[-1]
        assert (last["error"]["message"], last["choices"][0]["finish_reason"]) == ("gone", "error")
        assert last["object"] == "chat.completion.chunk"


@pytest.mark.parametrize(("prefill", "said"), [("continue", " w3"), ("new", "w3"), ("echo", "w1 w2 w3")])
def test_a_trailing_answer(fake: OpenRouterFake, prefill: Any, said: str) -> None:
    fake.models[0].prefill = prefill
    assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=2).content)) == said


def test_a_trailing_answer_may_be_refused(fake: OpenRouterFake) -> None:
    fake.models[0].prefill = "refuse"
    response = ask(fake, *PARTIAL)
    assert response.status_code == 400
    assert NO_PREFILL in response.json()["error"]["metadata"]["raw"]


def test_models_without_tools() -> None:
    with OpenRouterFake([FakeModel("fake-model", tools=False)]) as fake:
        refused = ask(fake, tools=[TOOL])
        assert refused.status_code == 404
        assert refused.json()["error"]["message"].startswith("No endpoints found that support tool use.")


MODELS = [
    FakeModel(
        "maker/large",
        9000,
        100_000,
        providers=(Provider("Big One", 9000, max_output=50), Provider("Small", 600, tools=False)),
    ),
    FakeModel("maker/other", 4096),
    FakeModel("maker/third", 4096),
]


def test_the_catalogue() -> None:
    with OpenRouterFake(MODELS) as fake:
        listed = get(fake, "/v1/models")
        assert (listed["total_count"], listed["links"]) == (3, {"next": None})
        entry = listed["data"][0]
        assert (entry["context_length"], entry["top_provider"]["context_length"]) == (100_000, 9000)
        assert "tools" in entry["supported_parameters"]
        ends = get(fake, "/v1/models/maker/large/endpoints")["data"]["endpoints"]
        assert [(end["tag"], end["context_length"]) for end in ends] == [("big-one", 9000), ("small", 600)]
        assert get(fake, "/v1/model/maker/other")["data"]["id"] == "maker/other"
        assert get(fake, "/v1/models/count") == {"data": {"count": 3}}


def test_the_catalogue_has_pages() -> None:
    with OpenRouterFake(MODELS) as fake:
        page = get(fake, "/v1/models?limit=2")
        assert [entry["id"] for entry in page["data"]] == ["maker/large", "maker/other"]
        rest = get(fake, page["links"]["next"].removeprefix("/api"))
        assert [entry["id"] for entry in rest["data"]] == ["maker/third"]
        assert rest["links"]["next"] is None


def test_the_provider_decides_on_window_and_output() -> None:
    with OpenRouterFake(MODELS, walk()) as fake:
        request = {"model": "maker/large", **OFF}
        assert ask(fake, LONG, **request).json()["usage"]["completion_tokens"] == 50
        refused = ask(fake, LONG, provider={"only": ["small"]}, **request)
        assert "maximum context length is 600 tokens" in refused.json()["error"]["message"]
        assert ask(fake, tools=[TOOL], provider={"only": ["small"]}, **request).status_code == 404

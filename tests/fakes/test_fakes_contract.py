"""What all kinds have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.fakes import FAKES, FakeBackend, Reply, ToolCall, echo, scripted, words
from tests.fakes.reading import chunks, finishes, text, tool_calls, usage
from tests.fakes.talking import ask, assistant, body, user

ASKED = {"stream_options": {"include_usage": True}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(params=sorted(FAKES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fake(kind: str) -> Iterator[FakeBackend]:
    with FAKES[kind](window=1000) as running:
        yield running


def test_stream_and_whole_answer_say_the_same(fake: FakeBackend) -> None:
    whole = ask(fake, max_tokens=30).json()
    events = chunks(ask(fake, stream=True, max_tokens=30, **ASKED).content)
    assert text(events) == whole["choices"][0]["message"]["content"] == words(1, 15)
    assert finishes(events) == [whole["choices"][0]["finish_reason"]] == ["length"]
    told = usage(events)
    assert told is not None
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert told[field] == whole["usage"][field]


def test_usage_counts_the_prompt_as_count_does(fake: FakeBackend) -> None:
    request = body(user("one two"), assistant("three"), user("four"), max_tokens=3)
    response = ask(fake, *request["messages"], max_tokens=3).json()
    assert response["usage"]["prompt_tokens"] == fake.count(request)
    assert response["usage"]["completion_tokens"] == 3


def test_streams_end_with_done(fake: FakeBackend) -> None:
    assert ask(fake, stream=True, max_tokens=3).content.endswith(b"\n\ndata: [DONE]\n\n")


def test_a_large_prompt_is_refused_or_cut(fake: FakeBackend) -> None:
    ask(fake, user("word " * 3000), user("word " * 3000), max_tokens=3)
    assert fake.overflows + fake.cuts == 1


@pytest.mark.parametrize("stream", [True, False])
def test_tool_calls(kind: str, stream: bool) -> None:
    reply = Reply(text="Let me look.", tool_calls=[ToolCall("look", '{"at": "x"}', "id1"), ToolCall("look")])
    with FAKES[kind](brain=scripted([reply])) as fake:
        response = ask(fake, stream=stream, tools=[TOOL])
        if stream:
            events = chunks(response.content)
            calls, finish = tool_calls(events), finishes(events)[-1]
            assert text(events) == "Let me look."
        else:
            choice = response.json()["choices"][0]
            finish = choice["finish_reason"]
            calls = [{"id": call["id"], **call["function"]} for call in choice["message"]["tool_calls"]]
        assert finish == "tool_calls"
        assert calls[0] == {"id": "id1", "name": "look", "arguments": '{"at": "x"}'}
        assert (calls[1]["name"], calls[1]["arguments"]) == ("look", "{}")
        assert calls[1]["id"]


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_has_the_field_of_the_kind(kind: str, stream: bool) -> None:
    with FAKES[kind](brain=scripted([Reply(text="so", reasoning="let me see")])) as fake:
        response = ask(fake, stream=stream)
        if stream:
            assert text(chunks(response.content), field=fake.reasoning_field) == "let me see"
        else:
            assert response.json()["choices"][0]["message"][fake.reasoning_field] == "let me see"


def test_usage_comes_when_asked_for(fake: FakeBackend) -> None:
    told = usage(chunks(ask(fake, stream=True, max_tokens=3).content))
    assert (told is not None) is (fake.kind == "openrouter")


def test_a_key_may_be_needed(kind: str) -> None:
    with FAKES[kind](api_key="secret") as fake:
        assert ask(fake, max_tokens=1).status_code == 401
        client = openai.OpenAI(base_url=fake.url + "/v1", api_key="secret", max_retries=0)
        with client:
            made = client.chat.completions.create(
                model="fake-model", messages=[{"role": "user", "content": "a"}], max_tokens=1
            )
        assert made.choices[0].finish_reason == "length"


def test_the_sdk_understands_it(kind: str) -> None:
    with FAKES[kind](brain=echo) as fake:
        client = openai.OpenAI(base_url=fake.url + "/v1", api_key="none", max_retries=0)
        with client:
            assert client.models.list().data[0].id.startswith("fake-model")
            stream = client.chat.completions.create(
                model="fake-model", messages=[{"role": "user", "content": "say \u2028 é 漢"}], stream=True
            )
            said = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            assert said == "say \u2028 é 漢"
            made: Any = client.embeddings.create(model="fake-model", input=["a", "b"], encoding_format="float")
            assert len(made.data) == 2


def test_earlier_prompts_are_cached(kind: str) -> None:
    with FAKES[kind](brain=echo) as fake:
        history = [user("one"), assistant("one")]
        ask(fake, *history, user("two"))
        ask(fake, *history, user("two"), assistant("two"), user("three"))
        assert fake.prompt_tokens_cached > 0.4 * fake.prompt_tokens_seen / 2

"""Ollama's own ways, over `/v1` and over its native API."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.fakes import FakeModel, OllamaFake, Question, Reply, ToolCall, scripted
from tests.fakes.base import CHAT
from tests.fakes.ollama_cut import token_limit
from tests.fakes.reading import chunks, deltas, finishes, text, tool_calls
from tests.fakes.talking import ask, assistant, body, fetch, get, post, system, user

LONG = user("word " * 600)
PARTIAL = (user("count"), assistant("w1 w2"))


class Listening:
    """A brain that remembers what it was shown."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def __call__(self, question: Question) -> Reply:
        self.questions.append(question)
        return Reply(text="ok")

    @property
    def shown(self) -> list[str]:
        return [str(message["content"]) for message in self.questions[-1].messages]


@pytest.fixture
def brain() -> Listening:
    return Listening()


@pytest.fixture
def fake(brain: Listening) -> Iterator[OllamaFake]:
    with OllamaFake([FakeModel("fake-model", 500, 8000)], brain) as running:
        yield running


@pytest.fixture
def walking() -> Iterator[OllamaFake]:
    with OllamaFake([FakeModel("fake-model", 500, 8000)]) as running:
        yield running


def lines(raw: bytes) -> list[dict[str, Any]]:
    *whole, rest = raw.split(b"\n")
    assert rest == b""
    return [orjson.loads(line) for line in whole]


def test_the_oldest_messages_go_first(fake: OllamaFake, brain: Listening) -> None:
    history = [
        system("rules"),
        user("a " * 300),
        assistant("b " * 300),
        user("c " * 300),
        assistant("d"),
        user("e"),
    ]
    response = ask(fake, *history)
    assert response.status_code == 200
    assert brain.shown == ["rules", "c " * 300, "d", "e"]
    assert (fake.cuts, fake.overflows) == (1, 0)
    kept = [history[0], *history[3:]]
    assert response.json()["usage"]["prompt_tokens"] == fake.count(body(*kept))


def test_results_may_lose_their_call(fake: OllamaFake, brain: Listening) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": "' + "x " * 300 + '"}'},
    }
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "r " * 300}
    ask(fake, user("go"), asked, result)
    assert [message["role"] for message in brain.questions[-1].messages] == ["tool"]
    assert fake.invalid_histories == []


def test_then_half_of_the_tokens_go(fake: OllamaFake, brain: Listening) -> None:
    response = ask(fake, system("rules"), user("first " * 900 + "the end"))
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == token_limit(500) == 252
    assert brain.shown[-1].endswith(" first the end")
    assert brain.shown[0] == "rules"
    template = fake.template(fake.models[0])
    assert template.tokenizer.count(brain.shown[-1]) < 252


@pytest.mark.parametrize("stream", [True, False])
def test_the_native_path_refuses_when_the_last_message_does_not_fit(stream: bool) -> None:
    with OllamaFake([FakeModel("fake-model", 500, native=True)]) as fake:
        response = ask(fake, user("old"), LONG, stream=stream)
        error = response.json()["error"]
        size = fake.count(body(LONG))
        assert (response.status_code, error["type"], error["code"]) == (400, "invalid_request_error", None)
        inner = orjson.loads(error["message"])["error"]
        assert (inner["type"], inner["n_prompt_tokens"], inner["n_ctx"]) == (
            "exceed_context_size_error",
            size,
            500,
        )
        native = fetch("POST", fake.url + "/api/chat", json=body(LONG))
        assert orjson.loads(native.json()["error"])["error"] == inner
        assert fake.overflows == 2


def test_the_native_path_drops_messages_too() -> None:
    with OllamaFake([FakeModel("fake-model", 500, native=True)]) as fake:
        assert ask(fake, LONG, user("short"), max_tokens=1).status_code == 200
        assert (fake.cuts, fake.overflows) == (1, 0)


def test_a_full_window_shifts_silently_up_to_ten_windows() -> None:
    with OllamaFake(window=100) as fake:
        events = chunks(ask(fake, stream=True, max_tokens=300).content)
        assert finishes(events) == ["length"]
        assert len(text(events).split()) == 150
        assert fake.shifts == 1
        assert ask(fake).json()["usage"]["completion_tokens"] == 1000


@pytest.mark.parametrize("by_model", [True, False])
def test_without_shift_it_stops(by_model: bool) -> None:
    model = FakeModel("fake-model", 100, shifts=False if by_model else None)
    with OllamaFake([model], context_shift=by_model) as fake:
        assert ask(fake).json()["usage"]["total_tokens"] == 100


@pytest.mark.parametrize(("prefill", "said"), [("new", "w3"), ("continue", " w3"), ("echo", "w1 w2 w3")])
def test_a_trailing_answer(walking: OllamaFake, prefill: Any, said: str) -> None:
    walking.models[0].prefill = prefill
    assert text(chunks(ask(walking, *PARTIAL, stream=True, max_tokens=2).content)) == said


def test_shape_of_a_stream(walking: OllamaFake) -> None:
    response = ask(walking, stream=True, max_tokens=2, max_completion_tokens=1)
    events = chunks(response.content)
    assert deltas(events) == [{"role": "assistant", "content": ""}, {"content": "w"}, {"content": "1"}, {}]
    assert {event["system_fingerprint"] for event in events} == {"fp_ollama"}
    assert events[0]["id"].startswith("chatcmpl-")


def test_calls_come_whole() -> None:
    reply = Reply(tool_calls=[ToolCall("look", '{"at": "there"}'), ToolCall("go", '{"to": "x"}')])
    with OllamaFake(brain=scripted([reply] * 3)) as fake:
        events = chunks(ask(fake, stream=True).content)
        pieces = [delta["tool_calls"] for delta in deltas(events) if "tool_calls" in delta]
        assert [len(piece) for piece in pieces] == [1, 1]
        assert [call["arguments"] for call in tool_calls(events)] == ['{"at": "there"}', '{"to": "x"}']
        cut = ask(fake, max_tokens=6).json()["choices"][0]
        assert (cut["finish_reason"], "tool_calls" in cut["message"]) == ("length", False)
        native = lines(fetch("POST", fake.url + "/api/chat", json=body()).content)
        called = [line["message"]["tool_calls"] for line in native if "tool_calls" in line.get("message", {})]
        assert called[0] == [{"function": {"name": "look", "arguments": {"at": "there"}}}]
        assert native[-1]["done_reason"] == "stop"


def test_an_error_in_mid_stream_is_an_empty_chunk() -> None:
    with OllamaFake(brain=scripted([Reply(text="one two", error="oh", after=1)] * 2)) as fake:
        content = ask(fake, stream=True).content
        last = chunks(content)[-1]
        assert (last["model"], last["choices"][0]["delta"]["content"]) == ("", "")
        assert b"[DONE]" not in content
        native = lines(fetch("POST", fake.url + "/api/chat", json=body()).content)
        assert native[-1] == {"error": "oh"}


def test_what_it_refuses(fake: OllamaFake) -> None:
    fake.models[0].tools = False
    refused = ask(fake, tools=[{"type": "function", "function": {"name": "f"}}])
    assert refused.json()["error"] == {
        "message": "fake-model does not support tools",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    assert "does not support thinking" in ask(fake, reasoning_effort="high").json()["error"]["message"]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    broken = ask(fake, user("a"), {"role": "assistant", "content": "", "tool_calls": [call]}, user("b"))
    assert broken.json()["error"]["message"] == "invalid tool call arguments"
    assert ask(fake, model="other").status_code == 404
    assert fetch("POST", fake.url + "/api/chat", json={"model": "other"}).json() == {
        "error": "model 'other' not found"
    }
    assert fetch("GET", fake.url + "/api/chat").status_code == 405
    assert fetch("GET", fake.url + "/props").status_code == 404


def test_a_foreign_host_is_forbidden(fake: OllamaFake) -> None:
    for host, status in (("example.com", 403), ("box.local", 200), ("localhost:1", 200)):
        assert fetch("GET", fake.url + "/api/version", headers={"host": host}).status_code == status


def test_parts_become_messages(fake: OllamaFake, brain: Listening) -> None:
    ask(fake, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
    assert brain.shown == ["a", "b"]


def test_what_it_tells_of_itself() -> None:
    models = [
        FakeModel("one", 4096, 32768, loaded=False, num_ctx=2048),
        FakeModel("two:7b", 4096, 8192, tools=False),
    ]
    with OllamaFake(models) as fake:
        assert get(fake, "/api/version") == {"version": "0.33.0"}
        tags = {entry["name"]: entry for entry in get(fake, "/api/tags")["models"]}
        assert tags["one:latest"]["details"]["context_length"] == 32768
        assert "tools" not in tags["two:7b"]["capabilities"]
        shown = post(fake, "/api/show", {"model": "one"})
        assert shown["model_info"]["llama.context_length"] == 32768
        assert shown["parameters"].split("\n")[0].split() == ["num_ctx", "2048"]
        assert [entry["name"] for entry in get(fake, "/api/ps")["models"]] == ["two:7b"]
        assert ask(fake, model="one", max_tokens=1).status_code == 200
        loaded = {entry["name"]: entry["context_length"] for entry in get(fake, "/api/ps")["models"]}
        assert loaded == {"one:latest": 2048, "two:7b": 4096}
        assert [entry["id"] for entry in get(fake, "/v1/models")["data"]] == ["one:latest", "two:7b"]
        assert get(fake, "/v1/models/one")["owned_by"] == "library"
        assert fetch("GET", fake.url + "/").text == "Ollama is running"
        assert fetch("HEAD", fake.url + "/").status_code == 200


def test_the_native_window_is_a_matter_of_the_request(fake: OllamaFake) -> None:
    fits = {**body(LONG), "stream": False}
    assert post(fake, "/api/chat", fits)["prompt_eval_count"] == token_limit(500)
    assert post(fake, "/api/chat", {**fits, "options": {"num_ctx": 2000}})["prompt_eval_count"] == fake.count(
        body(LONG)
    )
    assert get(fake, "/api/ps")["models"][0]["context_length"] == 2000
    assert fake.reloads == 1
    refused = fetch(
        "POST", fake.url + "/api/chat", json={**fits, "truncate": False, "options": {"num_ctx": 100}}
    )
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("the prompt is longer than the context length")


def test_native_chat_and_generate(walking: OllamaFake) -> None:
    response = fetch("POST", walking.url + "/api/chat", json={**body(), "options": {"num_predict": 4}})
    assert response.headers["content-type"] == "application/x-ndjson"
    made = lines(response.content)
    assert "".join(line["message"]["content"] for line in made) == "w1 w2"
    assert (made[-1]["done"], made[-1]["done_reason"], made[-1]["eval_count"]) == (True, "length", 4)
    request = {"model": "fake-model", "prompt": "w1", "options": {"num_predict": 2}, "stream": False}
    assert post(walking, "/api/generate", request)["response"] == "w2"
    rendered = post(
        walking, "/api/chat", {**body(user("hello")), "stream": False, "_debug_render_only": True}
    )
    assert "hello" in rendered["_debug_info"]["rendered_template"]
    assert post(walking, "/api/chat", {"model": "fake-model"})["done_reason"] == "load"


def test_native_thinking() -> None:
    with OllamaFake(brain=scripted([Reply(text="so", reasoning="hm")])) as fake:
        made = post(fake, "/api/chat", {**body(), "stream": False})
        assert (made["message"]["thinking"], made["message"]["content"]) == ("hm", "so")


def test_the_rest(fake: OllamaFake) -> None:
    assert len(post(fake, "/api/embed", {"model": "fake-model", "input": ["a", "b"]})["embeddings"]) == 2
    assert post(fake, "/api/embeddings", {"model": "fake-model", "prompt": "a"})["embedding"]
    pulled = lines(fetch("POST", fake.url + "/api/pull", json={"model": "x"}).content)
    assert pulled[-1] == {"status": "success"}
    blob = b"\x00\x01" * 5000
    path = f"{fake.url}/api/blobs/sha256:{hashlib.sha256(blob).hexdigest()}"
    assert fetch("POST", path, content=blob).status_code == 201
    assert fetch("POST", path, content=b"other").status_code == 400


def test_text_completions_carry_zero_usage_until_the_end(walking: OllamaFake) -> None:
    request = {"model": "fake-model", "prompt": "a", "max_tokens": 2, "stream": True}
    options = {"stream_options": {"include_usage": True}}
    events = chunks(fetch("POST", walking.url + "/v1/completions", json=request | options).content)
    assert events[0]["usage"]["prompt_tokens"] == 0
    assert events[-1]["usage"]["completion_tokens"] == 2


def test_the_status_line_comes_with_the_first_token(walking: OllamaFake) -> None:
    walking.brain = scripted([Reply(text="one", cut=True)])
    with pytest.raises(Exception, match="disconnected"):
        fetch("POST", walking.url + CHAT, json=body(stream=True))
    assert walking.requests[-1].status == 0

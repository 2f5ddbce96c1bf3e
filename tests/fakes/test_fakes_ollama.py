"""Ollama's own ways, over `/v1` and over its native API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.fakes import FakeModel, OllamaFake, Question, Reply
from tests.fakes.ollama_cut import token_limit
from tests.fakes.reading import chunks, finishes, text
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
    history = [system("rules"), user("a " * 300), assistant("b " * 300), user("c " * 300), assistant("d"), user("e")]
    response = ask(fake, *history)
    assert response.status_code == 200
    assert brain.shown == ["rules", "c " * 300, "d", "e"]
    assert (fake.cuts, fake.overflows) == (1, 0)
    kept = [history[0], *history[3:]]
    assert response.json()["usage"]["prompt_tokens"] == fake.count(body(*kept))


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
        assert (inner["type"], inner["n_prompt_tokens"], inner["n_ctx"]) == ("exceed_context_size_error", size, 500)
        native = fetch("POST", fake.url + "/api/chat", json=body(LONG))
        assert orjson.loads(native.json()["error"])["error"] == inner
        assert fake.overflows == 2


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


def test_what_it_tells_of_itself() -> None:
    models = [FakeModel("one", 4096, 32768, loaded=False, num_ctx=2048), FakeModel("two:7b", 4096, 8192, tools=False)]
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
    refused = fetch("POST", fake.url + "/api/chat", json={**fits, "truncate": False, "options": {"num_ctx": 100}})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("the prompt is longer than the context length")

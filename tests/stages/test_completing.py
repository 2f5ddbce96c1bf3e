"""Going on with a text (`/v1/completions`): through the whole proxy, in front of backends with a real window."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from proxy.settings import BackendSetting
from tests.fakes import FAKES, GenericFake, LlamaCppFake, Reply, walk, words
from tests.fakes.model import FakeModel, Question
from tests.proxying import Proxy, running_proxy

MODEL = "fake-model"
both = pytest.mark.parametrize("streamed", [False, True])


def ask(proxy: Proxy, prompt: Any, *, streamed: bool, **more: Any) -> httpx.Response:
    return proxy.client.post(
        "/v1/completions", json={"model": MODEL, "prompt": prompt, "stream": streamed, **more}
    )


def told(response: httpx.Response) -> tuple[str, str | None, dict[str, Any] | None]:
    """The text, the reason for its end, and the usage."""
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        whole = response.json()
        (choice,) = whole["choices"]
        return choice["text"], choice["finish_reason"], whole["usage"]
    *frames, mark, rest = response.text.split("\n\n")
    assert (mark, rest) == ("data: [DONE]", "")
    chunks = [json.loads(each.removeprefix("data: ")) for each in frames]
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(reasons) == 1
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return "".join(choice["text"] for choice in choices), reasons[0], usage[-1] if usage else None


def going_on(question: Question) -> Reply:
    """Counts on from the last number of the text, as a base model would."""
    last = int(str(question.messages[-1]["content"]).split()[-1])
    return Reply(text=(f" {number}" for number in range(last + 1, 1_000_000)), exact=True)


def numbers(first: int, last: int) -> str:
    return " ".join(map(str, range(first, last + 1)))


@pytest.mark.parametrize("kind", FAKES)
@both
def test_a_short_text_goes_on(kind: str, streamed: bool) -> None:
    with FAKES[kind](brain=walk(last=8)) as fake, running_proxy(fake) as proxy:
        text, reason, usage = told(
            ask(
                proxy,
                "Once upon a time",
                streamed=streamed,
                max_tokens=50,
                stream_options={"include_usage": True},
            )
        )
        assert (text, reason) == (words(1, 8), "stop")
        assert usage is not None
        assert usage["completion_tokens"] > 0
        (sent,) = [request for request in fake.requests if request.path.endswith("/completions")]
        assert sent.json["prompt"] == "Once upon a time"


@both
def test_usage_is_told_to_those_who_want_it(streamed: bool) -> None:
    with LlamaCppFake(brain=walk(last=8)) as fake, running_proxy(fake) as proxy:
        _, _, usage = told(ask(proxy, "Once", streamed=streamed))
        assert (usage is None) is streamed


@both
def test_of_a_text_beyond_the_window_the_end_is_gone_on_with(streamed: bool) -> None:
    text = "\n".join(f"{number}. It was a dark and stormy night." for number in range(600))
    with (
        LlamaCppFake([FakeModel(MODEL, window=2048)], brain=walk(last=8)) as fake,
        running_proxy(fake) as proxy,
    ):
        response = ask(proxy, text, streamed=streamed, max_tokens=100)
        assert told(response)[:2] == (words(1, 8), "stop")
        assert response.headers["x-spillway-action"] == "trimmed"
        (sent,) = [request for request in fake.requests if request.path == "/v1/completions"]
        assert text.endswith(sent.json["prompt"])
        assert len(sent.json["prompt"]) > len(text) // 6
        assert sent.json["prompt"].split(".")[0].isdecimal()  # a whole line
        # A longer one begins at the same place, so that the backend has it cached.
        ask(proxy, f"{text} And then", streamed=streamed, max_tokens=100)
        again = [request for request in fake.requests if request.path == "/v1/completions"][-1]
        assert again.json["prompt"] == sent.json["prompt"] + " And then"
        assert fake.overflows == 0


@both
def test_an_answer_goes_on_when_the_window_is_full(streamed: bool) -> None:
    with (
        LlamaCppFake([FakeModel(MODEL, window=1024)], brain=going_on) as fake,
        running_proxy(fake) as proxy,
    ):
        asked = {"max_tokens": 2500, "stream_options": {"include_usage": True}}
        text, reason, usage = told(ask(proxy, "Count: 1", streamed=streamed, **asked))
        made = [int(each) for each in text.split()]
        assert made == list(range(2, len(made) + 2))
        assert usage is not None
        assert usage["completion_tokens"] == 2500
        assert usage["total_tokens"] == usage["prompt_tokens"] + 2500
        assert reason == "length"
        sent = [request.json for request in fake.requests if request.path == "/v1/completions"]
        assert len(sent) > 2
        assert sent[1]["max_tokens"] < 2500
        assert fake.overflows == 0


@both
def test_an_answer_that_the_client_bounds_ends_there(streamed: bool) -> None:
    with LlamaCppFake(brain=going_on) as fake, running_proxy(fake) as proxy:
        text, reason, _ = told(ask(proxy, "Count: 1", streamed=streamed, max_tokens=20))
        assert reason == "length"
        assert text.split()[0] == "2"
        assert len([request for request in fake.requests if request.path == "/v1/completions"]) == 1


@both
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "def add(a, b):\n", "suffix": "\n\nadd(1, 2)"},
        {"prompt": "<|fim_prefix|>def add(<|fim_suffix|>): pass<|fim_middle|>"},
        {"prompt": "<PRE> def <SUF> x <MID>"},
        {"prompt": "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"},
        {"prompt": ["one", "two"]},
        {"prompt": [1, 2, 3]},
        {"prompt": "x", "n": 2},
        {"prompt": "x", "echo": True},
        {"prompt": "x", "logprobs": 3},
    ],
)
def test_what_is_for_the_backend_alone_passes_as_it_came(streamed: bool, body: dict[str, Any]) -> None:
    with LlamaCppFake(brain=walk(last=8)) as fake, running_proxy(fake) as proxy:
        raw = json.dumps({"model": MODEL, "stream": streamed, **body}).encode()
        response = proxy.client.post("/v1/completions", content=raw)
        assert response.status_code == 200
        (sent,) = [request for request in fake.requests if request.path == "/v1/completions"]
        assert sent.body == raw


@both
def test_an_infill_that_does_not_fit_is_refused_in_the_backends_words(streamed: bool) -> None:
    with LlamaCppFake([FakeModel(MODEL, window=512)]) as fake, running_proxy(fake) as proxy:
        response = ask(proxy, "x = 1\n" * 2000, streamed=streamed, suffix="y")
        assert response.status_code == 400
        assert "exceeds the available context size" in response.text
        assert len([request for request in fake.requests if request.path == "/v1/completions"]) == 1


def test_a_window_that_leaves_no_room_for_a_prompt_is_refused_with_the_figures() -> None:
    with LlamaCppFake([FakeModel(MODEL, window=24)]) as fake, running_proxy(fake) as proxy:
        response = ask(proxy, "word " * 1000, streamed=False, max_tokens=5000)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (
            400,
            "context_length_exceeded",
            "prompt",
        )
        assert (error["n_ctx"], error["n_prompt_tokens"] > 900) == (24, True)
        assert [request for request in fake.requests if request.path == "/v1/completions"] == []


@both
def test_errors_of_the_backend_are_told(streamed: bool) -> None:
    with LlamaCppFake(brain=walk(last=8)) as fake, running_proxy(fake) as proxy:
        ask(proxy, "x", streamed=streamed)
        refused = proxy.client.post("/v1/completions", content=b"{")
        assert refused.status_code == 400
        fake.stop()
        assert ask(proxy, "x", streamed=streamed).status_code == 502


def test_of_an_unknown_window_or_unmanaged_it_passes_as_it_came() -> None:
    with GenericFake(brain=walk(last=8)) as fake:
        for managed in (True, False):
            with running_proxy(BackendSetting(url=fake.url, name="b", managed=managed)) as proxy:
                raw = json.dumps({"model": MODEL, "prompt": "word " * 500}).encode()
                assert proxy.client.post("/v1/completions", content=raw).status_code == 200
                assert fake.requests[-1].body == raw


@pytest.mark.parametrize("path", ["/completions", "/api/v1/completions", "/v1/completions/"])
def test_every_spelling_is_managed(path: str) -> None:
    with (
        LlamaCppFake([FakeModel(MODEL, window=1024)], brain=walk(last=4)) as fake,
        running_proxy(fake) as proxy,
    ):
        response = proxy.client.post(path, json={"model": MODEL, "prompt": "word " * 5000, "max_tokens": 50})
        assert response.headers["x-spillway-action"] == "trimmed"

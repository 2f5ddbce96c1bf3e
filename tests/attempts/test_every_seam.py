"""Every seam over the real HTTP stack: every kind of backend, every way it goes on, one to four resumes."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from proxy.core.jsontext import dumps
from tests.attempts.test_resuming import joined_calls
from tests.fakes import FAKES, Brain, FakeBackend, FakeModel, Question, Reply, ToolCall, summariser, walk, words
from tests.proxying import read_stream, running_proxy

pytestmark = [pytest.mark.slow, pytest.mark.rows(6)]

WINDOW = 1024
LENGTHS = {1: 650, 2: 1050, 3: 1350, 4: 1650}
"""Words of an answer that takes so many resumes, or more where the window is only guessed at."""
BOUND = 20_000
"""More tokens than any of these answers has: a client that sets no bound gets three resumes at most."""


def build(kind: str, brain: Brain, model: dict[str, Any] | None = None, **options: Any) -> FakeBackend:
    return FAKES[kind]([FakeModel("m", WINDOW, **model or {})], summariser(brain), **options)


def in_front_of(fake: FakeBackend) -> Any:
    return running_proxy(fake, models={"m": {"window": WINDOW}} if fake.kind == "generic" else {})


def body(stream: bool, asked: str = "go") -> dict[str, Any]:
    history = [{"role": "user", "content": asked}]
    return {"model": "m", "stream": stream, "max_tokens": BOUND, "messages": history}


def said(answer: httpx.Response, stream: bool) -> str:
    assert answer.status_code == 200, answer.content
    if stream:
        seen = read_stream(answer.content)
        assert (len(seen.ids), seen.finishes, seen.done, seen.errors) == (1, ["stop"], 1, [])
        return seen.text
    (choice,) = answer.json()["choices"]
    assert (choice["finish_reason"], choice["message"]["role"]) == ("stop", "assistant")
    text = choice["message"]["content"]
    assert isinstance(text, str)
    return text


def attempts(fake: FakeBackend) -> int:
    return sum("summar" not in str(request.json["messages"][-1]["content"]).lower() for request in fake.chats())


# Streamed and whole share the road: each kind is tried in either, each length in one of them.
@pytest.mark.parametrize(
    ("kind", "stream", "resumes"),
    [(kind, (n + resumes) % 2 == 0, resumes) for n, kind in enumerate(FAKES) for resumes in LENGTHS],
)
def test_every_kind(kind: str, stream: bool, resumes: int) -> None:
    last = LENGTHS[resumes]
    with build(kind, walk(last=last)) as fake, in_front_of(fake) as proxy:
        # The length of the question moves the seams along.
        text = said(proxy.chat(body(stream, "go" + " on" * resumes)), stream)
        assert text == words(1, last)
        assert attempts(fake) > resumes


PREFILLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((kind, {"prefill": how}, {}) for kind in ("lmstudio", "openrouter") for how in ("new", "echo", "refuse")),
    *(("ollama", {"prefill": how}, {}) for how in ("continue", "new", "echo")),
    ("llamacpp", {}, {"prefill_assistant": False}),
    ("vllm", {"template_drops_last": True}, {}),
    ("vllm", {}, {"strips_prefix": False}),
]


@pytest.mark.parametrize(("kind", "model", "options", "stream"), [(*row, n % 2 == 0) for n, row in enumerate(PREFILLS)])
def test_every_prefill(kind: str, model: dict[str, Any], options: dict[str, Any], stream: bool) -> None:
    with build(kind, walk(last=1350), model, **options) as fake, in_front_of(fake) as proxy:
        assert said(proxy.chat(body(stream)), stream) == words(1, 1350)
        assert attempts(fake) > 3


@pytest.mark.parametrize(
    ("kind", "prefill"),
    [("generic", None), ("lmstudio", "refuse"), *((kind, "new") for kind in ("lmstudio", "ollama", "openrouter"))],
)
def test_a_model_that_repeats_its_last_words_in_a_new_turn(kind: str, prefill: str | None, stream: bool) -> None:
    fake = build(kind, walk(last=1200, overlap=8), {"prefill": prefill})
    with fake, in_front_of(fake) as proxy:
        assert said(proxy.chat(body(stream)), stream) == words(1, 1200)


SHAPES: list[dict[str, Any]] = [
    {"tokens_per_chunk": 7}, {"finish_with_content": True}, {"finish_with_content": True, "double_finish": True},
    {"comment_every": 3, "comments": 2}, {"hangs_up": True, "late_headers": True}, {"first_delta": None, "usage_always": True},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", FAKES)
def test_every_shape_of_stream(kind: str, shape: dict[str, Any]) -> None:
    with build(kind, walk(last=950), **shape) as fake, in_front_of(fake) as proxy:
        seen = read_stream(proxy.chat(body(True)).content)
        assert seen.text == words(1, 950)
        assert (len(seen.ids), seen.finishes, seen.done, seen.errors) == (1, ["stop"], 1, [])


# -- attempts that fail


def failing(at: str, how: dict[str, Any]) -> Brain:
    """Walks, but the first attempt, or each later one, fails after twenty words, or before any."""

    def brain(question: Question) -> Reply:
        reply = walk(last=1200)(question)
        later = len(question.messages) > 1 or bool(question.prefix)
        return replace(reply, **how) if later is (at == "later") else reply

    return brain


FAILURES: dict[str, dict[str, Any]] = {
    "an error frame": {"error": "boom", "after": 20},
    "an error frame at once": {"error": "boom"},
    "a cut": {"cut": True, "after": 20},
    "a cut at once": {"cut": True},
    "nothing": {"raw": [b""]},
    "a comment": {"raw": [b": ping\n\n"]},
    "a first chunk": {"raw": [b'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n']},
}


# Each failure on each kind, and in each place on some of the kinds.
PLACES = ["first", "later", "whole"]
PLACED = [(kind, PLACES[(n + m) % 3], failure) for n, kind in enumerate(FAKES) for m, failure in enumerate(FAILURES)]


@pytest.mark.parametrize(("kind", "at", "failure"), [each for each in PLACED if each[1] != "whole"])
def test_a_failure_keeps_what_was_said(kind: str, at: str, failure: str) -> None:
    """With status 200 there is nothing but the stream to tell it in: an error object, and a good end."""
    with build(kind, failing(at, FAILURES[failure]), late_headers=False) as fake, in_front_of(fake) as proxy:
        answer = proxy.chat(body(True))
        assert answer.status_code == 200
        seen = read_stream(answer.content)
        assert words(1, 1200).startswith(seen.text)
        assert len(seen.text.split()) >= (300 if at == "later" else 10 if "after" in FAILURES[failure] else 0)
        assert len(seen.errors) == 1
        assert seen.errors[0].get("message") if isinstance(seen.errors[0], dict) else seen.errors[0]
        assert (seen.finishes, seen.done) == ([], 1)
        assert len(seen.ids) <= 1
        assert all(event["data"]["done"] for event in seen.events[-1:])


@pytest.mark.parametrize(("kind", "failure"), [(kind, failure) for kind, at, failure in PLACED if at == "whole"])
def test_a_failure_of_a_later_attempt_keeps_what_was_said_of_a_whole_answer(kind: str, failure: str) -> None:
    with build(kind, failing("later", FAILURES[failure]), late_headers=False) as fake, in_front_of(fake) as proxy:
        answer = proxy.chat(body(False))
        assert answer.status_code == 200
        (choice,) = answer.json()["choices"]
        text = choice["message"]["content"]
        assert words(1, 1200).startswith(text)
        assert len(text.split()) >= 300
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("bound", [BOUND, None])
def test_a_call_that_never_fits_is_not_asked_for_without_end(bound: int | None) -> None:
    """Under a bound of the client's, what is discarded uses up neither that nor the resumes: it went on for ever."""
    asked: list[Question] = []

    def brain(question: Question) -> Reply:
        asked.append(question)
        if len(asked) > 20:
            return Reply(text="Enough.")
        return Reply(tool_calls=[ToolCall("write_file", dumps({"text": "word " * 3000}).decode())])

    function = {"name": "write_file", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    with build("llamacpp", brain) as fake, in_front_of(fake) as proxy:
        answer = proxy.chat({**body(True), "tools": tools, "max_tokens": bound})
        seen = read_stream(answer.content)
        assert joined_calls(answer.content) == []
        assert (seen.finishes, seen.done, seen.errors) == (["length"], 1, [])
        assert len(asked) <= 5

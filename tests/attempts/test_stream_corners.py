"""Corners of answers through the whole proxy: broken bodies, refusals inside streams, calls that never fit."""

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.flights import Flights
from proxy.job import Job
from tests.attempts.test_resuming import history
from tests.attempts.test_tools import CALL, WEATHER
from tests.attempts.test_whole import choice, whole
from tests.fakes import FAKES, FakeModel, LlamaCppFake, OpenRouterFake, Question, Reply, summariser, walk, words
from tests.fakes.model import Provider
from tests.proxying import read_stream, running_proxy
from tests.rawbackend import SSE, Call, RawBackend, answering, raw_backend, replying
from tests.stream.support import DONE, ending, frame, opening, said, usage
from tests.stream.support import words as words_of

pytestmark = pytest.mark.slow

GO = [{"role": "user", "content": "go"}]


BROKEN = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: 500\r\n"
    b'connection: close\r\n\r\n{"error": {"mess'
)
"""An error whose body breaks off."""


FULL = "".join(f" w{n}" for n in range(300))


def full(*, stream: bool) -> bytes:
    """A response with `FULL` that the window ended."""
    counts = {"prompt_tokens": 724, "completion_tokens": 300, "total_tokens": 1024}
    if not stream:
        return answering(whole(choice({"role": "assistant", "content": FULL}, "length"), usage=counts))
    return SSE + opening() + b"".join(map(said, words_of(FULL))) + ending("length") + usage(724, 300) + DONE


def rest(name: str = "two") -> bytes:
    return opening(name=name) + said(" and the end.", name=name) + ending(name=name) + usage(500, 3, name=name) + DONE


MODELS = {"m": {"window": 1024}}


def test_an_error_whose_body_breaks_off_is_an_error_of_the_backend() -> None:
    with replying(BROKEN) as backend, running_proxy(backend.setting, models=MODELS) as proxy:
        answer = proxy.chat({"model": "m", "stream": True, "messages": GO})
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] != "server_error" or "Spillway failed" not in answer.text


def uncancellable(window: int, brain: Any) -> OpenRouterFake:
    return OpenRouterFake(
        [FakeModel("maker/m", window, providers=(Provider("Groq", window),))], summariser(brain), cancels=False
    )


def test_what_cannot_be_resumed_is_not_bounded() -> None:
    """A provider that can't be cancelled, and an answer in a format: it may run to the window's end."""
    with uncancellable(2048, walk(last=400)) as fake, running_proxy(fake) as proxy:
        proxy.chat({"model": "maker/m", "stream": True, "messages": GO, "response_format": {"type": "json_object"}})
        assert "max_tokens" not in fake.chats()[-1].json


def test_a_bound_holds_for_an_answer_whose_prompt_was_refused_inside_the_stream() -> None:
    refusal = frame({"error": {"message": "prompt is too long: 1900 tokens > 2048 maximum", "code": 400}}) + DONE
    refused: list[Question] = []
    goes_on = walk(last=1500)

    def brain(question: Question) -> Reply:
        if not refused:
            refused.append(question)
            return Reply(raw=[refusal])
        return goes_on(question)

    history = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 80} for n in range(8)]
    with uncancellable(2048, brain) as fake, running_proxy(fake) as proxy:
        seen = read_stream(proxy.chat({"model": "maker/m", "stream": True, "messages": [*history, *GO]}).content)
        assert (seen.finishes, seen.done) == (["stop"], 1), len(seen.text.split())


def test_usage_of_a_whole_answer_counts_attempts_that_reported_none() -> None:
    more = opening(name="two") + b"".join(said(f" v{n}", name="two") for n in range(100)) + ending(name="two") + DONE
    with replying(full(stream=False), SSE + more) as backend, running_proxy(backend.setting, models=MODELS) as proxy:
        answer = proxy.chat({"model": "m", "messages": GO}).json()
        # The bound may have cut the last word, so that is taken back, and its token with it.
        last = " ".join(f"v{n}" for n in range(100))
        assert answer["choices"][0]["message"]["content"] == f"{FULL.removesuffix(' w299')} {last}"
        assert answer["usage"]["completion_tokens"] == 399


@pytest.mark.anyio
async def test_who_comes_while_an_abandoned_compaction_is_being_cancelled_gets_one_of_his_own() -> None:
    """A user presses Stop and sends again at once."""
    unwound, started = asyncio.Event(), 0
    summaries: Any = SimpleNamespace(may_work_ahead=lambda *_: True)
    flights = Flights(summaries)

    async def run(_: Job) -> Any:
        nonlocal started
        started += 1
        if started > 1:
            return "done"
        try:
            await asyncio.Event().wait()
        finally:
            await unwound.wait()  # closing a connection, releasing a claim in Redis
        return "never"

    job: Any = SimpleNamespace(prompt=None, progress=None)
    job.settings, job.route = SimpleNamespace(ahead="auto", read_timeout=9.0), SimpleNamespace(upstream=None)
    first = asyncio.ensure_future(flights.join("key", job, run, 9.0))
    for _ in range(3):
        await asyncio.sleep(0)
    first.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    second = asyncio.ensure_future(flights.join("key", job, run, 9.0))
    for _ in range(3):
        await asyncio.sleep(0)
    unwound.set()
    done: Any = await asyncio.gather(first, second, return_exceptions=True)
    assert done[1] == "done"


def test_an_answer_in_one_piece_is_not_shown_as_an_error_inside_the_open_stream() -> None:
    """A backend that ignores `stream`, slower than the grace."""

    def slow(_: RawBackend, call: Call) -> None:
        time.sleep(0.1)
        call.send(answering(whole(choice({"role": "assistant", "content": "Hello."}))))

    with raw_backend(slow) as backend, running_proxy(backend.setting, models=MODELS, grace=0.01) as proxy:
        seen = read_stream(proxy.chat({"model": "m", "stream": True, "messages": GO}).content)
        assert (seen.errors, seen.text) == ([], "Hello.")


def between_tags(question: Question) -> Reply:
    """Thinks 700 words in front of its answer, as text; goes on where it is told to, or thinks anew."""
    inner = walk(last=700)(question)
    if question.prefix:
        return Reply(text=itertools.chain(inner.text, ["\n</think>\n\nDone."]))
    return Reply(text=itertools.chain(["<think>"], inner.text, ["\n</think>\n\nDone."]))


@pytest.mark.parametrize("kind", ["lmstudio", "llamacpp", "vllm"])
def test_thinking_between_tags_that_is_truly_gone_on_with(kind: str) -> None:
    fake = FAKES[kind]([FakeModel("m", 1024, prefill="continue")], summariser(between_tags))
    with fake, running_proxy(fake) as proxy:
        seen = read_stream(proxy.chat({"model": "m", "stream": True, "messages": GO, "max_tokens": 5000}).content)
        assert seen.text == "<think>" + words(1, 700) + "\n</think>\n\nDone."


def test_an_answer_that_the_client_began_rules_no_continuation_out_for_others() -> None:
    """llama.cpp refuses two assistant messages at the end, which says nothing of its model."""
    with LlamaCppFake([FakeModel("m", 1024)], summariser(walk(last=700))) as fake, running_proxy(fake) as proxy:
        begun = [*GO, {"role": "assistant", "content": "w1 w2"}]
        proxy.chat({"model": "m", "stream": True, "messages": begun, "max_tokens": 5000})
        before = len(fake.chats())
        proxy.chat({"model": "m", "stream": True, "messages": GO, "max_tokens": 5000})
        assert any(chat.json.get("continue_final_message") for chat in fake.chats()[before:])


@pytest.mark.parametrize("kind", ["lmstudio", "openrouter"])
@pytest.mark.parametrize("bound", [None, 20_000])
@pytest.mark.parametrize("before", ["", "I look. "])
@pytest.mark.rows(2)
def test_an_emulated_call_that_never_fits_is_given_up(before: str, bound: int | None, kind: str) -> None:
    """On OpenRouter each of these requests is billed."""
    endless = before + CALL.replace("Paris", "Paris" + " word" * 8000)
    asked: list[Question] = []

    def brain(question: Question) -> Reply:
        asked.append(question)
        return Reply(text="Enough." if len(asked) > 20 else endless.removeprefix(question.prefix))

    model = FakeModel("maker/m", 2048, tools=False, providers=(Provider("Groq", 2048, tools=False),))
    body: dict[str, Any] = {"model": "maker/m", "messages": history(150, 2), "tools": [WEATHER], "stream": True}
    if bound is not None:
        body["max_tokens"] = bound
    off = {"models": {"maker/m": {"tools": False}}}
    with FAKES[kind]([model], summariser(brain)) as fake, running_proxy(fake, **off) as proxy:
        read_stream(proxy.chat(body).content)
        assert len(asked) <= 6

"""Corners of answers through the whole proxy: broken bodies, refusals inside streams, calls that never fit."""

from __future__ import annotations

import asyncio
import itertools
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from proxy.attempts.client import ClientStream
from proxy.compactor import Compactor
from proxy.core.jsontext import dumps, loads
from proxy.core.piece import Identity
from proxy.core.settings import BackendSetting
from proxy.dialects.chat.writing import ChatWriter
from proxy.exchange import Exchange
from tests.attempts.test_resuming import history, joined_calls
from tests.attempts.test_tools import ASK, CALL, EMULATED, WEATHER, says
from tests.fakes import FAKES, FakeModel, LlamaCppFake, OpenRouterFake, Question, Reply, summariser, walk, words
from tests.fakes.model import Provider
from tests.proxying import read_stream, running_proxy
from tests.stream.support import DONE, ending, frame, opening, said, usage

pytestmark = pytest.mark.slow

GO = [{"role": "user", "content": "go"}]


def sse_response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + body


def json_response(value: Any) -> bytes:
    body = dumps(value)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
        + body
    )


BROKEN = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: 500\r\n"
    b'connection: close\r\n\r\n{"error": {"mess'
)
"""An error whose body breaks off."""


@contextmanager
def raw_backend(
    answers: Sequence[bytes], *, delay: float = 0.0
) -> Iterator[tuple[BackendSetting, list[dict[str, Any]]]]:
    """A server that answers one chat request after the other with these bytes, the last one over and over."""
    bodies: list[dict[str, Any]] = []

    class Handler(socketserver.StreamRequestHandler):
        @override
        def handle(self) -> None:
            path = self.rfile.readline().split(b" ")[1]
            length = 0
            while (line := self.rfile.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = self.rfile.read(length)
            if path.endswith(b"/chat/completions"):
                bodies.append(loads(body))
                time.sleep(delay)
                self.wfile.write(answers[min(len(bodies), len(answers)) - 1])
            elif path.endswith(b"/models"):
                self.wfile.write(json_response({"object": "list", "data": [{"id": "m", "object": "model"}]}))
            else:
                self.wfile.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield (
                BackendSetting(url=f"http://127.0.0.1:{server.server_address[1]}", name="raw", kind="generic"),
                bodies,
            )
        finally:
            server.shutdown()


def full(window: int = 1024, *, name: str = "one") -> bytes:
    """A stream that the window ended."""
    text = b"".join(said(f" w{n}", name=name) for n in range(300))
    return opening(name=name) + text + ending("length", name=name) + usage(window - 300, 300, name=name) + DONE


def rest(name: str = "two") -> bytes:
    return opening(name=name) + said(" and the end.", name=name) + ending(name=name) + usage(500, 3, name=name) + DONE


MODELS = {"m": {"window": 1024}}


def test_an_error_whose_body_breaks_off_is_an_error_of_the_backend() -> None:
    with raw_backend([BROKEN]) as (setting, _), running_proxy(setting, models=MODELS) as proxy:
        answer = proxy.chat({"model": "m", "stream": True, "messages": GO})
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] != "server_error" or "Spillway failed" not in answer.text


def test_a_prompt_refused_inside_the_stream_keeps_one_identity() -> None:
    refusal = frame({"error": {"message": "prompt is too long: 900 tokens > 1024", "code": 400}}) + DONE
    history = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 60} for n in range(9)]
    summary = sse_response(
        opening() + said("The user said word many times over, and the assistant agreed.") + ending() + DONE
    )
    with (
        raw_backend([sse_response(refusal), summary, sse_response(rest())]) as (setting, _),
        running_proxy(setting, models=MODELS) as proxy,
    ):
        seen = read_stream(proxy.chat({"model": "m", "stream": True, "messages": history}).content)
        assert seen.text.endswith("the end.")
        assert (len(seen.ids), seen.roles, seen.finishes, seen.done) == (1, 1, ["stop"], 1)


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
    first = {
        "id": "one",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "w " * 300 + "x"}, "finish_reason": "length"}
        ],
        "usage": {"prompt_tokens": 724, "completion_tokens": 300, "total_tokens": 1024},
    }
    more = opening(name="two") + b"".join(said(f" w{n}", name="two") for n in range(100)) + ending(name="two") + DONE
    with (
        raw_backend([json_response(first), sse_response(more)]) as (setting, _),
        running_proxy(setting, models=MODELS) as proxy,
    ):
        answer = proxy.chat({"model": "m", "messages": GO}).json()
        # The bound may have cut the last word, so that is taken back, and its token with it.
        words = " ".join(f"w{n}" for n in range(100))
        assert answer["choices"][0]["message"]["content"] == "w " * 300 + words
        assert answer["usage"]["completion_tokens"] == 399


@pytest.mark.anyio
async def test_no_heartbeat_comes_after_the_end() -> None:
    """The timer fires just when the backend's error has come."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"method": "POST", "path": "/", "headers": []}
    exchange = Exchange(scope, None, send)  # type: ignore[arg-type]
    client = ClientStream(
        exchange, ChatWriter(), form="off", fallback=Identity("", 0, ""), extra_headers=list, grace=0.0, heartbeat=10.0
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    client.stop()
    await exchange.reply(500, [], b"{}")
    for _ in range(5):
        await asyncio.sleep(0)
    assert [message.get("body") for message in sent] == [None, b"{}"]


@pytest.mark.anyio
async def test_heartbeats_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    waiting, writes = asyncio.Event(), 0

    async def send(message: Any) -> None:
        nonlocal writes
        writes += message["type"] == "http.response.body"
        await waiting.wait()

    exchange = Exchange({"method": "POST", "path": "/", "headers": []}, None, send)  # type: ignore[arg-type]
    exchange.started = True
    writer, own = ChatWriter(), Identity("", 0, "")
    client = ClientStream(exchange, writer, form="off", fallback=own, extra_headers=list, grace=0.0, heartbeat=1e-6)
    client._last -= 1.0
    for _ in range(200):
        await asyncio.sleep(0)
    client.stop()
    waiting.set()
    assert writes == 1


@pytest.mark.anyio
async def test_who_comes_while_an_abandoned_compaction_is_being_cancelled_gets_one_of_his_own() -> None:
    """A user presses Stop and sends again at once."""
    unwound, started = asyncio.Event(), 0
    summaries: Any = SimpleNamespace(wait=lambda _: 9.0, may_work_ahead=lambda *_: True)
    compactor = Compactor(counting=None, store=None, summaries=summaries, clock=lambda: 0.0)  # type: ignore[arg-type]

    async def alone(*_: Any) -> str:
        nonlocal started
        started += 1
        if started > 1:
            return "done"
        try:
            await asyncio.Event().wait()
        finally:
            await unwound.wait()  # closing a connection, releasing a claim in Redis
        return "never"

    compactor._claimed = alone  # type: ignore[assignment,method-assign]
    prompt = SimpleNamespace(links=[b"x"], history=[])
    job: Any = SimpleNamespace(scope="s", prompt=prompt, state=SimpleNamespace(progress=None), expected=None)
    job.request, job.managed = SimpleNamespace(compaction=None), SimpleNamespace(hands_over=False)
    job.settings, job.route = SimpleNamespace(ahead="auto", read_timeout=9.0), SimpleNamespace(upstream=None)
    first = asyncio.ensure_future(compactor._shared(job, None, 1, 1))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    first.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    second = asyncio.ensure_future(compactor._shared(job, None, 1, 1))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    unwound.set()
    done: Any = await asyncio.gather(first, second, return_exceptions=True)
    assert done[1] == "done"


def test_an_answer_in_one_piece_is_not_shown_as_an_error_inside_the_open_stream() -> None:
    """A backend that ignores `stream`, slower than the grace."""
    message = {"role": "assistant", "content": "Hello."}
    whole = {
        "id": "one",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    with (
        raw_backend([json_response(whole)], delay=0.6) as (setting, _),
        running_proxy(setting, models=MODELS, grace=0.1) as proxy,
    ):
        seen = read_stream(proxy.chat({"model": "m", "stream": True, "messages": GO}).content)
        assert seen.errors == []
        assert seen.text == "Hello."


def between_tags(question: Question) -> Reply:
    """Thinks 700 words in front of its answer, as text; goes on where it is told to, or thinks anew."""
    inner = walk(last=700)(question)
    if question.prefix:
        return Reply(text=itertools.chain(inner.text, ["\n</think>\n\nDone."]))
    return Reply(text=itertools.chain(["<think>"], inner.text, ["\n</think>\n\nDone."]))


@pytest.mark.parametrize("kind", ["lmstudio", "llamacpp", "vllm"])
def test_thinking_between_tags_that_is_truly_gone_on_with(kind: str) -> None:
    with (
        FAKES[kind]([FakeModel("m", 1024, prefill="continue")], summariser(between_tags)) as fake,
        running_proxy(fake) as proxy,
    ):
        seen = read_stream(proxy.chat({"model": "m", "stream": True, "messages": GO, "max_tokens": 5000}).content)
        assert seen.text == "<think>" + words(1, 700) + "\n</think>\n\nDone."


def test_an_emulated_call_before_one_that_is_corrected_reaches_the_client() -> None:
    broken = CALL.replace('"city": "Paris"', '"town": "Rome"')
    fixed = CALL.replace("Paris", "Rome")
    with (
        LlamaCppFake([FakeModel("m", 2048)], says(f"{CALL}\n{broken}", fixed)) as fake,
        running_proxy(fake, **EMULATED) as proxy,
    ):
        answer = proxy.chat({"model": "m", "messages": ASK, "tools": [WEATHER], "stream": True})
        assert [call["arguments"] for call in joined_calls(answer.content)] == ['{"city": "Paris"}', '{"city": "Rome"}']


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

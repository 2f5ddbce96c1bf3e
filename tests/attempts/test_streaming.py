"""Answers that outgrow the window go on; status, heartbeats and departures."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from proxy.attempts.client import ClientStream
from proxy.core.jsontext import dumps
from tests.fakes import (
    FAKES,
    HEADERS,
    Brain,
    FakeModel,
    Gate,
    LlamaCppFake,
    Question,
    Reply,
    asks_summary,
    scripted,
    summariser,
    wait_until,
    walk,
    words,
)
from tests.fakes.waiting import PATIENCE
from tests.histories import assistant, call, tool, user
from tests.proxying import read_stream, running_proxy
from tests.raw import asking, connected

WINDOW = 2048
GO = [{"role": "user", "content": "go"}]
KEY = {"generic": {"models": {"m": {"window": WINDOW}}}}


SENTENCE = "I am sorry for the confusion, and I will gladly help you to plan it. "


@pytest.mark.parametrize(
    ("text", "ask", "ends"),
    [
        (SENTENCE * 90, "go", True),
        (f"Of course. {SENTENCE * 90}", "go", True),
        (SENTENCE * 40, f"Write a hundred times: {SENTENCE}", False),
        (f"```\n{SENTENCE * 40}\n```", "go", False),
        ("| none | n/a | 0.00 |\n" * 150, "go", False),
        ("0, " * 900, "go", False),
        ("".join(f"Day {day}: we walk on to the next village and sleep there. " for day in range(60)), "go", False),
    ],
)
def test_an_answer_that_repeats_itself_is_ended_unless_that_was_asked_for(text: str, ask: str, ends: bool) -> None:
    model = FakeModel("m", 32_768)
    fake = LlamaCppFake([model], lambda _: Reply(text=text), tokens_per_chunk=16, delay=0.003)
    with fake, running_proxy(fake) as proxy:
        seen = read_stream(proxy.chat({"model": "m", "stream": True, "messages": [user(ask)]}).content)
        assert (seen.done, seen.errors) == (1, [])
        assert any("repeats itself" in str(event) for event in seen.events) == ends
        assert text.startswith(seen.text)
        assert (seen.text == text, seen.finishes) == ((False, ["length"]) if ends else (True, ["stop"]))


@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.rows(6)
def test_an_answer_of_more_than_two_windows(kind: str, stream: bool) -> None:
    fake = FAKES[kind]([FakeModel("m", WINDOW)], summariser(walk()))
    with fake, running_proxy(fake, **KEY.get(kind, {})) as proxy:
        body: dict[str, Any] = {"model": "m", "stream": stream, "max_tokens": 5000, "messages": GO}
        answer = proxy.chat(body)
        assert answer.status_code == 200
        if stream:
            seen = read_stream(answer.content)
            text = seen.text
            assert (len(seen.ids), seen.finishes, seen.done, seen.errors) == (1, ["length"], 1, [])
            assert [event["data"]["done"] for event in seen.events][-1] is True
        else:
            choice = answer.json()["choices"][0]
            text, usage = choice["message"]["content"], answer.json()["usage"]
            assert choice["finish_reason"] == "length"
            assert usage["spillway"]["attempts"] >= 3
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        count = len(text.split())
        assert count >= 2450
        assert words(1, count + 1).startswith(text)  # the client's bound may cut the last word
        assert fake.cuts == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.rows(2)
def test_without_a_bound_it_ends_after_so_many_windows(kind: str, shifts: bool) -> None:
    """Also where the window shifts, and the model would never come to an end; the user is told."""
    fake = FAKES[kind]([FakeModel("m", 1024, shifts=shifts)], summariser(walk()))
    models = {"models": {"m": {"window": 1024}}} if kind == "generic" else {}
    with fake, running_proxy(fake, **models) as proxy:
        seen = read_stream(proxy.chat({"model": "m", "stream": True, "messages": GO}).content)
        assert (seen.finishes, seen.done, seen.errors) == (["length"], 1, [])
        count = len(seen.text.split())
        assert words(1, count + 1).startswith(seen.text)
        assert 16 * 1024 <= 2 * count + 4 <= 17 * 1024  # a word of this model is two tokens
        assert "filled 16 windows, so it ends here" in str(seen.events[-1])


def resumed_in_vain(question: Question) -> Reply:
    """Nothing that it is asked to go on with leaves it any room."""
    if question.prefix or question.messages[-1]["role"] == "assistant":
        return Reply(text=" on", finish="length", usage={"prompt_tokens": 1015, "completion_tokens": 1})
    return Reply(text=f"# The cause\n\n{words(1, 1000)}")


def test_resumes_in_vain_end_an_answer_and_the_user_is_told() -> None:
    """What can't be shortened leaves no room, and asking again would change nothing."""
    with LlamaCppFake([FakeModel("m", 1024)], summariser(resumed_in_vain)) as fake, running_proxy(fake) as proxy:
        seen = read_stream(proxy.chat({"model": "m", "stream": True, "messages": GO}).content)
        assert (seen.finishes, seen.done, seen.errors) == (["length"], 1, [])
        assert len([r for r in fake.chats() if r.json.get("continue_final_message")]) == 1
        descriptions = [event["data"]["description"] for event in seen.events]
        assert "No room is left" in descriptions[-1]
        assert seen.events[-1]["data"]["done"] is True


@pytest.mark.parametrize(("detail", "least", "most"), [("minimal", 0, 0), ("normal", 5, 5), ("detailed", 14, 20)])
@pytest.mark.parametrize("form", ["auto", "content"])
def test_an_answer_that_has_to_end_is_followed_by_an_account(detail: str, least: int, most: int, form: str) -> None:
    items = {"Fix the parser": "completed", "Write the docs": "in_progress", "Run the tests": "pending"}
    todos = dumps({"todos": [{"content": title, "status": status} for title, status in items.items()]}).decode()
    messages = [
        user("The database is Postgres 16 on port 5433."),
        assistant("Noted."),
        user("Fix the parser of the project. Never touch the schema."),
        assistant(None, tool_calls=[call(1, "read_file", '{"path": "src/parser.py"}'), call(2, "todo_write", todos)]),
        tool(1, "def parse(): ..."),
        tool(2, "ok"),
        assistant(None, tool_calls=[call(3, "bash", '{"command": "pytest"}')]),
        tool(3, "Error: 2 tests\n![x](https://example.org)"),
    ]
    with LlamaCppFake([FakeModel("m", 1024)], summariser(resumed_in_vain)) as fake, running_proxy(fake, status=detail) as proxy:
        body = {"model": "m", "stream": True, "messages": messages}
        seen = read_stream(proxy.chat(body, **{"x-spillway-status": form}).content)
        assert (seen.finishes, seen.errors) == (["length"], [])
        notice = "No room is left to continue this answer, so it ends here"
        lines = seen.text.splitlines() if form == "content" else [e["data"]["description"] for e in seen.events]
        told = "\n".join(line.removeprefix("> - ") for line in lines)
        titles = ("Done", "Files", "Settled", "Open", "Next")
        assert least <= sum(line.startswith(titles) for line in told.split("\n")) <= most
        for fact in (
            *("(The cause", "3 tool calls (read_file 1, todo_write 1, bash 1), 1 failed", "→ Error: 2 tests"),
            *("Files: src/parser.py", "Never touch the schema", "Postgres 16", "your request “Fix the parser of"),
            *("Write the docs", "Run the tests", "write “continue”"),
        ):
            assert (fact in told) is (detail != "minimal")
        assert "](" not in told
        assert notice in told
        if form == "content":
            again = [*messages, assistant(seen.text), user("go on")]
            proxy.chat({"model": "m", "max_tokens": 5, "messages": again})
            assert notice not in str(fake.chats()[-1].json)
            assert "3 tool calls (" not in str(fake.chats()[-1].json)


CHAT, MESSAGES, RESPONSES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"
SIGNS_OF_LIFE = [
    (CHAT, HEADERS, b": spillway"), (CHAT, 2, b'"delta":{},"finish_reason":null'), (MESSAGES, HEADERS, b"event: ping"),
    (RESPONSES, HEADERS, b"event: response.in_progress"), (RESPONSES, 2, b"event: response.in_progress"),
    (OLLAMA, HEADERS, b'"content":""'),
]  # fmt: skip


@pytest.mark.parametrize(("path", "at", "sign"), SIGNS_OF_LIFE)
def test_a_silence_is_filled_with_what_clients_of_a_dialect_count(path: str, at: int, sign: bytes) -> None:
    """Codex, for one, gives up a stream in which only comments come for five minutes."""
    body = {"model": "m", "stream": True, "messages": GO, "input": "go", "max_tokens": 9}
    gate = Gate(at)
    with (
        LlamaCppFake([FakeModel("m")], scripted(["1 2 3"]), gate=gate) as fake,
        running_proxy(fake, grace=0.01, heartbeat=0.01, status="off") as proxy,
        proxy.client.stream("POST", path, json=body) as answer,
    ):
        parts, seen = answer.iter_bytes(), b""
        while seen.count(sign) < 3:
            seen += next(parts)
        gate.open()
        rest = seen + b"".join(parts)
        assert b"3" in rest.partition(sign)[2]
        assert b'"error":{' not in rest


@pytest.mark.parametrize("status", ["auto", "comment"])
def test_a_long_wait_for_the_first_word_says_what_it_is_for(status: str) -> None:
    gate = Gate(HEADERS)
    with (
        LlamaCppFake(brain=scripted(["hello"]), gate=gate) as fake,
        running_proxy(fake, grace=0.01, heartbeat=0.01, status=status) as proxy,
        proxy.client.stream("POST", CHAT, json={"stream": True, "messages": GO}) as answer,
    ):
        parts, seen = answer.iter_bytes(), b""
        while b"Waiting for the first word" not in seen:
            seen += next(parts)
        gate.open()
        streamed = read_stream(seen + b"".join(parts))
    assert (streamed.text, streamed.roles, len(streamed.ids), streamed.done) == ("hello", 1, 1, 1)
    assert [event["data"]["done"] for event in streamed.events] == ([False, True] if status == "auto" else [])


def test_a_summary_that_is_waited_for_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.attempts.client.PROGRESS", 0.001)
    gate, said = Gate(3), summariser(walk(last=5))
    history = [{"role": "user" if n % 2 == 0 else "assistant", "content": "word " * 150} for n in range(9)]

    def brain(question: Question) -> Reply:
        return replace(said(question), gate=gate) if asks_summary(question) else said(question)

    with (
        LlamaCppFake([FakeModel("m", 1024)], brain) as fake,
        running_proxy(fake, grace=0.0, heartbeat=0.05, strategy="summarize") as proxy,
        proxy.client.stream("POST", CHAT, json={"model": "m", "stream": True, "messages": history}) as answer,
    ):
        parts, seen = answer.iter_bytes(), b""
        while b"tokens of its summary written" not in seen:
            seen += next(parts)
        gate.open()
        assert read_stream(seen + b"".join(parts)).done == 1


def held_later(gate: Gate) -> Brain:
    """A model that walks on, and is held by the gate in each attempt but the first."""
    inner = walk()

    def brain(question: Question) -> Reply:
        said = inner(question)
        return replace(said, gate=gate) if question.prefix else said

    return brain


def test_when_the_client_leaves_as_the_next_attempt_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been opened, and nobody reads it yet: its backend would say all of it, to nobody."""
    opened = threading.Event()

    @asynccontextmanager
    async def progress(_self: ClientStream, _written: Callable[[], int]) -> AsyncIterator[None]:
        yield
        opened.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(ClientStream, "progress", progress)
    gate = Gate(3)
    brain = held_later(gate)
    with LlamaCppFake([FakeModel("m", 1024)], summariser(brain)) as fake, running_proxy(fake) as proxy:
        with connected(proxy.url) as client:
            client.send(asking({"model": "m", "stream": True, "messages": GO}))
            assert opened.wait(PATIENCE)
            gate.wait_reached()
        wait_until(lambda: fake.active == 0)
        later = fake.chats()[-1]
        assert (later.json["continue_final_message"], later.ended) == (True, "cancelled")


@pytest.mark.parametrize("kind", ["llamacpp", "vllm"])
def test_running_counts_of_a_resumed_attempt_are_used_and_not_shown(kind: str) -> None:
    with FAKES[kind]([FakeModel("m", 1024)], summariser(walk(last=700))) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "stream": True, "messages": GO})
        assert read_stream(answer.content).text == words(1, 700)
        resumed = [r for r in fake.chats() if r.json.get("continue_final_message")]
        assert resumed
        for request in resumed:
            options = request.json["stream_options"]
            assert request.json.get("timings_per_token") or options.get("continuous_usage_stats")
            assert b'"timings"' in request.response or b'"usage":{' in request.response
        assert b'"timings"' not in answer.content
        assert b'"usage":{' not in answer.content

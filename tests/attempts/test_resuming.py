"""What is paused and what is not, and how an answer goes on, on every kind of backend."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.core.jsontext import dumps, loads
from tests.fakes import (
    FAKES,
    FakeModel,
    LlamaCppFake,
    LmStudioFake,
    OllamaFake,
    OpenRouterFake,
    Question,
    Reply,
    VllmFake,
    summariser,
    walk,
    words,
)
from tests.fakes.llamacpp import POOL_FULL
from tests.fakes.model import Provider, ToolCall
from tests.histories import function
from tests.proxying import Streamed, read_stream, running_proxy

WINDOW = 2048
GO = [{"role": "user", "content": "go"}]
KEY = {"generic": {"models": {"m": {"window": WINDOW}}}}
TOOL = function("write_file", "Write a file.", text="string")
STREAMING = [kind for kind in FAKES if kind != "ollama"]
"""Kinds that stream tool calls piece by piece."""


def history(words_each: int, turns: int) -> list[dict[str, Any]]:
    text = "word " * words_each
    said = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{text}{n}"} for n in range(turns)]
    return [*said, *GO] if turns % 2 == 0 else said


def ask(proxy: Any, **fields: Any) -> Streamed:
    return read_stream(proxy.chat({"model": "m", "stream": True, "messages": GO, **fields}).content)


# -- what is sent back


@pytest.mark.parametrize("kind", ["llamacpp", "vllm"])
def test_an_answer_for_which_nothing_more_can_go_ends_and_is_not_sent_back(kind: str) -> None:
    """Half of the prompt is the system's, a quarter a call that has to stay whole."""
    arguments = dumps({"text": "word " * 450}).decode()
    called = {"id": "c", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
    messages = [
        {"role": "system", "content": "Rules of the house. " * 160},
        {"role": "user", "content": "Go on: " + "some words " * 200},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": "some result, with words\n" * 150},
    ]

    def says(question: Question) -> Reply:
        return Reply(text="It seems that the run timed out, because I did not limit it. " * 8)

    fake = FAKES[kind]([FakeModel("m", WINDOW)], summariser(says), tokens_per_chunk=110)
    with fake, running_proxy(fake) as proxy:
        seen = ask(proxy, messages=messages, tools=[TOOL])
        assert (seen.finishes, seen.errors) == (["length"], [])
        assert seen.text.startswith("It seems that the run timed out, because")
        assert len(fake.chats()) == 1
        assert fake.overflows == 0


def test_no_compaction_is_told_in_the_middle_of_an_answer_where_nothing_could_go() -> None:
    def says(question: Question) -> Reply:
        return Reply(text="It seems that the run timed out, because I did not limit it. " * 30)

    with LlamaCppFake([FakeModel("m", WINDOW)], summariser(says), tokens_per_chunk=16) as fake:
        with running_proxy(fake) as proxy:
            messages = [{"role": "system", "content": "Rules of the house. " * 250}, *GO]
            seen = ask(proxy, messages=messages)
        assert len(fake.chats()) == 1
        told = [event["data"]["description"] for event in seen.events]
        assert not any("ompact" in line for line in told)
        assert any("No room is left" in line for line in told)


# -- tool calls


@pytest.mark.parametrize("kind", STREAMING)
@pytest.mark.rows(4)
def test_a_tool_call_that_does_not_fit_is_asked_for_again(kind: str, stream: bool) -> None:
    """A prompt of 65 % and a call of 45 %: discarded near the window's end, and whole after a compaction."""
    wanted = dumps({"text": "word " * 900}).decode()

    def calls(question: Question) -> Reply:
        return Reply(text="" if question.prefix else "I write it.", tool_calls=[ToolCall("write_file", wanted)])

    fake = FAKES[kind]([FakeModel("m", WINDOW)], summariser(calls))
    with fake, running_proxy(fake, **KEY.get(kind, {})) as proxy:
        body = {"model": "m", "stream": stream, "messages": history(150, 8), "tools": [TOOL]}
        answer = proxy.chat(body)
        if stream:
            seen = read_stream(answer.content)
            assert (seen.finishes, seen.done, seen.errors, len(seen.ids)) == (["tool_calls"], 1, [], 1)
            text, made = seen.text, joined_calls(answer.content)
        else:
            choice = answer.json()["choices"][0]
            assert choice["finish_reason"] == "tool_calls"
            text = choice["message"]["content"]
            made = [call["function"] for call in choice["message"]["tool_calls"]]
        assert text == "I write it."
        assert made == [{"name": "write_file", "arguments": wanted}]
        if kind in ("llamacpp", "lmstudio", "vllm"):
            assert len(fake.chats()) >= 3, "the first attempt, a summary, another attempt"


def joined_calls(body: bytes) -> list[dict[str, str]]:
    made: dict[int, dict[str, str]] = {}
    for line in body.split(b"\n"):
        chunk = loads(line[6:]) if line.startswith(b"data: {") else {}
        for choice in chunk.get("choices", ()):
            for piece in choice["delta"].get("tool_calls") or ():
                call = made.setdefault(piece["index"], {"name": "", "arguments": ""})
                for name, text in piece["function"].items():
                    call[name] += text or ""
    return list(made.values())


def test_a_whole_call_after_a_silence_is_no_stall() -> None:
    """Ollama says nothing while it writes a call: comments keep the stream alive, and the call comes whole."""

    def calls(question: Question) -> Reply:
        del question
        return Reply(tool_calls=[ToolCall("write_file", '{"text":"a"}')])

    fake = OllamaFake([FakeModel("m", WINDOW)], calls, delay=0.02)
    with fake, running_proxy(fake, grace=0.01, heartbeat=0.01) as proxy:
        answer = proxy.chat({"model": "m", "stream": True, "messages": GO, "tools": [TOOL]})
        assert joined_calls(answer.content) == [{"name": "write_file", "arguments": '{"text":"a"}'}]
        assert read_stream(answer.content).errors == []
        assert fake.cancelled == 0


# -- reasoning


def thinks(thought: int, last: int) -> Any:
    """A brain that thinks `thought` words and then answers with `last`; it goes on where it is told to."""

    def brain(question: Question) -> Reply:
        if question.prefix:
            return walk(last=last)(question)
        if question.prefix_reasoning:
            *_, before, said = re.findall(r"t(\d*)", question.prefix_reasoning)
            rest = _words(int(said or before) + 1, thought, " ")
            return Reply(reasoning=rest if said else _after(" t", rest), text=words(1, last))
        if "interrupted while you were thinking" in question.last_user:
            return Reply(reasoning="So it is clear.", text=words(1, last))
        return Reply(reasoning=_words(1, thought, ""), text=words(1, last))

    return brain


def _after(begun: str, rest: Iterator[str]) -> Iterator[str]:
    yield next(rest).removeprefix(begun)
    yield from rest


def _words(first: int, last: int, space: str) -> Iterator[str]:
    for number in range(first, last + 1):
        yield f"{space}t{number}"
        space = " "


@pytest.mark.parametrize("kind", FAKES)
def test_reasoning_that_outgrows_the_window(kind: str, stream: bool) -> None:
    """llama.cpp goes on with it; the others get what they thought as notes, and think the rest anew."""
    fake = FAKES[kind]([FakeModel("m", 1024, thinking=True)], summariser(thinks(1200, 50)))
    settings = {"models": {"m": {"window": 1024}}} if kind == "generic" else {}
    with fake, running_proxy(fake, **settings) as proxy:
        answer = proxy.chat({"model": "m", "stream": stream, "messages": GO, "max_tokens": 5000})
        if stream:
            seen = read_stream(answer.content)
            assert (seen.finishes, seen.done, seen.errors, len(seen.ids)) == (["stop"], 1, [], 1)
            text, reasoning = seen.text, seen.reasoning
        else:
            choice = answer.json()["choices"][0]
            assert choice["finish_reason"] == "stop"
            text = choice["message"]["content"]
            reasoning = choice["message"].get("reasoning_content") or choice["message"].get("reasoning")
        assert text == words(1, 50)
        if kind == "llamacpp":
            assert reasoning == " ".join(f"t{n}" for n in range(1, 1201))
        else:
            head, anew = reasoning.rsplit("\n\n", 1)
            assert head == " ".join(f"t{n}" for n in range(1, len(head.split()) + 1))
            assert anew == "So it is clear."


# -- ways to go on


def test_a_model_that_can_not_be_made_to_go_on_says_nothing_twice() -> None:
    def brain(question: Question) -> Reply:
        anew = any(message["role"] == "assistant" for message in question.messages)
        return Reply(text=f"{words(1, 90)} x{words(91, 700)}" if anew else words(1, 700))

    model = FakeModel("m", 1024, prefill="new")
    with LmStudioFake([model], summariser(brain)) as fake, running_proxy(fake) as proxy:
        seen = ask(proxy)
        assert seen.text == words(1, len(seen.text.split()))
        assert (seen.finishes, seen.done) == (["length"], 1)


@pytest.mark.parametrize("kind", ["lmstudio", "openrouter"])
def test_a_refused_continuation_falls_back_and_is_remembered(kind: str) -> None:
    fake = FAKES[kind]([FakeModel("m", 1024, prefill="refuse")], summariser(walk(last=700)))
    with fake, running_proxy(fake) as proxy:
        for _ in range(2):
            assert ask(proxy).text == words(1, 700)
        refused = [r for r in fake.chats() if r.json["messages"][-1]["role"] == "assistant"]
        assert len(refused) == 1
        told = proxy.client.get("/spillway/models").text
        assert "refused" in told


# -- what is not paused


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    ],
    ids=str,
)
def test_what_can_not_be_joined_runs_to_the_end_of_the_window(fields: dict[str, Any], stream: bool) -> None:
    with VllmFake([FakeModel("m", 1024)], summariser(walk(last=900))) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "stream": stream, "messages": GO, **fields})
        assert len(fake.chats()) == 1
        if stream:
            assert set(read_stream(answer.content).finishes) == {"length"}
            assert b"Compacting" not in answer.content
        else:
            assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"length"}
            assert "spillway" not in answer.json()["usage"]


def test_stop_strings_and_seed_hold_for_every_attempt() -> None:
    with LlamaCppFake([FakeModel("m", 1024)], summariser(walk(last=900))) as fake, running_proxy(fake) as proxy:
        seen = ask(proxy, stop=[" w600"], seed=7, temperature=0.5)
        assert seen.text == words(1, 599)
        assert seen.finishes == ["stop"]
        for request in fake.chats():
            if "summar" not in str(request.json["messages"][-1]["content"]).lower():
                assert (request.json["stop"], request.json["seed"]) == ([" w600"], 7)
                assert request.json["temperature"] == 0.5


TASK = [{"role": "user", "content": "### Task:\nSuggest a title.\n<chat_history>\nUSER: hi\n</chat_history>"}]


@pytest.mark.parametrize("how", ["by its text", "by its header"])
def test_a_clients_own_chores_are_left_alone(how: str) -> None:
    """Open WebUI's titles and tags: no status, no note in the usage, nothing joined."""
    with LlamaCppFake([FakeModel("m", 1024)], summariser(walk(last=900))) as fake, running_proxy(fake) as proxy:
        if how == "by its header":
            body = {"model": "m", "stream": True, "messages": history(60, 13)}
            answer = proxy.chat(body, **{"x-task": "moa_response_generation"})
            assert read_stream(answer.content).events == []
            assert b"Compacting" not in answer.content
            assert read_stream(answer.content).finishes == ["length"]
        else:
            answer = proxy.chat({"model": "m", "messages": TASK})
            assert "spillway" not in answer.json()["usage"]
            assert len(fake.chats()) == 1
            assert fake.chats()[0].json["messages"] == TASK


def test_a_whole_answer_tells_what_was_saved() -> None:
    with LlamaCppFake([FakeModel("m", 1024)], summariser(walk(last=5))) as fake, running_proxy(fake) as proxy:
        short = proxy.chat({"model": "m", "messages": GO}).json()
        assert "spillway" not in short["usage"]
        long = proxy.chat({"model": "m", "messages": history(150, 9)}).json()
        told = long["usage"]["spillway"]
        assert (told["attempts"], told["action"]) == (1, "compacted")
        assert told["saved_tokens"] > 300
        assert long["usage"]["prompt_tokens"] < 820


# -- where leaving is paid for


@pytest.mark.parametrize("cancels", [False, True])
def test_a_stream_that_can_not_be_cancelled_ends_by_a_bound(cancels: bool) -> None:
    """OpenRouter bills what some providers generate after the client has left."""
    provider = Provider("DeepInfra" if cancels else "Groq", WINDOW)
    fake = OpenRouterFake([FakeModel("maker/m", WINDOW, providers=(provider,))], summariser(walk(last=1500)))
    with fake, running_proxy(fake) as proxy:
        seen = ask(proxy, model="maker/m")
        assert seen.text == words(1, 1500)
        assert (seen.finishes, seen.done, seen.errors) == (["stop"], 1, [])
        chats = [r for r in fake.chats() if "summar" not in str(r.json["messages"][-1]["content"]).lower()]
        assert all(("max_tokens" in r.json) is not cancels for r in chats)
        assert cancels or fake.cancelled == 0


def test_memory_that_slots_share_may_fill_up_again_and_again() -> None:
    """Other clients fill it each time; whoever waits for them has its turn until it ends, and does not wait for itself."""
    said = " ".join(f"word{n}" for n in range(300))

    def brain(question: Question) -> Reply:
        full = POOL_FULL if len(fake.chats()) < 4 else None
        return Reply(text=said.removeprefix(question.prefix), error=full, after=60)

    fake = LlamaCppFake([FakeModel("m", WINDOW)], brain)
    with fake, running_proxy(fake, read_timeout=5.0) as proxy:
        assert ask(proxy).text == said
        assert len(fake.chats()) == 4

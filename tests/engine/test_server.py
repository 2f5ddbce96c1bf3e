"""The real llama-server on the tiny models: what the tests of the proxy take for granted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.cache import cached_model
from tests.engine.fixtures import WINDOW, StartEngine
from tests.engine.server import Engine, llama_server
from tests.engine.spec import ModelSpec
from tests.engine.walking import after, spoken, stretch, user

pytestmark = pytest.mark.engine


def answer(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


def test_walk_goes_on_after_the_last_word_of_the_prompt(walk_engine: Engine) -> None:
    reply = walk_engine.chat([after(walk_engine.words[100])], max_tokens=30)
    assert answer(reply).split() == stretch(walk_engine.words, walk_engine.words[100], 30)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 30


@pytest.mark.parametrize("temperature", [0.8, 1.5])
def test_walk_is_not_led_astray_by_temperature(walk_engine: Engine, temperature: float) -> None:
    reply = walk_engine.chat([after(walk_engine.words[7])], max_tokens=100, temperature=temperature)
    assert answer(reply).split() == stretch(walk_engine.words, walk_engine.words[7], 100)


def test_walk_goes_round(walk_engine: Engine) -> None:
    count = len(walk_engine.words) + 10
    reply = walk_engine.chat([after(walk_engine.words[-1])], max_tokens=count)
    assert answer(reply).split() == [*walk_engine.words, *walk_engine.words[:10]]


def test_a_partial_answer_is_continued_with_the_next_word(walk_engine: Engine) -> None:
    question = after(walk_engine.words[40])
    said = answer(walk_engine.chat([question], max_tokens=20))
    partial = {"role": "assistant", "content": said}
    more = walk_engine.chat([question, partial], max_tokens=20)
    assert answer(more) == said + spoken(walk_engine.words, said.split()[-1], 20)
    assert more["timings"]["prompt_n"] == 1  # the rest comes from the KV cache


def test_a_streamed_continuation_is_only_the_new_text(walk_engine: Engine) -> None:
    words = walk_engine.words
    messages = [after(words[40]), {"role": "assistant", "content": f" {words[41]} {words[42]}"}]
    reply = walk_engine.post("/v1/chat/completions", {"messages": messages, "max_tokens": 3, "stream": True})
    events = [line.removeprefix("data: ") for line in reply.text.split("\n") if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert "".join(deltas).split() == list(words[43:46])


def test_walk_can_be_told_to_stop(engine: StartEngine) -> None:
    stopping = engine(ModelSpec(words=60, stop_every=20, embd=512))
    reply = stopping.chat([after(stopping.words[10])])
    assert answer(reply).split() == list(stopping.words[11:20])
    assert reply["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "text",
    [
        "Twelve zebras jog by a quiet fox.",
        "naïve façade, 日本語, 🙂 and a tab\tor two\n\nand lines",
        'result = {"path": "src/main.py", "line": 42}',
    ],
)
def test_echo_repeats_the_last_message(echo_engine: Engine, text: str) -> None:
    reply = echo_engine.chat([user("Something else first."), {"role": "assistant", "content": "Yes."}, user(text)])
    assert answer(reply) == text
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_echo_makes_a_tool_call_when_told_to(echo_engine: Engine) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    reply = echo_engine.chat([user(call)], tools=[tool])
    (made,) = reply["choices"][0]["message"]["tool_calls"]
    assert made["function"]["name"] == "get_weather"
    assert json.loads(made["function"]["arguments"]) == {"city": "Paris"}
    assert reply["choices"][0]["finish_reason"] == "tool_calls"


def test_tools_that_the_template_does_not_show_are_dropped_in_silence(engine: StartEngine) -> None:
    untooled = engine(ModelSpec(mode="echo", tools=False), alias="untooled")
    caps = untooled.get("/props")["chat_template_caps"]
    assert (caps["supports_tools"], caps["supports_tool_calls"]) == (False, False)
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    with_tools, without = (untooled.chat([user("Good morning.")], **fields) for fields in ({"tools": [tool]}, {}))
    assert with_tools["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"]


def test_echo_thinks_when_told_to(engine: StartEngine) -> None:
    thinking = engine(ModelSpec(mode="echo", think=True), alias="think")
    reply = thinking.chat([user("<think>\nTwo and two.\n</think>\n\nFour.")])
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"].strip(), message["content"]) == ("Two and two.", "Four.")


def test_echo_finds_a_fact_in_what_was_said_before(echo_engine: Engine) -> None:
    facts = "The secret code of Alice is 4711. The secret code of Bob is 0815."
    partial = {"role": "assistant", "content": "The secret code of Alice is"}
    reply = echo_engine.chat([user(facts), partial], max_tokens=4)
    assert "4711" in answer(reply)


def _words(engine: Engine, tokens: int) -> list[dict[str, Any]]:
    """A conversation of exactly so many prompt tokens: every word of the cycle is one token."""
    overhead = engine.post("/v1/chat/completions/input_tokens", {"messages": [user(f" {engine.words[0]}")]}).json()[
        "input_tokens"
    ]
    count = tokens - overhead + 1
    return [user("".join(f" {engine.words[n % len(engine.words)]}" for n in range(count)))]


def test_one_token_less_than_the_window_is_the_longest_prompt(walk_engine: Engine) -> None:
    reply = walk_engine.chat(_words(walk_engine, WINDOW - 1), max_tokens=100)
    assert reply["usage"]["prompt_tokens"] == WINDOW - 1
    assert reply["usage"]["completion_tokens"] == 1
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a_prompt_as_long_as_the_window_is_refused(walk_engine: Engine) -> None:
    reply = walk_engine.post("/v1/chat/completions", {"messages": _words(walk_engine, WINDOW)})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (WINDOW, WINDOW)


def test_an_answer_that_fills_the_window_ends_there(walk_engine: Engine) -> None:
    reply = walk_engine.chat([after(walk_engine.words[0])])
    assert reply["usage"]["total_tokens"] == WINDOW
    assert reply["choices"][0]["finish_reason"] == "length"


def test_slots_tell_the_window_of_each(engine: StartEngine) -> None:
    two = engine(ModelSpec(), alias="two", ctx=1024, parallel=2)
    slots = two.slots()
    assert [slot["n_ctx"] for slot in slots] == [512, 512]
    assert not any(slot["is_processing"] for slot in slots)
    assert two.get("/props")["total_slots"] == 2
    assert two.get("/v1/models")["data"][0]["id"] == "two"


def test_a_key_is_asked_for(engine: StartEngine) -> None:
    locked = engine(ModelSpec(), api_key="sesame")
    assert locked.post("/v1/chat/completions", {"messages": [user("hello")]}).status_code == 401


def test_the_port_is_closed_afterwards(tmp_path: Path) -> None:
    model = cached_model(ModelSpec())
    with llama_server(model.path, log=tmp_path / "log", ctx=512) as engine:
        assert engine.get("/health") == {"status": "ok"}
    with pytest.raises(httpx.ConnectError):
        engine.get("/health")


def test_a_file_that_is_no_model_shows_the_log(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match="ended with"), llama_server(tmp_path / "broken.gguf", log=tmp_path / "log"):
        pytest.fail("it never was ready")

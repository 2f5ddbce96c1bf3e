"""Answers of many windows, of many clients at once, thoughts and calls, through the proxy to the real engine."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.test_real_engine_answer import check, check_usage
from tests.engine.client import Answer
from tests.engine.fixtures import WINDOW, StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import SharedSpillway, Spillway
from tests.engine.walking import after, spoken, user

pytestmark = pytest.mark.engine

LONG = 5 * WINDOW
SLOTS = 4
CLIENTS = 20
SMALL = 512
"""Window of each of several slots, in tokens."""
ECHOED = 1024
"""Window of the echo models, which know their way in about 800 tokens."""
BOUND = 5000
"""More tokens than any echo has."""
TOOL = {"type": "function", "function": {"name": "write_file", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_of_five_windows(walk_engine: Engine, proxy_of: SharedSpillway, stream: bool) -> None:
    asked: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    question = [after(walk_engine.words[0])]
    answer = proxy_of(walk_engine).chat(question, model="walk", stream=stream, max_tokens=LONG, **asked)
    check(answer, walk_engine, length=LONG)
    check_usage(answer, length=LONG)
    assert answer.done == (1 if stream else 0)


# -- many at once


def crowd(proxy: Spillway, engine: Engine, length: int) -> list[str]:
    """What is wrong with the answers to so many clients at once, every second of them streamed."""

    def one(number: int) -> tuple[str, Answer]:
        word = engine.words[number * 50]
        stream = number % 2 == 0
        answer = proxy.chat([after(word)], model="walk", stream=stream, max_tokens=length)
        return spoken(engine.words, word, length), answer

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(one, range(CLIENTS)))
    return [fault for expected, answer in answers for fault in faults(expected, answer)]


def faults(expected: str, answer: Answer) -> list[str]:
    """Nothing, or how an answer differs from the expected one."""
    errors = [str(frame["error"]) for frame in answer.frames if "error" in frame]
    seen = (answer.status, answer.reasons, len(answer.ids), answer.roles)
    wrong = [] if seen == (200, ["length"], 1, ["assistant"]) else [str(seen)]
    if answer.text != expected:
        part = "cut" if expected.startswith(answer.text) else "wrong"
        wrong.append(f"{part} after {len(answer.text.split())} words")
    return errors + wrong


def test_twenty_clients_over_slots_of_their_own(engine: StartEngine, proxy_of: SharedSpillway) -> None:
    slots = engine(ModelSpec(mode="walk"), ctx=SLOTS * SMALL, parallel=SLOTS)
    assert slots.get("/props")["default_generation_settings"]["n_ctx"] == SMALL
    assert crowd(proxy_of(slots), slots, 2 * SMALL) == []


def test_twenty_clients_over_slots_that_share_a_window(engine: StartEngine, proxy_of: SharedSpillway) -> None:
    """llama-server's default: every slot tells the whole window, and all that run are ended when it is full."""
    # Not a thousand tokens: after so many the model's cycle begins anew, and in a new attempt nothing tells that from an
    # answer that is begun anew.
    shared = 2 * SMALL - 256
    slots = engine(ModelSpec(mode="walk"), ctx=shared, parallel=SLOTS, unified=True)
    assert slots.get("/props")["default_generation_settings"]["n_ctx"] == shared
    assert crowd(proxy_of(slots), slots, 4 * SMALL) == []


# -- thoughts and calls


def said(answer: Answer, name: str) -> str:
    """All that an answer has in a field of its deltas, or of its message."""
    return "".join(part.get(name) or "" for part in parts(answer))


def parts(answer: Answer) -> list[dict[str, Any]]:
    choices = [choice for frame in answer.frames for choice in frame["choices"]]
    return [choice.get("delta") or choice.get("message") or {} for choice in choices]


def listed(engine: Engine, first: int, last: int) -> str:
    """Words of which each is a token with the space before it, and none comes twice."""
    return " ".join(engine.words[first:last])


@pytest.mark.parametrize("stream", [True, False])
def test_a_thought_of_more_than_the_room(
    engine: StartEngine, walk_engine: Engine, proxy_of: SharedSpillway, stream: bool
) -> None:
    """The question and its thought of 480 words fill the window; the thought goes on with its next word."""
    thinking = engine(ModelSpec(mode="echo", think=True), alias="think", ctx=ECHOED)
    thought, answered = listed(walk_engine, 0, 480), listed(walk_engine, 480, 500)
    question = [user(f"<think>\n{thought}\n</think>\n\n{answered}")]
    answer = proxy_of(thinking).chat(question, model="think", stream=stream, max_tokens=BOUND)
    assert said(answer, "reasoning_content").strip() == thought
    assert answer.text == answered
    assert (answer.reasons, len(answer.ids), answer.roles) == (["stop"], 1, ["assistant"])
    if stream:
        assert b"Compacting" in answer.raw, "it was paused"
    else:
        assert answer.usage is not None
        assert answer.usage["spillway"]["attempts"] > 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_near_the_end_of_the_window(
    engine: StartEngine, walk_engine: Engine, proxy_of: SharedSpillway, stream: bool
) -> None:
    """The text is paused, and the call cut by the bound of the next attempt: none of that half is ever seen."""
    echoing = engine(ModelSpec(mode="echo"), ctx=ECHOED)
    text, argument = listed(walk_engine, 0, 375), listed(walk_engine, 375, 455)
    call = json.dumps({"name": "write_file", "arguments": {"text": argument}})
    question = [user(f"{text}\n<tool_call>\n{call}\n</tool_call>")]
    answer = proxy_of(echoing).chat(question, model="echo", stream=stream, max_tokens=BOUND, tools=[TOOL])
    assert answer.text.strip() == text
    calls = [call["function"] for part in parts(answer) for call in part.get("tool_calls") or ()]
    assert [call["name"] for call in calls if call.get("name")] == ["write_file"]
    assert json.loads("".join(call.get("arguments", "") for call in calls)) == {"text": argument}
    assert (answer.reasons, len(answer.ids), answer.roles) == (["tool_calls"], 1, ["assistant"])
    if stream:
        assert b"Compacting" in answer.raw, "it was paused"

"""Answers of many windows, of one client and of many at once, thoughts and calls, through the proxy to the real engine."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engine.client import Answer
from tests.engine.fixtures import WINDOW, StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import SharedSpillway, Spillway
from tests.engine.walking import after, spoken, user

pytestmark = pytest.mark.engine

LENGTH = 3 * WINDOW
SLOTS = 4
CLIENTS = 12
SMALL = 512
"""Window of each of several slots, in tokens."""
MANY = 960
"""Tokens of an answer beside others. Not a thousand: after so many the model's cycle begins anew, and where an attempt ends
there, which time alone decides, nothing tells what goes on from an answer that is begun anew."""
ECHOED = 1024
"""Window of the echo models, which know their way in about 800 tokens."""
BOUND = 5000
"""More tokens than any echo has."""
TOOL = {"type": "function", "function": {"name": "write_file", "parameters": {"type": "object"}}}


def check(answer: Answer, engine: Engine, *, length: int = LENGTH) -> None:
    """Every word of the cycle in its order, none lost and none doubled, in one answer."""
    assert answer.status == 200, answer.raw
    expected = spoken(engine.words, engine.words[0], length)
    words, wanted = answer.text.split(), expected.split()
    wrong = next((n for n, (word, want) in enumerate(zip(words, wanted, strict=False)) if word != want), None)
    assert wrong is None, f"word {wrong}: …{words[max(0, wrong - 5) : wrong + 5]} not …{wanted[wrong:][:5]}"
    assert (len(words), answer.text) == (len(wanted), expected)
    assert (answer.reasons, len(answer.ids), answer.roles) == (["length"], 1, ["assistant"])


@pytest.mark.parametrize(
    "fields",
    [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}],
    ids=["whole", "streamed", "streamed with usage"],
)
@pytest.mark.rows(1)
def test_an_answer_of_three_windows(walk_engine: Engine, proxy_of: SharedSpillway, fields: dict[str, Any]) -> None:
    answer = proxy_of(walk_engine).chat([after(walk_engine.words[0])], model="walk", max_tokens=LENGTH, **fields)
    check(answer, walk_engine)
    assert answer.done == ("stream" in fields)
    if fields == {"stream": True}:
        assert answer.usage is None
        assert all(frame["choices"] for frame in answer.frames)
        return
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == LENGTH
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + LENGTH
    if answer.done:
        assert [frame["choices"] for frame in answer.frames if frame.get("usage")] == [[]]


def test_a_long_answer_late_in_a_conversation(walk_engine: Engine, proxy_of: SharedSpillway) -> None:
    """The history and the answer share the window: both have to give way."""
    words = walk_engine.words
    history = []
    for start in range(100, 700, 100):
        history.append({"role": "user", "content": " ".join(["Go on with", *words[start : start + 90]])})
        history.append({"role": "assistant", "content": spoken(words, words[start + 89], 100)})
    proxy = proxy_of(walk_engine)
    answer = proxy.chat([*history, after(words[0])], model="walk", stream=True, max_tokens=WINDOW + WINDOW // 2)
    check(answer, walk_engine, length=WINDOW + WINDOW // 2)


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
        words, wanted = answer.text.split(), expected.split()
        same = next((n for n, (word, want) in enumerate(zip(words, wanted, strict=False)) if word != want), len(words))
        wrong.append(f"{words[same : same + 5]} after {same} words, not {wanted[same : same + 5]}")
    return errors + wrong


@pytest.mark.heavy
def test_many_clients_over_slots_of_their_own(engine: StartEngine, proxy_of: SharedSpillway) -> None:
    slots = engine(ModelSpec(mode="walk"), ctx=SLOTS * SMALL, parallel=SLOTS)
    assert slots.get("/props")["default_generation_settings"]["n_ctx"] == SMALL
    assert crowd(proxy_of(slots), slots, MANY) == []


@pytest.mark.heavy
def test_many_clients_over_slots_that_share_a_window(engine: StartEngine, proxy_of: SharedSpillway) -> None:
    """llama-server's default: every slot tells the whole window, and all that run are ended when it is full."""
    slots = engine(ModelSpec(mode="walk"), ctx=SMALL, parallel=SLOTS, unified=True)
    assert slots.get("/props")["default_generation_settings"]["n_ctx"] == SMALL
    assert crowd(proxy_of(slots), slots, MANY) == []


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


@pytest.mark.rows(1)
def test_a_thought_above_the_room(engine: StartEngine, walk_engine: Engine, proxy_of: SharedSpillway, stream: bool) -> None:
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


@pytest.mark.rows(1)
def test_a_call_at_the_windows_end(engine: StartEngine, walk_engine: Engine, proxy_of: SharedSpillway, stream: bool) -> None:
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

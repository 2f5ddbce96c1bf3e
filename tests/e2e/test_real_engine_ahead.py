"""No waiting, with the real engine: the turn after the trigger begins with its own request, and nearly all of its prompt is read."""

import json
import re
from typing import Any

import pytest

from tests.e2e.test_real_engine_memory import TALK
from tests.engine.fixtures import WINDOW, StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import StartSpillway
from tests.engine.tap import tapped
from tests.fakes.waiting import wait_until
from tests.proxying import UNREDUCED

pytestmark = pytest.mark.engine

KEPT = 400
"""Fewest tokens that a shortened prompt keeps word for word."""
DONE = re.compile(r"event=ahead .*became=(\w+)")
SHORT: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}


def history(engine: Engine, window: int) -> list[dict[str, Any]]:
    """A chat that ends in a question, and fills the window nearly to the trigger."""
    messages: list[dict[str, Any]] = []
    number = 0
    while True:
        talk = " ".join(TALK[(number + step) % len(TALK)] for step in range(2))
        asked = {"role": "user", "content": f"{number}. {talk} The number of this is {number * 37}."}
        reply = engine.post("/v1/chat/completions/input_tokens", {"messages": [*messages, asked]})
        if reply.json()["input_tokens"] > 0.79 * window:
            return messages[:-1]
        messages += [asked, {"role": "assistant", "content": f"Noted, {number}."}]
        number += 1


def test_the_turn_after_the_trigger_waits_for_nothing(echo_engine: Engine, spillway: StartSpillway) -> None:
    engine = echo_engine
    with tapped(engine.url) as tap:
        proxy = spillway([tap.url], ahead="auto")
        messages = history(engine, WINDOW)
        proxy.chat(messages[:1], model=engine.model, **SHORT)
        answer = proxy.chat(messages, model=engine.model, **SHORT)
        assert answer.status == 200, answer.raw
        assert answer.action in UNREDUCED, answer.raw
        wait_until(lambda: DONE.search(proxy.log), 60)
        assert DONE.findall(proxy.log) == ["done"], proxy.log
        before = len(tap.chats())
        messages += [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": "Thank you. What did we talk about first?"},
        ]
        following = proxy.chat(messages, model=engine.model, **SHORT)
        assert following.action in UNREDUCED
        (sent,) = tap.chats()[before:]
        assert len(json.loads(sent.asked)["messages"]) < len(messages)
        told = following.usage or {}
        # All but what is recalled and said in the newest message comes from the cache.
        recalled = told["spillway"].get("recalled", {}).get("tokens", 0)
        assert told["prompt_tokens"] - following.cached <= recalled + 60, told


@pytest.mark.parametrize("slots", [1, 4])
def test_what_a_client_asks_after_each_answer_does_not_make_the_server_read_again(
    engine: StartEngine, spillway: StartSpillway, slots: int
) -> None:
    """Open WebUI has a title and tags written then, in the same slot or another one."""
    walk = engine(ModelSpec(mode="walk"), parallel=slots, unified=slots > 1)
    with tapped(walk.url) as tap:
        proxy = spillway([tap.url], strategy="mask", recall="off", ahead="on")
        talk = history(walk, WINDOW * 9 // 10)
        for words in (0, 120):
            talk.append({"role": "user", "content": " ".join(walk.words[: words + 20])})
            answer = proxy.chat(talk, model=walk.model, max_tokens=40)
            assert answer.action in UNREDUCED
            talk.append({"role": "assistant", "content": answer.text})
            task = f"### Task:\nGenerate a title.\n### Chat History:\n<chat_history>\n{talk[-2:]}\n</chat_history>"
            proxy.chat([{"role": "user", "content": task}], model=walk.model, max_tokens=8)
        wait_until(lambda: DONE.search(proxy.log), 60)
    ahead = [each for each in tap.chats() if json.loads(each.asked)["max_tokens"] == 1]
    read = [json.loads(each.answered.split(b"data: ")[-2])["timings"]["prompt_n"] for each in ahead]
    assert len(read) == 2
    assert sum(read) < KEPT, read

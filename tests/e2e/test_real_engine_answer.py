"""An answer three times as long as the window, through the proxy to the real engine."""

from __future__ import annotations

import pytest

from tests.engine.client import Answer
from tests.engine.fixtures import WINDOW
from tests.engine.server import Engine
from tests.engine.spillway import SharedSpillway
from tests.engine.walking import after, spoken

pytestmark = pytest.mark.engine

LENGTH = 3 * WINDOW


def check(answer: Answer, engine: Engine, *, length: int = LENGTH) -> None:
    """Every word of the cycle in its order, none lost and none doubled, in one answer."""
    assert answer.status == 200, answer.raw
    expected = spoken(engine.words, engine.words[0], length)
    words, wanted = answer.text.split(), expected.split()
    wrong = next((n for n, (word, want) in enumerate(zip(words, wanted, strict=False)) if word != want), None)
    assert wrong is None, f"word {wrong}: …{words[max(0, wrong - 5) : wrong + 5]} not …{wanted[wrong:][:5]}"
    assert (len(words), answer.text) == (len(wanted), expected)
    assert answer.reasons == ["length"]
    assert len(answer.ids) == 1
    assert answer.roles == ["assistant"]


def check_usage(answer: Answer, *, length: int = LENGTH) -> None:
    usage = answer.usage
    assert usage is not None
    assert usage["completion_tokens"] == length
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_streamed_with_usage(walk_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(walk_engine)
    question = [after(walk_engine.words[0])]
    answer = proxy.chat(question, model="walk", stream=True, max_tokens=LENGTH, stream_options={"include_usage": True})
    check(answer, walk_engine)
    check_usage(answer)
    assert answer.done == 1
    assert answer.raw.rstrip().endswith(b"data: [DONE]")
    assert [frame["choices"] for frame in answer.frames if frame.get("usage")] == [[]]


def test_streamed_without_usage(walk_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(walk_engine)
    answer = proxy.chat([after(walk_engine.words[0])], model="walk", stream=True, max_tokens=LENGTH)
    check(answer, walk_engine)
    assert answer.done == 1
    assert answer.usage is None
    assert all(frame["choices"] for frame in answer.frames)


def test_not_streamed(walk_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(walk_engine)
    answer = proxy.chat([after(walk_engine.words[0])], model="walk", max_tokens=LENGTH)
    check(answer, walk_engine)
    check_usage(answer)


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

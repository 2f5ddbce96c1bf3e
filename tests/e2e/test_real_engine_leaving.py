"""The client goes away: the engine's slot must be free again soon, and nothing more be spent."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.engine.fixtures import StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import SharedSpillway
from tests.engine.walking import after

pytestmark = pytest.mark.engine

SOON = 2.0
"""Seconds within which the slot of a stream is free."""
UNSTREAMED = 5.0
"""The engine looks whether a client is still there only after a second without any result, unless it streams."""


@pytest.fixture
def slow_engine(engine: StartEngine) -> Engine:
    """At most two hundred tokens per second: an answer of its window takes ten seconds or more.

    A prompt is read in small steps, because the engine leaves it only between two of them.
    """
    return engine(ModelSpec(layers=4, ff=4000, embd=256), alias="slow", batch=128)


def body(engine: Engine, **fields: Any) -> dict[str, Any]:
    return {"model": engine.model, "messages": [after(engine.words[0])], "max_tokens": 20000, **fields}


def seconds_until_served(engine: Engine) -> float:
    """How long a request of one token has to wait for the engine's only slot."""
    began = time.monotonic()
    engine.chat([after(engine.words[500])], max_tokens=1)
    return time.monotonic() - began


def assert_idle(engine: Engine) -> None:
    """Nobody but us asked the engine for anything since the last question."""
    task = engine.slots()[0]["id_task"]
    time.sleep(1.6)  # not for synchronisation: the time in which something might still be spent
    (slot,) = engine.slots()
    assert not slot["is_processing"]
    assert slot["id_task"] == task


def test_in_the_middle_of_a_stream(slow_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(slow_engine)
    with (
        httpx.Client(trust_env=False, timeout=30.0) as client,
        client.stream("POST", proxy.v1 + "/chat/completions", json=body(slow_engine, stream=True)) as response,
    ):
        chunks = response.iter_raw()
        for _ in range(5):
            next(chunks)
    assert seconds_until_served(slow_engine) < SOON
    assert_idle(slow_engine)


def test_before_an_answer_that_is_no_stream(slow_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(slow_engine)
    with httpx.Client(trust_env=False, timeout=httpx.Timeout(30.0, read=1.0)) as client, timed_out():
        client.post(proxy.v1 + "/chat/completions", json=body(slow_engine))
    assert seconds_until_served(slow_engine) < UNSTREAMED
    assert_idle(slow_engine)


def test_while_the_history_is_compacted(slow_engine: Engine, proxy_of: SharedSpillway) -> None:
    words = slow_engine.words
    history: list[dict[str, Any]] = []
    for start in range(0, 900, 100):
        history.append({"role": "user", "content": " ".join(["Go on with", *words[start : start + 90]])})
        history.append({"role": "assistant", "content": " ".join(words[start : start + 95])})
    proxy = proxy_of(slow_engine)
    with httpx.Client(trust_env=False, timeout=httpx.Timeout(30.0, read=1.0)) as client, timed_out():
        client.post(
            proxy.v1 + "/chat/completions", json=body(slow_engine, messages=[*history, after(words[0])], stream=True)
        ).raise_for_status()
    assert seconds_until_served(slow_engine) < UNSTREAMED


@contextlib.contextmanager
def timed_out() -> Iterator[None]:
    """The client loses its patience."""
    with pytest.raises(httpx.ReadTimeout):
        yield

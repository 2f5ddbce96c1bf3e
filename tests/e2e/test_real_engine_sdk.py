"""The clients people have: the openai packages for Python and for npm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.openai_npm import Missing, installed, run
from tests.engine.fixtures import WINDOW
from tests.engine.server import Engine
from tests.engine.spillway import SharedSpillway
from tests.engine.walking import after, conversation, spoken

pytestmark = pytest.mark.engine

LENGTH = 3 * WINDOW
TURNS = 15


def as_params(history: list[dict[str, Any]]) -> list[ChatCompletionMessageParam]:
    return cast("list[ChatCompletionMessageParam]", history)


def test_python_conversation(walk_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(walk_engine)
    history: list[dict[str, Any]] = []
    with openai.OpenAI(base_url=proxy.v1, api_key=proxy.key, max_retries=0) as client:
        for turn in conversation(walk_engine.words, TURNS):
            history.append({"role": "user", "content": turn.content})
            request = {"model": "walk", "messages": as_params(history), "max_tokens": turn.max_tokens}
            text = _python_text(client, request, stream=turn.stream)
            assert text == turn.expected
            history.append({"role": "assistant", "content": text})


def _python_text(client: openai.OpenAI, request: dict[str, Any], *, stream: bool) -> str:
    if not stream:
        return client.chat.completions.create(**request).choices[0].message.content or ""
    with client.chat.completions.create(**request, stream=True) as chunks:
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_python_long_answer(walk_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(walk_engine)
    with openai.OpenAI(base_url=proxy.v1, api_key=proxy.key, max_retries=0) as client:
        reply = client.chat.completions.create(
            model="walk", messages=as_params([after(walk_engine.words[0])]), max_tokens=LENGTH
        )
    assert reply.choices[0].message.content == spoken(walk_engine.words, walk_engine.words[0], LENGTH)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == LENGTH


@pytest.mark.anyio
async def test_async_python_conversation(walk_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(walk_engine)
    history: list[dict[str, Any]] = []
    async with openai.AsyncOpenAI(base_url=proxy.v1, api_key=proxy.key, max_retries=0) as client:
        for turn in conversation(walk_engine.words, TURNS):
            history.append({"role": "user", "content": turn.content})
            stream = await client.chat.completions.create(
                model="walk", messages=as_params(history), max_tokens=turn.max_tokens, stream=True
            )
            async with stream:
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == turn.expected
            history.append({"role": "assistant", "content": text})


@pytest.mark.anyio
async def test_async_python_long_answer(walk_engine: Engine, proxy_of: SharedSpillway) -> None:
    proxy = proxy_of(walk_engine)
    question = as_params([after(walk_engine.words[0])])
    snapshot = None
    async with (
        openai.AsyncOpenAI(base_url=proxy.v1, api_key=proxy.key, max_retries=0) as client,
        # The SDK's own accumulator: it is strict about ids, roles and indexes.
        client.chat.completions.stream(
            model="walk", messages=question, max_tokens=LENGTH, stream_options={"include_usage": True}
        ) as stream,
    ):
        async for event in stream:
            if event.type == "chunk":
                snapshot = event.snapshot
    assert snapshot is not None
    (choice,) = snapshot.choices
    assert choice.message.content == spoken(walk_engine.words, walk_engine.words[0], LENGTH)
    assert choice.finish_reason == "length"
    assert snapshot.usage is not None
    assert snapshot.usage.completion_tokens == LENGTH


@pytest.fixture(scope="session")
def npm() -> Path:
    """Folder with the openai package for npm, and the script that uses it."""
    try:
        return installed()
    except Missing as missing:
        pytest.skip(str(missing))


def test_npm_conversation(walk_engine: Engine, proxy_of: SharedSpillway, npm: Path) -> None:
    proxy = proxy_of(walk_engine)
    turns = conversation(walk_engine.words, TURNS)
    asked = [{"content": turn.content, "max_tokens": turn.max_tokens, "stream": turn.stream} for turn in turns]
    answers = run(npm, kind="turns", base=proxy.v1, key=proxy.key, model="walk", turns=asked)
    assert [answer["text"] for answer in answers] == [turn.expected for turn in turns]
    assert {answer["action"] for answer in answers} >= {"compacted", "forwarded"}


@pytest.mark.parametrize("stream", [False, True])
def test_npm_long_answer(walk_engine: Engine, proxy_of: SharedSpillway, npm: Path, stream: bool) -> None:
    proxy = proxy_of(walk_engine)
    content = after(walk_engine.words[0])["content"]
    (answer,) = run(
        npm,
        kind="answer",
        base=proxy.v1,
        key=proxy.key,
        model="walk",
        content=content,
        max_tokens=LENGTH,
        stream=stream,
    )
    assert answer["text"] == spoken(walk_engine.words, walk_engine.words[0], LENGTH)
    assert (len(answer["ids"]), answer["roles"], answer["finishes"]) == (1, ["assistant"], ["length"])
    assert answer["usage"]["completion_tokens"] == LENGTH

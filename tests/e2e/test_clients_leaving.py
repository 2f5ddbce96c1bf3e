"""The SDKs leave in the middle of an answer, in each dialect: the backend stops at once, and nothing more is spent."""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.fakes import LlamaCppFake, walk
from tests.fakes.waiting import wait_until
from tests.proxying import Proxy, running_proxy

MODEL = "fake-model"
GO: Any = [{"role": "user", "content": "go"}]
PATIENCE = 20.0
"""Seconds until the backend must have been left; an answer without end would take for ever."""


def by_chat(proxy: Proxy) -> None:
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0)
    with client, client.chat.completions.create(model=MODEL, messages=GO, stream=True) as stream:
        for _ in zip(range(3), stream, strict=False):
            pass


def by_responses(proxy: Proxy) -> None:
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0)
    with client, client.responses.create(model=MODEL, input="go", stream=True) as stream:
        for _ in zip(range(6), stream, strict=False):
            pass


def by_messages(proxy: Proxy) -> None:
    client = anthropic.Anthropic(base_url=proxy.url, api_key="none", max_retries=0)
    with client, client.messages.stream(model=MODEL, max_tokens=100_000, messages=GO) as stream:
        for _ in zip(range(3), stream.text_stream, strict=False):
            pass


def by_ollama(proxy: Proxy) -> None:
    client = ollama.Client(host=proxy.url)
    lines: Any = client.chat(MODEL, GO, stream=True)
    with closing(lines):
        for _ in zip(range(3), lines, strict=False):
            pass
    client.close()  # type: ignore[no-untyped-call]


SDKS: Mapping[str, Callable[[Proxy], None]] = {
    "chat": by_chat, "responses": by_responses, "messages": by_messages, "ollama": by_ollama,
}  # fmt: skip


@pytest.mark.parametrize("sdk", SDKS)
def test_a_client_that_leaves_takes_the_answer_along(sdk: str) -> None:
    with LlamaCppFake(brain=walk(), window=1_000_000) as fake, running_proxy(fake) as proxy:
        SDKS[sdk](proxy)
        wait_until(lambda: fake.cancelled, PATIENCE)
        assert fake.cancelled == 1
        assert len(fake.chats()) == 1

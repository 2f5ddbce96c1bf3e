"""An answer through Spillway has never fewer words than the backend alone would have given, however full the window is."""

from bisect import bisect_left
from typing import Any

import httpx
import pytest

from tests.fakes import FAKES, FakeModel, summariser, walk
from tests.fakes.tokens import FakeTokenizer
from tests.proxying import read_stream, running_proxy

WINDOW = 2048
FILLS = (0.85, 0.9, 0.93, 0.97, 0.99, 1.02, 1.1, 1.3)
FAMILIES = {
    "qwen3-8b": "You are an agent and always keep to the rules of the house. ",
    "llama3.1-8b": "あなたは倉庫の係です。規則を守ってください。",
    "gemma3-4b": "9f3c1a77-04be-4d21-b8aa-5e90 ",
    "some-model": "Ты работаешь на складе и всегда соблюдаешь правила. ",
    "some-other-model": "9f3c1a77-04be-4d21-b8aa-5e90 ",
}
"""Names that tell the tokenizer, and what is counted for them far off."""


def system(fill: float, text: str) -> str:
    """A system prompt that fills so much of the window with the rest of the request, by the backend's own count."""
    count, tokens = FakeTokenizer().count, fill * WINDOW - 16
    return text * (bisect_left(range(WINDOW), tokens, key=lambda n: count(text * n)) - 1)


def said(server: str, body: dict[str, Any]) -> str | int:
    """Return a server's answer, or the status of its error: 500 for one inside a stream."""
    response = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    if response.status_code != 200:
        return response.status_code
    if not body["stream"]:
        return str(response.json()["choices"][0]["message"]["content"] or "")
    seen = read_stream(response.content)
    return 500 if seen.errors else seen.text


# Whether it is streamed, and the words that the model would say.
ANSWERS = [(stream, words) for stream in (True, False) for words in (10, 400)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize(("stream", "words"), ANSWERS)
@pytest.mark.rows(3)
def test_no_answer_has_fewer_words_than_without_spillway(kind: str, stream: bool, words: int) -> None:
    """But an error with its cure where the prompt does not fit by the backend's own count. Each row has a model of its own."""
    rows = [(fill, f"{family}:{fill}", text) for fill in FILLS for family, text in FAMILIES.items()]
    models = [FakeModel(name, WINDOW) for _, name, _ in rows]
    with FAKES[kind](models, summariser(walk(last=words))) as fake, running_proxy(fake) as proxy:
        for fill, name, text in rows:
            messages = [{"role": "system", "content": system(fill, text)}, {"role": "user", "content": "go"}]
            body = {"model": name, "messages": messages, "stream": stream}
            alone = said(fake.url, body)
            before = len(fake.chats())
            through = said(proxy.url, body)
            sent = len(fake.chats()) - before
            if isinstance(through, int):
                assert (through, fill > 1) == (400, True), name
            elif isinstance(alone, str):
                assert len(through.split()) >= len(alone.split()), name
                assert words > 10 or sent <= 2, name

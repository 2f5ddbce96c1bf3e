from __future__ import annotations

from typing import Any

import pytest
from typing_extensions import override

from proxy.tokens.images import by_area
from proxy.tokens.messages import CountCache, Counter
from proxy.tokens.meter import Meter
from proxy.tokens.ratios import CALLS, IMAGES, MESSAGES, REASONING
from proxy.tokens.vocabulary import Library

KEY = ("local", "some-model")


class Words:
    """A vocabulary of words, which notes what it was asked to count."""

    id = "words"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def count(self, text: str) -> int:
        self.texts.append(text)
        return len(text.split())


class Loaded(Library):
    """A library that has one vocabulary under every name."""

    def __init__(self) -> None:
        super().__init__()
        self.words = Words()

    @override
    def get(self, name: str) -> Words:
        return self.words

    @override
    async def load(self, name: str, load: Any) -> Words:
        return self.words


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_counts_of_a_message() -> None:
    counter = Counter(Words(), exact=True, rule=by_area)
    plain = counter.message(user("a b c"))
    assert (plain[0], plain[MESSAGES]) == (3, 1)
    image = {"type": "image_url", "image_url": {"url": "https://x"}}
    call = {"function": {"name": "f", "arguments": "1 2"}}
    rich = {"content": [{"type": "text", "text": "a b"}, image], "tool_calls": [call], "reasoning": "r r r"}
    x = counter.message(rich)
    assert [x[i] for i in (0, MESSAGES, CALLS, REASONING, IMAGES)] == [5, 1, 1, 3, 1000]


@pytest.mark.anyio
async def test_a_message_is_counted_once_however_it_is_sent_again() -> None:
    library = Loaded()
    meter, messages = Meter(library=library), [{"role": "system", "content": "s"}, user("a b"), user("c d")]
    await meter.measure(KEY, {"messages": messages})
    await meter.measure(KEY, {"messages": [dict(message) for message in messages]})
    meter.costs(KEY, messages[::-1])
    await meter.measure(KEY, {"messages": [{"role": "system", "content": "another"}, *messages[1:]]})
    assert library.words.texts == ["s", "a b", "c d", "another"]


def test_counts_are_forgotten_beyond_the_limit() -> None:
    cache = CountCache(limit=2)
    for digest in (b"a", b"b", b"a", b"c"):
        if cache.find("x", [digest]) == [None]:
            cache.put("x", digest, (1.0,))
    assert cache.find("x", [b"a", b"b", b"c"]) == [(1.0,), None, (1.0,)]
    assert cache.find("y", [b"a"]) == [None]

"""Families whose vocabulary is not shipped, counted before a backend has reported anything."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from proxy.tokens.gguf import load_gguf
from proxy.tokens.library import Library
from proxy.tokens.meter import Meter
from proxy.tokens.vocabulary import Vocabulary
from tests.tokens.probe import sections

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
KEY = ("local", "llama2-7b-chat")
MESSAGE, BASE = 5, 8
"""Tokens of a template, as they are supposed before anything is known."""
SPOKEN = (
    *("english", "german", "french", "spanish", "portuguese", "polish", "turkish", "russian", "ukrainian"),
    *("arabic", "hebrew", "hindi", "greek", "thai", "chinese", "japanese", "korean", "vietnamese"),
)
BY_CHARACTERS = (
    *(
        "traditional",
        "chinese",
        "japanese",
        "korean",
        "hindi",
        "bengali",
        "tamil",
        "thai",
        "georgian",
        "amharic",
    ),
    *("armenian", "hebrew", "persian"),
)
CHATS = 800
"""Messages at the end of the collection: the prior was fitted to others."""


@cache
def llama2() -> Vocabulary:
    """Llama 2's, which Phi-3 took over."""
    return load_gguf(ROOT / "tests/engine/vocab/ggml-vocab-phi-3.gguf", "phi-3")


@cache
def library() -> Library:
    """One for all: what is loaded says nothing of what was counted before."""
    return Library()


async def error(*texts: str) -> float:
    """The relative error of a cold estimate of these messages."""
    meter = Meter(library=library())
    asked = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    true = BASE + sum(MESSAGE + llama2().count(text) for text in texts)
    return abs((await meter.measure(KEY, {"messages": asked})).tokens / true - 1)


@pytest.mark.parametrize("language", ["cn", "en"])
async def test_chats_are_counted_within_two_percent(language: str) -> None:
    talks = json.loads((ROOT / f"benchmarks/data/memorybank/{language}.json").read_text(encoding="utf-8"))
    said = [message["content"] for talk in talks for message in talk["messages"]][-CHATS:]
    assert await error(*said) < 0.02


async def test_many_languages_are_counted_better_than_from_the_general_vocabulary() -> None:
    errors = [await error(sections()[language]) for language in SPOKEN]
    assert sum(errors) / len(errors) < 0.025
    assert max(errors) < 0.07


@pytest.mark.parametrize("language", BY_CHARACTERS)
async def test_where_a_token_is_a_character_those_that_have_one_tell_all(language: str) -> None:
    """The others take a token for each of their bytes, and no share of a script says which they are."""
    assert await error(*[sections()[language]] * 20) < 0.03


async def test_languages_together_are_counted_within_two_percent() -> None:
    assert await error(*(sections()[language] for language in SPOKEN)) < 0.02


@pytest.mark.parametrize("kind", ["python", "json", "logs", "csv"])
async def test_code_and_data_are_counted_within_five_percent(kind: str) -> None:
    assert await error(sections()[kind]) < 0.05


async def test_only_the_vocabulary_that_the_prior_corrects_is_loaded() -> None:
    library = Library()
    meter = Meter(library=library)
    await meter.measure(KEY, {"messages": [{"role": "user", "content": "hello"}]})
    assert (library.get("llama2") is None, library.get("o200k")) == (False, None)

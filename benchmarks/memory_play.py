"""One recorded chat through the real proxy, and what of it is in the prompts that reach the backend."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import httpx
import orjson

from benchmarks.memory_data import Asked, Dialogue
from benchmarks.memory_keeper import asks_notes, keeper, looks_up, notes
from benchmarks.survival_model import asks_summary
from proxy.core.history.marks import RECALLED
from proxy.core.request import Message, text_of
from proxy.recall.words import terms
from tests.fakes import FakeModel, FakeTokenizer, LlamaCppFake, Question, Reply
from tests.prefix import common
from tests.proxying import running_proxy

_COUNT = FakeTokenizer().count
_FIRST = 5
"""Words of each line that the scripted summary takes."""
_PER_MESSAGE = 6


@dataclass(slots=True)
class Found:
    """Shares are counts: evidence messages, and words of answers, that are in the prompt, of so many."""

    evidence: int = 0
    of_evidence: int = 0
    words: int = 0
    of_words: int = 0

    def look(self, asked: Asked, messages: Sequence[Message], prompt: str) -> None:
        """Look for what a question needs in a prompt, the question itself not counted."""
        said = " ".join(prompt.split())
        texts = [" ".join(_own(messages[at]).split()) for at in asked.evidence]
        self.evidence += sum(text in said for text in texts)
        self.of_evidence += len(texts)
        self.words += sum(word.casefold() in said.casefold() for word in asked.answer)
        self.of_words += len(asked.answer)


@dataclass(slots=True)
class Played:
    """What came of one chat in one window."""

    spillway: Found = field(default_factory=Found)
    newest: Found = field(default_factory=Found)
    bm25: Found = field(default_factory=Found)
    turns: int = 0
    recalled: int = 0
    """Turns of the chat itself for which something was recalled."""
    kept: int = 0
    shown: int = 0
    """Bytes of the prompts before, and how many of them the next prompt begins with."""
    summaries: int = 0
    wrong: int = 0
    """Overflows, cut prompts, invalid histories, answers other than 200."""


class _Script:
    """Says what the recorded assistant said, and summarises by the first words of each line."""

    def __init__(self) -> None:
        self.text = ""
        self.summaries = 0
        self.searches = False
        """Whether the model uses a tool to search, where it is given one."""

    def brain(self, question: Question) -> Reply:
        """The next answer."""
        messages, kept = question.messages, asks_notes(list(question.messages))
        if not (kept or asks_summary(messages)):
            return (looks_up(question) if self.searches else None) or Reply(text=self.text)
        self.summaries += 1
        lines = [line for message in messages for line in text_of(message).split("\n")]
        words = "; ".join(" ".join(line.split()[:_FIRST])[:40] for line in lines if line.strip())
        return Reply(text=notes(words) if kept else words)


class Front(Protocol):
    """What stands in front of the backend."""

    def chat(self, body: dict[str, Any]) -> httpx.Response:
        """Post a chat request."""
        ...


def play(dialogue: Dialogue, window: int, **settings: Any) -> Played:
    """Play a chat turn by turn through Spillway, then ask every question at its end; `settings` are Spillway's."""
    return _play(dialogue, window, lambda fake: running_proxy(fake, **settings), searches=False)


def play_kept(dialogue: Dialogue, window: int, *, searches: bool) -> Played:
    """The same through ctxkeeper, with a model that searches its archive for each question, or does not."""
    return _play(dialogue, window, partial(keeper, window=window), searches=searches)


def _play(
    dialogue: Dialogue, window: int, front: Callable[[LlamaCppFake], AbstractContextManager[Front]], *, searches: bool
) -> Played:
    logging.getLogger("spillway").addHandler(logging.NullHandler())
    script, played = _Script(), Played()
    fake = LlamaCppFake([FakeModel("m", window)], script.brain, tokens_per_chunk=16)
    with fake, front(fake) as proxy:
        before = b""
        for at, message in enumerate(dialogue.messages):
            if message["role"] == "user" and at + 1 < len(dialogue.messages):
                script.text = dialogue.messages[at + 1]["content"]
                before = _turn(played, _ask(fake, proxy, played, dialogue.messages[: at + 1]), before)
        script.text, script.searches = "I see.", searches
        for asked in dialogue.questions:
            question: Message = {"role": "user", "content": asked.question}
            sent = _ask(fake, proxy, played, [*dialogue.messages, question])
            _judge(played, dialogue, asked, sent)
    played.summaries = script.summaries
    played.wrong += fake.overflows + fake.cuts + len(fake.invalid_histories)
    return played


def _ask(fake: LlamaCppFake, proxy: Front, played: Played, messages: Sequence[Message]) -> list[Message]:
    """The messages that reached the backend for one request."""
    answer = proxy.chat({"model": "m", "messages": list(messages)})
    played.wrong += answer.status_code != 200
    chats = [request.json["messages"] for request in fake.chats()]
    sent: list[Message] = [each for each in chats if not asks_notes(each)][-1]
    fake.requests.clear()
    return sent


def _turn(played: Played, sent: Sequence[Message], before: bytes) -> bytes:
    prompt = b"".join(map(orjson.dumps, sent))
    played.turns += 1
    played.recalled += text_of(sent[-1]).startswith(RECALLED)
    played.shown += len(before)
    played.kept += common(before, prompt)
    return prompt


def _judge(played: Played, dialogue: Dialogue, asked: Asked, sent: Sequence[Message]) -> None:
    texts = [text_of(message) for message in sent]
    place = max(at for at, text in enumerate(texts) if asked.question in text)
    texts[place] = texts[place].replace(asked.question, "")
    room = sum(_COUNT(text) + _PER_MESSAGE for text in texts)
    played.spillway.look(asked, dialogue.messages, "\n".join(texts))
    messages = dialogue.messages
    played.newest.look(asked, messages, _joined(messages, _newest(messages, room)))
    tail = _newest(messages, room / 2)
    found = _best(messages, len(messages) - len(tail), asked.question, room / 2)
    played.bm25.look(asked, messages, _joined(messages, [*found, *tail]))


# -- what it is measured against


def _newest(messages: Sequence[Message], room: float) -> list[int]:
    """As many of the newest messages as fit."""
    kept: list[int] = []
    for at in reversed(range(len(messages))):
        room -= _cost(messages[at])
        if room < 0:
            break
        kept.insert(0, at)
    return kept


def _best(messages: Sequence[Message], upto: int, question: str, room: float) -> list[int]:
    """The best of the others by plain BM25 (k1 1.2, b 0.75) as fit."""
    counts = [Counter(terms(_own(message))) for message in messages[:upto]]
    mean = sum(map(Counter.total, counts)) / max(1, upto)
    scores = [0.0] * upto
    for term in set(terms(question)):
        having = [at for at, count in enumerate(counts) if term in count]
        idf = math.log(1 + (upto - len(having) + 0.5) / (len(having) + 0.5))
        for at in having:
            norm = 1.2 * (0.25 + 0.75 * counts[at].total() / mean)
            scores[at] += idf * counts[at][term] * 2.2 / (counts[at][term] + norm)
    kept: list[int] = []
    for at in sorted(range(upto), key=lambda at: -scores[at]):
        if scores[at] > 0 and _cost(messages[at]) <= room:
            room -= _cost(messages[at])
            kept.append(at)
    return kept


def _own(message: Message) -> str:
    """What was said, without the day in front of it."""
    text = text_of(message)
    return text[13:] if text.startswith("[20") and text[11:13] == "] " else text


def _cost(message: Message) -> int:
    return _COUNT(text_of(message)) + _PER_MESSAGE


def _joined(messages: Sequence[Message], indexes: Sequence[int]) -> str:
    return "\n".join(text_of(messages[at]) for at in indexes)

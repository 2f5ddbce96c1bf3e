"""One recorded chat through the real proxy, and what of it is in the prompts that reach the backend."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import httpx
import orjson

from benchmarks.memory_data import Asked, Dialogue
from benchmarks.memory_keeper import asks_notes, keeper, looks_up, notes
from benchmarks.survival_model import asks_summary
from proxy.core.history.marks import RECALLED, RECALLED_END
from proxy.core.request import Message, text_of
from proxy.recall.passages import spans_of
from proxy.recall.words import terms
from tests.fakes import FakeModel, FakeTokenizer, LlamaCppFake, Question, Reply
from tests.prefix import common
from tests.proxying import running_proxy

_COUNT = FakeTokenizer().count
_FIRST = 5
"""Words of each line that the scripted summary takes."""
_PER_MESSAGE = 6
_SPREAD = 10
"""Turns at the end, after each of which a share of the questions is asked: the room in one prompt would be luck."""
_Piece: TypeAlias = tuple[int, str, "Counter[str]", int]
"""A passage: the index of its message, its text, how often it has each term, its tokens."""


@dataclass(slots=True)
class Found:
    """What was in the prompts of some questions; counts, of so many each."""

    asked: int = 0
    evidence: int = 0
    of_evidence: int = 0
    words: int = 0
    of_words: int = 0
    only_old: int = 0
    """Questions in whose prompt stands a value that was changed, and not the newest one."""
    of_changed: int = 0
    tokens: int = 0
    """Recalled."""

    def look(self, asked: Asked, prompt: str, tokens: int = 0) -> None:
        """Look for what a question needs in a prompt, the question itself not counted."""
        text = " ".join(prompt.split())
        found = sum(" ".join(each.split()) in text for each in asked.evidence)
        self.asked += 1
        self.evidence += found
        self.of_evidence += len(asked.evidence)
        self.words += sum(word.casefold() in text.casefold() for word in asked.answer)
        self.of_words += len(asked.answer)
        self.only_old += not found and any(re.search(rf"(?<!\w){re.escape(old)}(?!\w)", text) for old in asked.old)
        self.of_changed += bool(asked.old)
        self.tokens += tokens


@dataclass(slots=True)
class Played:
    """What came of one chat in one window."""

    found: dict[tuple[str, str], Found] = field(default_factory=dict)
    """By whose prompt it is and the kind of question."""
    turns: int = 0
    recalled: int = 0
    """Turns of the chat itself for which something was recalled."""
    tokens: int = 0
    """Recalled on them."""
    kept: int = 0
    shown: int = 0
    """Bytes of the prompts before, and how many of them the next prompt begins with."""
    compacted: int = 0
    """Turns of the chat itself before which the history was shortened, by a model or by code."""
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
    """Play a chat turn by turn through Spillway, and ask each question after one of its last turns; `settings` are Spillway's."""
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
    places = [at for at, message in enumerate(dialogue.messages) if message["role"] in ("user", "tool")]
    with fake, front(fake) as proxy:
        before, pieces, turns = b"", _pieces(dialogue), 0
        for at, left in zip(places, reversed(range(len(places))), strict=True):
            script.text = text_of(dialogue.messages[at + 1]) or "Let me look."
            sent = _ask(fake, proxy, played, dialogue.messages[: at + 1])
            if left >= _SPREAD:
                before, played.summaries = _turn(played, sent, before), script.summaries
                turns = played.compacted
                continue
            script.text, script.searches = "I see.", searches
            said = dialogue.messages[: at + 2]
            text = " ".join(" ".join(map(text_of, said)).split())
            for asked in dialogue.questions[left::_SPREAD]:
                if known := _known(asked, text):
                    question: Message = {"role": "user", "content": asked.question}
                    _judge(played, said, pieces, known, _ask(fake, proxy, played, [*said, question]))
            script.searches = False
    played.compacted = turns
    played.wrong += fake.overflows + fake.cuts + len(fake.invalid_histories)
    return played


def _known(asked: Asked, text: str) -> Asked | None:
    """The question with what of its evidence is in the text of what was said; None if nothing is yet."""
    evidence = tuple(each for each in asked.evidence if " ".join(each.split()) in text)
    return replace(asked, evidence=evidence) if evidence or not asked.evidence else None


def _ask(fake: LlamaCppFake, proxy: Front, played: Played, messages: Sequence[Message]) -> list[Message]:
    """The messages that reached the backend for one request."""
    answer = proxy.chat({"model": "m", "messages": list(messages)})
    played.wrong += answer.status_code != 200
    played.compacted += answer.headers.get("x-spillway-action") in ("compacted", "pruned")
    chats = [request.json["messages"] for request in fake.chats()]
    sent: list[Message] = [each for each in chats if not asks_notes(each)][-1]
    fake.requests.clear()
    return sent


def _turn(played: Played, sent: Sequence[Message], before: bytes) -> bytes:
    prompt = b"".join(map(orjson.dumps, sent))
    tokens = _recalled(sent)
    played.turns += 1
    played.recalled += tokens > 0
    played.tokens += tokens
    played.shown += len(before)
    played.kept += common(before, prompt)
    return prompt


def _recalled(sent: Sequence[Message]) -> int:
    """Tokens of what stands in front of the newest message, if it is the user's."""
    text = text_of(sent[-1])
    return _COUNT(text.partition(RECALLED_END)[0]) if text.startswith(RECALLED) else 0


def _judge(
    played: Played, messages: Sequence[Message], pieces: Sequence[_Piece], asked: Asked, sent: Sequence[Message]
) -> None:
    texts = [text_of(message) for message in sent]
    place = max(at for at, text in enumerate(texts) if asked.question in text)
    texts[place] = texts[place].replace(asked.question, "")
    room = sum(_COUNT(text) + _PER_MESSAGE for text in texts)
    tail = _newest(messages, room / 2)
    best = _best(pieces, len(messages) - len(tail), asked.question, room / 2)
    prompts = {
        "Spillway": texts,
        "newest turns": [text_of(messages[at]) for at in _newest(messages, room)],
        "plain BM25": [*best, *(text_of(messages[at]) for at in tail)],
    }
    for name, prompt in prompts.items():
        found = played.found.setdefault((name, asked.kind), Found())
        found.look(asked, "\n".join(prompt), _recalled(sent) if name == "Spillway" else 0)


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


def _pieces(dialogue: Dialogue) -> list[_Piece]:
    """The passages of a chat."""
    found: list[_Piece] = []
    for at, message in enumerate(dialogue.messages):
        text = _own(message)
        for start, end in spans_of(text):
            piece = text[start:end]
            found.append((at, piece, Counter(terms(piece)), _COUNT(piece) + _PER_MESSAGE))
    return found


def _best(pieces: Sequence[_Piece], upto: int, question: str, room: float) -> list[str]:
    """The best passages of the messages before by plain BM25 (k1 1.2, b 0.75) as fit."""
    older = [piece for piece in pieces if piece[0] < upto]
    mean = sum(count.total() for _, _, count, _ in older) / max(1, len(older))
    scores = [0.0] * len(older)
    for term in set(terms(question)):
        having = [(at, piece[2]) for at, piece in enumerate(older) if term in piece[2]]
        idf = math.log(1 + (len(older) - len(having) + 0.5) / (len(having) + 0.5))
        for at, count in having:
            scores[at] += idf * count[term] * 2.2 / (count[term] + 1.2 * (0.25 + 0.75 * count.total() / mean))
    kept: list[str] = []
    for at in sorted(range(len(older)), key=lambda at: -scores[at]):
        _, text, _, tokens = older[at]
        if scores[at] > 0 and tokens <= room:
            room -= tokens
            kept.append(text)
    return kept


def _own(message: Message) -> str:
    """What was said, without the day in front of it."""
    text = text_of(message)
    return text[13:] if text.startswith("[20") and text[11:13] == "] " else text


def _cost(message: Message) -> int:
    return _COUNT(text_of(message)) + _PER_MESSAGE

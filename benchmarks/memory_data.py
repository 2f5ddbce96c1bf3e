"""Recorded chats with questions about them, whose evidence is annotated: MemoryBank's (benchmarks/data/memorybank)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.core.request import Message

DATA = Path(__file__).parent / "data" / "memorybank"
TOGETHER = 5
"""Users whose chats are laid day by day into one, of about 400 messages: as long as those that one user has in months."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the texts that answer it, and the words that a right answer has."""

    question: str
    evidence: tuple[str, ...]
    answer: tuple[str, ...]
    kind: str = "questions"
    old: tuple[str, ...] = ()
    """Values that the answer had before it changed."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A chat of user and assistant in turns, and what is asked at its end."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[Asked, ...]


def dialogues(language: str) -> tuple[list[Dialogue], list[Dialogue]]:
    """The chats of single users (about 75 messages each), and the long ones made of several of them."""
    users = json.loads((DATA / f"{language}.json").read_text(encoding="utf-8"))
    single = [_dialogue(user["user"], [user]) for user in users]
    return single, [_dialogue(f"{language} {part[0]['user']} …", part) for part in _parts(users)]


def _parts(users: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(users), TOGETHER):
        yield users[start : start + TOGETHER]


def _dialogue(name: str, users: Sequence[dict[str, Any]]) -> Dialogue:
    """Day by day; the first message of each user's day begins with it, for nothing else in the text tells."""
    order = sorted(
        (message["day"], who, number)
        for who, user in enumerate(users)
        for number, message in enumerate(user["messages"])
    )
    messages: list[Message] = []
    before: tuple[str, int] | None = None
    for day, who, number in order:
        said = users[who]["messages"][number]
        stamp = f"[{day}] " if before != (day, who) else ""
        before = (day, who)
        messages.append({"role": said["role"], "content": stamp + said["content"]})
    questions = tuple(
        Asked(text, tuple(user["messages"][at]["content"] for at in asked["evidence"]), tuple(asked["answer"]), kind)
        for user in users
        for asked in user["questions"]
        for text, kind in _forms(asked["question"])
    )
    return Dialogue(name, tuple(messages), questions)


def _forms(question: str) -> list[tuple[str, str]]:
    """The question, and what stays of it for those who type no question marks."""
    bare = question.rstrip("?\uff1f\"' ")
    return [(question, "questions"), *([(bare, "no mark")] if bare != question else [])]

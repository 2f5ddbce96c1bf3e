"""Queue of changes for one viewer: each conversation once, however often something happened in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeVar

from proxy.addons.live.book import Book
from proxy.addons.live.record import Record, Talk
from proxy.addons.live.telling import Viewer

T = TypeVar("T")

MOST_WAITING = 200
"""Of ended requests, of forgotten conversations and of what was learned; of more the viewer is told by a new snapshot."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Changes since the viewer's last update."""

    talks: list[Talk]
    ended: list[Record]
    learned: list[tuple[str, str, str]]
    gone: list[str]
    missed: bool
    """Whether there was more than is kept for it."""


class Feed:
    """Collects for one viewer, who takes it whenever there is time; `only`: of one conversation."""

    def __init__(self, book: Book, viewer: Viewer, only: str = "") -> None:
        self.viewer = viewer
        self._book = book
        self.only = only
        self._talks: dict[str, Talk] = {}
        self._ended: deque[Record] = deque()
        self._learned: deque[tuple[str, str, str]] = deque()
        self._gone: deque[str] = deque()
        self._missed = False

    def shows(self, talk: Talk) -> bool:
        """Return whether the viewer gets updates of a conversation."""
        return self.viewer.sees(talk.tenant) and self.only in ("", talk.id)

    def changed(self, talk: Talk) -> None:
        """Something happened in a conversation."""
        if self.shows(talk):
            self._talks[talk.id] = talk

    def ended(self, record: Record) -> None:
        """A request is over."""
        talk = record.talk
        if self.viewer.sees(record.tenant) and (not self.only or (talk is not None and talk.id == self.only)):
            self._add(self._ended, record)

    def learned(self, backend: str, model: str, what: str) -> None:
        """Something is known of a model that was not."""
        if not self.only:
            self._add(self._learned, (backend, model, what))

    def gone(self, talk: Talk) -> None:
        """A conversation is forgotten."""
        self._talks.pop(talk.id, None)
        if self.shows(talk):
            self._add(self._gone, talk.id)

    def _add(self, waiting: deque[T], what: T) -> None:
        if len(waiting) >= MOST_WAITING:
            self._missed = True
        else:
            waiting.append(what)

    def take(self) -> Waiting:
        """All of it; from now on it collects anew."""
        waiting = Waiting(
            list(self._talks.values()),
            list(self._ended),
            list(dict.fromkeys(self._learned)),
            list(self._gone),
            self._missed,
        )
        self._missed = False
        for each in (self._talks, self._ended, self._learned, self._gone):
            each.clear()
        return waiting

    def answering(self) -> list[Talk]:
        """Conversations in which an answer is being made."""
        return [talk for talk in self._book.answering() if self.shows(talk)]

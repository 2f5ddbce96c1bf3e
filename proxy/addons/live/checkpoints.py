"""The summary that stands for the covered part of a conversation: shown, and forgotten."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from proxy.addon import AddOn
from proxy.addons.live.book import Book
from proxy.addons.live.record import Note, Record, Talk
from proxy.addons.live.telling import note_of
from proxy.core.errors import Conflict, NotFound, StoreUnavailable
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.history.marks import CLOSE, EXTRACT, HEADING, MORE_QUOTES, NAMES, OPEN, carried_rules, is_summary
from proxy.core.request import Message
from proxy.store import Store
from proxy.tokens.meter import Meter

_BLOCK = re.compile(f"{re.escape(OPEN)}\n(.*?)\n{re.escape(CLOSE)}", re.DOTALL)


class TalkCheckpoints:
    """Reads and deletes the checkpoints with which the next prompts of conversations will begin."""

    def __init__(self, *, book: Book, store: Store, meter: Meter, addons: Sequence[AddOn]) -> None:
        self._book = book
        self._store = store
        self._meter = meter
        self._addons = addons

    async def current(self, talk: Talk) -> dict[str, Any]:
        """Describe the checkpoint that holds now.

        Raises:
            NotFound: there is none.
        """
        return self._described(talk, await self._current(talk))

    async def forget(self, talk: Talk) -> dict[str, Any]:
        """Go back to the checkpoint before.

        Raises:
            NotFound: there is none to forget.
            Conflict: a request of the conversation is being served, which would store it again.
            StoreUnavailable: the store takes no changes.
        """
        if talk.running is not None:
            raise Conflict("A request of this conversation is being served: try again when it is done.", code="busy")
        found = await self._current(talk)
        for addon in self._addons:
            await addon.forgotten(found.scope, _links(talk.newest))
        if not await self._store.drop(found.scope, found.digest):
            raise StoreUnavailable("The store takes no changes now: try again later.")
        talk.notes.pop(found.digest, None)
        before = await self._find(talk)
        talk.newest.note = None if before is None else Note.of(before)
        for each in self._book.watching:
            each.changed(talk)
        return {"rejected": True, "summary": None if before is None else self._described(talk, before)}

    async def _current(self, talk: Talk) -> Checkpoint:
        found = await self._find(talk)
        if found is None:
            raise NotFound(
                "No summary stands in the prompt of this conversation: nothing of it was shortened.", code="no_summary"
            )
        return found

    async def _find(self, talk: Talk) -> Checkpoint | None:
        """The checkpoint with which the next prompt will begin, as far as that is known before it comes."""
        record = talk.newest
        links = _links(record)
        # A compaction ahead of time may cover the answer too, which is in no request yet.
        later = [
            note.digest
            for note in reversed(talk.notes.values())
            if note.created >= record.at and note.digest not in links
        ]
        return await self._store.find(record.scope, [*later, *reversed(links)])

    def _described(self, talk: Talk, checkpoint: Checkpoint) -> dict[str, Any]:
        key = talk.newest.outcome.key
        return {
            "conversation": talk.id,
            "checkpoint": note_of(Note.of(checkpoint)),
            "tokens_before": checkpoint.tokens_before,
            "tokens_after": checkpoint.tokens_after,
            "blocks": list(_blocks(checkpoint.replacement, lambda text: self._meter.count_text(key, text))),
            "verdicts": [{"at": at, "verdict": verdict} for at, verdict in talk.verdicts],
            "messages": list(checkpoint.replacement),
            "earlier": sum(note.covered < checkpoint.covered for note in talk.notes.values()),
        }


def _links(record: Record) -> Sequence[bytes]:
    return record.links if record.job is None else record.job.prompt.links


def _blocks(messages: Sequence[Message], count: Callable[[str], int]) -> Iterator[dict[str, Any]]:
    """Summary blocks, oldest first: what was written, and what code put behind it; `count` gives the tokens of a text."""
    summaries = filter(is_summary, messages)
    blocks = ((message, found) for message in summaries for found in _BLOCK.finditer(message["content"]))
    for index, (message, found) in enumerate(blocks):
        inside = found[1]
        end = _end_of_text(inside)
        text = inside[:end].removeprefix(f"{EXTRACT}\n")
        yield {
            "index": index,
            "text": text,
            "appended": inside[end:].strip("\n"),
            "rules": carried_rules({**message, "content": found[0]}),
            "by": "extract" if inside.startswith(f"{EXTRACT}\n") else "written",
            "tokens": count(text + inside[end:]),
        }


def _end_of_text(inside: str) -> int:
    """Index of what code put behind a text: more that the user said, names, the user's rules."""
    end = len(inside)
    for mark in (HEADING, NAMES, MORE_QUOTES):
        place = inside.rfind(f"\n{mark}", 0, end)
        end = place if place >= 0 else end
    return end

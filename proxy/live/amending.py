"""Summaries in the hands of those whose conversations they are of: looked at, edited, rejected, written anew.

What is changed is the checkpoint in the store, under the key that it belongs to: the next prompt begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy.dialects import CHAT
from proxy.errors import BadRequest, Conflict, NotFound, StoreUnavailable
from proxy.exchange import Exchange
from proxy.history.checkpoint import EDITED, Checkpoint, Checkpoints
from proxy.live.blocks import blocks_in, told, with_text
from proxy.live.book import Book
from proxy.live.record import Note, Record, Talk
from proxy.live.telling import note_of
from proxy.net.apart import apart
from proxy.neutral.managing import CompactionWish
from proxy.neutral.request import Request
from proxy.neutral.weight import HEAVY
from proxy.stages.ahead import AheadCompactor
from proxy.stages.compacting import Compactor
from proxy.stages.job import Job
from proxy.stages.preparing import Preparer
from proxy.telemetry.journal import Journals
from proxy.tokens.meter import Meter

_LEAST_ROOM, _SHARE = 2048, 8
"""Tokens, and the part of the window, that the text of a summary may take."""
LONGEST_WISH = 2000
"""Characters of what a summary is to take care of."""
_WISH = (
    "Summarise the conversation so that it can be continued without the original messages. Keep names, numbers, paths and exact "
    "values. Whoever reads it has asked that you take care of this: {}"
)


class Amender:
    """Works on the summaries of conversations."""

    def __init__(
        self,
        *,
        book: Book,
        store: Checkpoints,
        meter: Meter,
        preparer: Preparer,
        compactor: Compactor,
        ahead: AheadCompactor,
        journals: Journals,
    ) -> None:
        self._book = book
        self._store = store
        self._meter = meter
        self._preparer = preparer
        self._compactor = compactor
        self._ahead = ahead
        self._journals = journals

    async def summary(self, talk: Talk) -> dict[str, Any]:
        """What stands for the covered part of a conversation now.

        Raises:
            NotFound: nothing does.
        """
        return self._told(talk, await self._current(talk))

    async def edit(self, talk: Talk, text: str, block: int | None) -> dict[str, Any]:
        """Put another text into a block, the newest by default.

        Raises:
            BadRequest: it is empty, or too long; there is no such block.
            NotFound, Conflict, StoreUnavailable: nothing is there to be edited; not now.
        """
        self._check_idle(talk)
        found = await self._current(talk)
        blocks = blocks_in(found.replacement)
        at = len(blocks) - 1 if block is None else block
        if not 0 <= at < len(blocks):
            raise BadRequest(f"There is no block {at}: the summary has {len(blocks)}.", param="block")
        outcome = talk.newest.outcome
        key, window = outcome.key, outcome.window
        most = max(_LEAST_ROOM, (window or 0) // _SHARE)
        if not text.strip():
            raise BadRequest("`text` must say something; to do without a summary, delete it.", param="text")
        if len(text) > 16 * most or self._meter.count_text(key, text) > most:
            raise BadRequest(f"`text` may have {most} tokens.", param="text")
        messages = with_text(found.replacement, blocks[at], text)
        before = sum(self._meter.costs(key, found.replacement))
        grown = round(sum(self._meter.costs(key, messages)) - before)
        await self._ahead.give_up(found.scope, self._links(talk.newest))
        edited = replace(
            found,
            replacement=tuple(messages),
            kind=EDITED,
            tokens_after=max(0, found.tokens_after + grown),
            created=self._book.clock(),
        )
        await self._put(edited)
        self._noted(talk, edited)
        return self._told(talk, edited)

    async def reject(self, talk: Talk) -> dict[str, Any]:
        """Go back to the checkpoint before.

        Raises:
            NotFound, Conflict, StoreUnavailable: see `edit`.
        """
        self._check_idle(talk)
        found = await self._current(talk)
        await self._ahead.give_up(found.scope, self._links(talk.newest))
        await self._drop(found)
        talk.notes.pop(found.digest, None)
        before = await self._find(talk)
        talk.newest.note = None if before is None else Note.of(before)
        self._changed(talk)
        return {"rejected": True, "summary": None if before is None else self._told(talk, before)}

    async def rewrite(self, talk: Talk, wish: str) -> dict[str, Any]:
        """Have the newest summary written anew; `wish`: what to take care of, empty: nothing of its own.

        Raises:
            Conflict: not now, or none came that is any good: the old one stays.
            BadRequest, NotFound, StoreUnavailable: see `edit`.
        """
        self._check_idle(talk)
        if len(wish) > LONGEST_WISH:
            raise BadRequest(f"`instructions` may have {LONGEST_WISH} characters.", param="instructions")
        found, record = await self._current(talk), talk.newest
        if record.bodies is None or talk.way is None:
            raise Conflict(
                "The newest request of this conversation is not kept any more: it can be rewritten after the next one.",
                code="not_kept",
            )
        await self._ahead.give_up(found.scope, self._links(record))
        talk.rewriting, made = True, None
        try:
            await self._drop(found)
            made = await self._anew(talk, record, wish)
        finally:
            talk.rewriting = False
            if made is None:
                await self._store.put(found)
        if made is None:
            raise Conflict(
                "The model wrote no summary that is fit to be used; the old one stays. Its verdict is in `verdicts`.",
                code="not_rewritten",
            )
        talk.notes.pop(found.digest, None)
        self._noted(talk, made)
        return self._told(talk, made)

    # -- inside

    async def _anew(self, talk: Talk, record: Record, wish: str) -> Checkpoint | None:
        """A checkpoint with a summary that a model has just written; None: there is none."""
        way, bodies = talk.way, record.bodies
        assert way is not None
        assert bodies is not None
        asked = bodies.asked
        request = (
            asked if isinstance(asked, Request) else await apart(len(asked) > HEAVY, CHAT.read, asked, asked)
        )
        journal = self._journals.aside(f"rewrite_{record.unique}", record.outcome)
        exchange = Exchange.of(way.who)
        job = await self._preparer.prepare(exchange, journal, way.dialect, request, way.route)
        instructions = _WISH.format(wish) if wish else ""
        job.asked = replace(job.asked, compaction=CompactionWish(instructions=instructions))
        if not await self._compacted(job) or journal.outcome.summary != "written":
            if (made := job.prompt.checkpoint) is not None and journal.outcome.compactions:
                await self._store.drop(made.scope, made.digest)
            return None
        return job.prompt.checkpoint

    async def _compacted(self, job: Job) -> bool:
        budget = job.budget
        return budget is not None and await self._compactor.compact(job, goal=budget.goal)

    def _check_idle(self, talk: Talk) -> None:
        """Raises Conflict: what a running request stores would undo what is done here."""
        if talk.running is not None or talk.rewriting:
            raise Conflict(
                "A request of this conversation is being served: try again when it is done.", code="busy"
            )

    async def _current(self, talk: Talk) -> Checkpoint:
        found = await self._find(talk)
        if found is None:
            raise NotFound(
                "No summary stands in the prompt of this conversation: nothing of it was shortened.",
                code="no_summary",
            )
        return found

    async def _find(self, talk: Talk) -> Checkpoint | None:
        """The checkpoint with which the next prompt will begin, as far as that can be told before it comes."""
        record = talk.newest
        links = self._links(record)
        # What was made ahead of time may cover the answer too, which is in no request yet.
        later = [
            note.digest
            for note in reversed(talk.notes.values())
            if note.created >= record.at and note.digest not in links
        ]
        return await self._store.find(record.scope, [*later, *reversed(links)])

    def _links(self, record: Record) -> Sequence[bytes]:
        return record.links if record.job is None else record.job.prompt.links

    async def _put(self, checkpoint: Checkpoint) -> None:
        if not await self._store.put(checkpoint):
            raise BadRequest("This is larger than the store takes (SPILLWAY_STORE_BYTES).", param="text")

    async def _drop(self, checkpoint: Checkpoint) -> None:
        if not await self._store.drop(checkpoint.scope, checkpoint.digest):
            raise StoreUnavailable("The store takes no changes now: try again later.")

    def _noted(self, talk: Talk, checkpoint: Checkpoint) -> None:
        note = Note.of(checkpoint)
        self._book.noted(talk, note)
        talk.newest.note = note
        self._changed(talk)

    def _changed(self, talk: Talk) -> None:
        for each in self._book.watching:
            each.changed(talk)

    def _told(self, talk: Talk, checkpoint: Checkpoint) -> dict[str, Any]:
        key = talk.newest.outcome.key
        edited = checkpoint.kind == EDITED
        return {
            "conversation": talk.id,
            "checkpoint": note_of(Note.of(checkpoint)),
            "tokens_before": checkpoint.tokens_before,
            "tokens_after": checkpoint.tokens_after,
            "blocks": told(
                blocks_in(checkpoint.replacement),
                lambda text: self._meter.count_text(key, text),
                edited=edited,
            ),
            "verdicts": [{"at": at, "verdict": verdict} for at, verdict in talk.verdicts],
            "messages": list(checkpoint.replacement),
            "earlier": sum(note.covered < checkpoint.covered for note in talk.notes.values()),
        }

"""Looks things up in the book for a viewer, who is told of nothing that is not theirs to see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from proxy import __version__
from proxy.addons.live.book import Book
from proxy.addons.live.diff import DiffLine, What, lines_of, shown
from proxy.addons.live.parts import parsed, parts_in
from proxy.addons.live.record import Parts, Record, Talk
from proxy.addons.live.telling import Viewer, outcome_of, row_of, turn_of, visible
from proxy.core.errors import BadRequest, Conflict, NotFound
from proxy.core.piece import whole_number
from proxy.core.request import Message, Request
from proxy.net.tasks import offload_if
from proxy.tokens.meter import Meter

MOST_TURNS = 200
"""Of a timeline, the newest."""
AT_ONCE = 20
"""Rows that are told before something else has its turn."""
_DIGITS = 12
_YES = ("1", "true", "yes")


class Looker:
    """Reads the book."""

    version = __version__

    def __init__(self, book: Book, meter: Meter) -> None:
        self.book = book
        self._meter = meter

    # -- conversations

    async def rows(self, talks: Iterable[Talk], viewer: Viewer) -> list[dict[str, Any]]:
        """Rows of these conversations."""
        rows = []
        for number, talk in enumerate(talks, start=1):
            rows.append(await self.row(talk, viewer))
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        return rows

    async def row(self, talk: Talk, viewer: Viewer) -> dict[str, Any]:
        """One row."""
        parts = await self._parts(talk.shown)
        return row_of(talk, viewer, self.book.now(), parts)

    def talks(self, viewer: Viewer, query: Mapping[str, str], most: int) -> list[Talk]:
        """Conversations that a viewer may see and asks for, newest first."""
        found: list[Talk] = []
        for talk in visible(self.book.talks(), viewer):
            outcome = talk.shown.outcome
            if not all(query.get(name) in (None, getattr(outcome, name)) for name in ("model", "backend")):
                continue
            if query.get("background") == "false" and talk.shown.background:
                continue
            found.append(talk)
            if len(found) >= most:
                break
        return found

    def talk(self, name: str, viewer: Viewer) -> Talk:
        """One conversation.

        Raises:
            NotFound: there is none that this viewer may see.
        """
        talk = self.book.talk(name)
        if talk is None or not viewer.sees(talk.tenant):
            raise NotFound(f"There is no conversation {name!r}: it may be one that is not kept any more.")
        return talk

    async def timeline(self, talk: Talk, viewer: Viewer) -> dict[str, Any]:
        """A conversation with its turns."""
        now = self.book.now()
        return {
            **await self.row(talk, viewer),
            "timeline": [turn_of(each, now) for each in [*talk.records][-MOST_TURNS:]],
        }

    async def _parts(self, record: Record) -> Parts | None:
        """Break down the prompt of a request, once for each body."""
        record.sample()
        if record.bodies is not None and record.bodies.forwarded and (record.parts or (0,))[0] != record.posted:
            posted = record.posted
            parts = await parts_in(self._meter, record.outcome.key, record.bodies.forwarded, record.prompt or 0)
            record.parts = None if parts is None else (posted, parts)
        return None if record.parts is None else record.parts[1]

    # -- requests

    def record(self, name: str, viewer: Viewer) -> Record:
        """The newest request of this id.

        Raises:
            NotFound: there is none that this viewer may see.
        """
        found = next((each for each in self.book.named(name) if viewer.sees(each.tenant)), None)
        if found is None:
            raise NotFound(f"There is no request {name!r}: it may be one that is not kept any more.")
        return found

    def turn(self, record: Record) -> dict[str, Any]:
        """One request with all that happened to it."""
        return turn_of(record, self.book.now())

    def outcomes(self, viewer: Viewer, query: Mapping[str, str], most: int) -> dict[str, Any]:
        """A page of the log.

        Raises:
            BadRequest: `before` is no place in it.
        """
        found: list[Record] = []
        before = query.get("before", "")
        if before and not (before.isdecimal() and len(before) <= _DIGITS):
            raise BadRequest("`before` must be the `next` of an answer.", param="before")
        for record in self._matching(viewer, query):
            if before and record.number >= int(before):
                continue
            if len(found) == most:
                return self._page(found, str(found[-1].number))
            found.append(record)
        return self._page(found, None)

    def _page(self, records: list[Record], further: str | None) -> dict[str, Any]:
        now = self.book.now()
        return {"outcomes": [outcome_of(each, now) for each in records], "next": further}

    def _matching(self, viewer: Viewer, query: Mapping[str, str]) -> Iterator[Record]:
        for record in self.book.records():
            outcome = record.outcome
            if not viewer.sees(record.tenant):
                continue
            if not all(
                query.get(name) in (None, getattr(outcome, name)) for name in ("model", "backend", "dialect", "action")
            ):
                continue
            if not _has_status(outcome.status, query.get("status")):
                continue
            talk = None if record.talk is None else record.talk.id
            if query.get("conversation") not in (None, talk):
                continue
            if query.get("error") in _YES and outcome.error is None:
                continue
            if query.get("running") in _YES and not record.running:
                continue
            yield record

    async def diff(self, record: Record, *, full: bool) -> dict[str, Any]:
        """Compare the client's messages with those forwarded; `full`: with the messages that a summary stands for.

        Raises:
            Conflict: its bodies are not kept any more, or never were.
        """
        record.sample()
        bodies = record.bodies
        if bodies is None or not bodies.forwarded:
            raise Conflict("The bodies of this request are not kept (any more).", code="not_kept")
        forwarded = await parsed(bodies.forwarded)
        sent = bodies.received.body if isinstance(bodies.received, Request) else await parsed(bodies.received)
        before, after = sent.get("messages") or [], forwarded.get("messages") or []
        key = record.outcome.key
        tokens = (await self._meter.measure(key, dict(sent))).tokens
        await self._meter.measure(key, forwarded)
        costs = self._meter.costs(key, after)
        lines, rows = await offload_if(True, _compared, before, after, costs, full)
        offered = [_tools(body) for body in (sent, forwarded)]
        return {
            "request": record.outcome.id,
            "same": bodies.same,
            "tokens": {"sent": tokens, "forwarded": record.prompt or record.outcome.tokens_after or 0},
            "counts": {what: sum(line.what == what for line in lines) for what in get_args(What)},
            "tools": {"sent": len(offered[0]), "forwarded": len(offered[1]), "changed": offered[0] != offered[1]},
            "rows": rows,
        }

    # -- sums

    def savings(self, viewer: Viewer, query: Mapping[str, str]) -> dict[str, Any]:
        """Return savings over the requests that the viewer may see."""
        return self.book.accounts.totals(
            lambda account: (
                viewer.sees(account.tenant)
                and query.get("backend") in (None, account.backend)
                and query.get("model") in (None, account.model)
            ),
            since=self.book.since,
        )

    def calibration(self, viewer: Viewer, query: Mapping[str, str]) -> dict[str, Any]:
        """Estimates of prompts and what the backend reported, oldest first."""
        points = []
        for record in self._matching(viewer, {name: query[name] for name in ("model", "backend") if name in query}):
            outcome = record.outcome
            reported = whole_number((outcome.usage or {}).get("prompt_tokens"))
            if outcome.attempts != 1 or not reported or not outcome.tokens_after:
                continue
            error = outcome.tokens_after / reported - 1
            points.append(
                {"at": record.at, "estimated": outcome.tokens_after, "reported": reported, "error": round(error, 4)}
            )
        return {"points": points[::-1]}


def _has_status(status: int, wanted: str | None) -> bool:
    """Return whether a status equals the filter, or is of its class: `200`, `4xx`."""
    if wanted is None:
        return True
    text = str(status)
    return wanted == text or (len(wanted) == 3 and wanted.lower().endswith("xx") and text[:1] == wanted[0])


def _compared(
    before: Sequence[Message],
    after: Sequence[Message],
    costs: Sequence[float],
    full: bool,  # noqa: FBT001 - it is called by position, in a thread
) -> tuple[list[DiffLine], list[dict[str, Any]]]:
    """Compare two lists of messages; returns the lines of the diff and their rows. May take long."""
    lines = lines_of(before, after)
    return lines, [_row(line, before, after, costs, full=full) for line in lines]


def _row(
    line: DiffLine, before: Sequence[Message], after: Sequence[Message], costs: Sequence[float], *, full: bool
) -> dict[str, Any]:
    """A line of a diff with its texts."""
    at = line.forwarded
    one = line.sent[0] if line.sent and line.what != "summarised" else None
    row: dict[str, Any] = {
        "what": line.what,
        "role": str((before[line.sent[0]] if at is None else after[at]).get("role")),
        "sent": line.sent,
        "forwarded": at,
        "before": None if one is None else shown(before[one]),
        "after": None if at is None else shown(after[at]),
        "tokens": 0 if at is None else round(costs[at]),
    }
    if full and line.what == "summarised":
        row["covered"] = [
            {"index": each, "role": before[each].get("role"), "text": shown(before[each])} for each in line.sent
        ]
    return row


def _tools(body: Mapping[str, Any]) -> list[Any]:
    tools = body.get("tools") or body.get("functions")
    return tools if isinstance(tools, list) else []

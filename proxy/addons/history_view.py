"""Recent requests as one viewer may see them, in the form of docs/api-live.md."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Literal, TypeAlias

from proxy.addons.history import Conversation, RequestHistory, RequestRecord
from proxy.addons.metrics import owner
from proxy.addons.prompt_diff import apart, diff_rows, parsed_body, prompt_parts
from proxy.addons.sentence import sentence
from proxy.core.errors import Conflict, Forbidden, NotFound
from proxy.core.piece import as_count
from proxy.core.request import Request
from proxy.net.tasks import offload_if
from proxy.tokens.meter import Meter

Role: TypeAlias = Literal["open", "key", "admin"]
MOST_TURNS = 200
"""Most requests in a timeline; the newest are shown."""
_FIGURES = (
    "id dialect backend model status doing action sent_as covered kind tools shaped window tokens_before tokens_after saved "
    "saved_answer attempts rungs compactions compaction_seconds summaries unfit summary recalled recalled_tokens restored "
    "afforded left_out left_out_of cut_earlier repeated reused unlike leaked_calls repeated_calls searches refusals pauses "
    "resumes conclusions unfinished stopped first_byte error"
)
"""Figures of an outcome that are shown as they are."""


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Conditions on the requests that a viewer asks for; None selects any."""

    model: str | None = None
    backend: str | None = None
    dialect: str | None = None
    action: str | None = None
    conversation: str | None = None
    status: str | None = None
    """A status or a class of them: `200`, `4xx`."""
    error: bool | None = None
    running: bool | None = None

    def selects(self, record: RequestRecord) -> bool:
        """Return whether a request meets all conditions."""
        outcome, conversation = record.outcome, record.conversation
        status = str(outcome.status)
        return (
            all(
                getattr(self, name) in (None, getattr(outcome, name))
                for name in ("model", "backend", "dialect", "action")
            )
            and (self.status or status).lower() in (status, f"{status[0]}xx")
            and (self.conversation is None or (conversation is not None and conversation.id == self.conversation))
            and self.error in (None, outcome.error is not None)
            and self.running in (None, record.running)
        )


@dataclass(frozen=True, slots=True)
class Viewer:
    """Viewer's rights; `tenant` is a digest of the key, `content` says whether messages of other tenants are shown too."""

    role: Role
    tenant: str = ""
    content: bool = False

    @property
    def identity(self) -> str:
        """Name under which its live feeds are counted."""
        return self.tenant or self.role

    def sees(self, tenant: str) -> bool:
        """Return whether the viewer may see figures of this tenant."""
        return self.role != "key" or tenant == self.tenant

    def reads(self, tenant: str) -> bool:
        """Return whether the viewer may see messages of this tenant."""
        return (self.role != "key" and self.content) or tenant == self.tenant

    def check_reads(self, tenant: str) -> None:
        """Refuse access to messages that the viewer may not read.

        Raises:
            Forbidden: the viewer is an admin, who sees figures only.
        """
        if not self.reads(tenant):
            raise Forbidden(
                "Admin keys do not see what was said: SPILLWAY_ALLOW=content lets them.", code="content_not_shown"
            )


class HistoryView:
    """View of the history for one viewer."""

    def __init__(self, history: RequestHistory, meter: Meter, viewer: Viewer) -> None:
        self.history = history
        self.viewer = viewer
        self._meter = meter

    def conversations(self, limit: int | None) -> list[Conversation]:
        """List conversations, the one with the newest request first, at most `limit` of them if given."""
        found = (each for each in reversed(self.history.conversations.values()) if self.viewer.sees(each.tenant))
        return list(islice(found, limit))

    def conversation(self, name: str, lost: Conversation | None = None, *, content: bool = False) -> Conversation:
        """Find a conversation; `lost` is used if memory no longer has it, and with `content` its messages will be shown.

        Raises:
            NotFound: no such conversation that this viewer may see.
            Forbidden: the viewer may not read its messages.
        """
        conversation = self.history.conversations.get(name) or lost
        if conversation is None or not self.viewer.sees(conversation.tenant):
            raise NotFound(
                f"There is no conversation {name!r} in memory; an older one comes back with its next request."
            )
        if content:
            self.viewer.check_reads(conversation.tenant)
        return conversation

    def record(self, name: str) -> RequestRecord:
        """Find the newest request with this id; there may be several, since clients choose ids.

        Raises:
            NotFound: no such request that this viewer may see.
        """
        found = next((each for each in self.records(RequestFilter()) if each.outcome.id == name), None)
        if found is None:
            raise NotFound(f"There is no request {name!r} in memory; GET /spillway/outcomes lists those that are.")
        return found

    def records(self, wanted: RequestFilter) -> Iterator[RequestRecord]:
        """Yield the wanted requests, newest first."""
        for record in reversed(self.history.records.values()):
            if self.viewer.sees(record.outcome.credential) and wanted.selects(record):
                yield record

    async def rows(self, conversations: Iterable[Conversation]) -> list[dict[str, Any]]:
        """Describe conversations, each by its newest request."""
        rows = []
        for conversation in conversations:
            if conversation.records:  # it may have been forgotten in the meantime
                rows.append(await self._row(conversation))
            await asyncio.sleep(0)  # let other tasks run: many conversations take long
        return rows

    async def timeline(self, conversation: Conversation) -> dict[str, Any]:
        """Describe a conversation with its requests, oldest first."""
        turns = [self.turn(record) for record in [*conversation.records][-MOST_TURNS:]]
        return {**await self._row(conversation), "timeline": turns}

    async def _row(self, conversation: Conversation) -> dict[str, Any]:
        record = conversation.running or conversation.newest
        record.refresh()
        outcome, budget, records = record.outcome, record.budget, conversation.records
        figures = outcome.figures()
        points = (None, None, None) if budget is None else (budget.due, budget.goal, budget.pause_point)
        sent, not_sent = _tokens_sent(records)
        used = None if record.prompt_tokens is None else record.prompt_tokens + record.answer_tokens
        return {
            "id": conversation.id,
            "title": conversation.title if self.viewer.reads(conversation.tenant) else None,
            "named": conversation.named,
            "owner": owner(conversation.tenant),
            **{name: figures[name] for name in ("backend", "model", "dialect", "window", "error")},
            "client": record.client,
            "background": record.background,
            "turns": len(records),
            "messages": record.messages,
            "first_at": conversation.first_at,
            "last_at": record.at + self._seconds(record),
            "state": outcome.doing if record.running else "idle",
            "request": outcome.id,
            "stoppable": record.job is not None,
            "streamed": record.streamed,
            **dict(zip(("trigger", "target", "pause"), points, strict=True)),
            "prompt": record.prompt_tokens,
            "answer": record.answer_tokens,
            "fill": round(used / outcome.sent.window, 4) if used is not None and outcome.sent.window else None,
            "bar": await self._bar(record),
            "tokens_per_second": self._speed(record),
            "compactions": sum(each.outcome.shortened.compactions for each in records),
            "checkpoint": next(
                (each for each in reversed(conversation.checkpoints.values()) if each["created_at"] >= record.at),
                record.checkpoint,
            ),
            "sent_tokens": sent,
            "not_sent_tokens": not_sent,
        }

    async def _bar(self, record: RequestRecord) -> dict[str, Any] | None:
        """Break down the window into the parts of the prompt, the answer, and the room left; returns None if unknown."""
        bodies, window = record.bodies, record.outcome.sent.window
        body = bodies.forwarded
        if body and (bodies.parts is None or bodies.parts[0] is not body):
            parts = await prompt_parts(self._meter, record.outcome.key, body, record.prompt_tokens or 0)
            bodies.parts = None if parts is None else (body, parts)
        if bodies.parts is None:
            return None
        parts = {**bodies.parts[1], "answer": record.answer_tokens}
        return {**parts, "room": None if window is None else max(0, window - sum(parts.values()))}

    def _seconds(self, record: RequestRecord) -> float:
        return self.history.now() - record.outcome.since if record.running else record.outcome.seconds

    def _speed(self, record: RequestRecord) -> float | None:
        """Return the answer's tokens per second since its first byte, or None if unknown or not streamed."""
        tokens, first = as_count((record.outcome.usage or {}).get("completion_tokens")), record.outcome.first_byte
        if record.answer is not None:
            tokens = record.answer.completion_tokens
        seconds = self._seconds(record) - (first or 0.0)
        return round(tokens / seconds, 1) if tokens and first is not None and record.streamed and seconds > 0 else None

    def outcome(self, record: RequestRecord) -> dict[str, Any]:
        """Describe one request."""
        outcome, usage = record.outcome, record.outcome.usage or {}
        figures = outcome.figures()
        return {
            **{name: figures[name] for name in _FIGURES.split()},
            "conversation": None if record.conversation is None else record.conversation.id,
            "owner": owner(outcome.credential),
            "at": record.at,
            "streamed": record.streamed,
            "running": record.running,
            "seconds": self._seconds(record),
            "saved": figures["tokens_saved"],
            "sentence": sentence(outcome),
            "malformed_calls": outcome.malformed_calls,
            "reduced": outcome.reduced,
            "prompt_tokens": as_count(usage.get("prompt_tokens")) or None,
            "completion_tokens": as_count(usage.get("completion_tokens")) or None,
        }

    def turn(self, record: RequestRecord) -> dict[str, Any]:
        """Describe one request with its events."""
        since = record.outcome.since
        return {
            **self.outcome(record),
            "messages": record.messages,
            "checkpoint": record.checkpoint,
            "events": [
                {"at": round(event.at - since, 4), "event": event.name, **event.fields}
                for event in record.outcome.events
            ],
        }

    def outcomes(self, wanted: RequestFilter, limit: int, before: float = inf) -> dict[str, Any]:
        """Describe a page of at most `limit` wanted requests, newest first, from those numbered below `before`."""
        earlier = (record for record in self.records(wanted) if record.number < before)
        page = list(islice(earlier, limit + 1))
        further = str(page[limit - 1].number) if len(page) > limit else None
        return {"outcomes": [self.outcome(each) for each in page[:limit]], "next": further}

    async def diff(self, record: RequestRecord, *, full: bool) -> dict[str, Any]:
        """Compare the client's messages with those forwarded; `full`: include the messages that a summary replaced.

        Raises:
            Conflict: the request's bodies are no longer in memory, or never were.
        """
        record.refresh()
        received, wire = record.bodies.received, record.bodies.forwarded
        if not received or not wire:
            raise Conflict(
                "The bodies of this request are no longer in memory: raise SPILLWAY_CACHE_BYTES to keep more.",
                code="not_kept",
            )
        sent = received.body if isinstance(received, Request) else await parsed_body(received)
        forwarded = await parsed_body(wire)
        key = record.outcome.key
        tokens = (await self._meter.measure(key, dict(sent))).tokens
        messages = [*apart(forwarded.get("messages") or [])]
        await self._meter.measure(key, {**forwarded, "messages": messages})  # off the loop, so that the costs are known
        rows = await offload_if(
            True, diff_rows, sent.get("messages") or [], messages, self._meter.costs(key, messages), full
        )
        tools, forwarded_tools = (body.get("tools") or [] for body in (sent, forwarded))
        return {
            "request": record.outcome.id,
            "same": wire is received,
            "tokens": {"sent": tokens, "forwarded": record.prompt_tokens or record.outcome.sent.tokens_after or 0},
            "counts": Counter(row["what"] for row in rows),
            "tools": {"sent": len(tools), "forwarded": len(forwarded_tools), "changed": tools != forwarded_tools},
            "rows": rows,
        }

    def savings(self, wanted: RequestFilter) -> dict[str, Any]:
        """Sum up the savings of these requests, less all that Spillway's own requests cost."""
        # Only prompts that a backend read: refused ones once counted as saved and rescued.
        records = [each for each in self.records(wanted) if not each.running]
        answered = [each for each in records if _is_answered(each)]
        sent, not_sent = _tokens_sent(records)
        spent = sum(map(_tokens_spent, records))
        outcomes = [record.outcome for record in records]
        return {
            "requests": len(answered),
            "since": min((record.at for record in answered), default=None),
            "tokens": {"without": not_sent + sent + spent, "sent": sent, "spent": spent, "not_sent": not_sent},
            "seconds": {
                "waited": round(sum(each.shortened.compaction_seconds for each in outcomes), 3),
                "ahead": round(sum(each["seconds"] for one in outcomes for each in one.each("compacted_ahead")), 3),
            },
            "rescued": {
                "prompts": sum(each.outcome.tokens_without > (each.outcome.sent.window or inf) for each in answered),
                "answers": sum(each.counts["resumed"] > 0 for each in outcomes),
            },
        }


def _is_answered(record: RequestRecord) -> bool:
    """Return whether a backend read the prompt: it did not if it refused it, or if Spillway answered itself."""
    return record.outcome.sent.tokens_after is not None and record.outcome.first_byte is not None


def _tokens_spent(record: RequestRecord) -> int:
    return sum(each["tokens"] for each in record.outcome.each("summarised"))


def _tokens_sent(records: Iterable[RequestRecord]) -> tuple[int, int]:
    """Return the total tokens of prompts that were sent, and of those saved, less the cost of summaries and resumes."""
    sent = not_sent = 0
    for record in records:
        if record.running:
            continue
        not_sent -= _tokens_spent(record)
        if _is_answered(record):
            sent += record.sent_tokens
            not_sent += record.outcome.tokens_saved - record.resent_tokens
    return sent, not_sent

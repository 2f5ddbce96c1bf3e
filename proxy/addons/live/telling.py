"""Rows, outcomes and turns as they are told: the shapes are those of docs/api-live.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from proxy.addons.live.record import Note, Parts, Record, Talk
from proxy.core.piece import whole_number
from proxy.telemetry.outcome import owner

Role: TypeAlias = Literal["open", "key", "admin"]
_COPIED = (
    *("dialect", "backend", "model", "status", "error", "action", "kind", "tools", "window"),
    *("tokens_before", "tokens_after", "attempts", "compactions", "compaction_seconds", "summaries", "unfit"),
    *("summary", "recalled", "recalled_tokens", "left_out", "left_out_of", "searches", "refusals"),
    *("leaked_calls", "repeated_calls"),
    *("pauses", "resumes", "unfinished", "stopped", "first_byte", "seconds"),
)


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person or program that looks. `tenant`: a digest of the key; `content`: whether messages of others are shown too."""

    role: Role
    tenant: str = ""
    content: bool = False

    @property
    def all(self) -> bool:
        """Return whether everybody's conversations are seen."""
        return self.role != "key"

    def sees(self, tenant: str) -> bool:
        """Return whether figures of this tenant are seen."""
        return self.all or tenant == self.tenant

    def reads(self, tenant: str) -> bool:
        """Return whether messages of this tenant are shown."""
        return (self.all and self.content) or tenant == self.tenant


def outcome_of(record: Record, now: float) -> dict[str, Any]:
    """One request; `now` is on the clock of the telemetry."""
    outcome, usage = record.outcome, record.outcome.usage or {}
    fields: dict[str, Any] = {
        "id": outcome.id,
        "conversation": None if record.talk is None else record.talk.id,
        "owner": owner(record.tenant),
        "at": record.at,
        **{name: getattr(outcome, name) for name in _COPIED},
        "streamed": record.streamed,
        "running": record.running,
        "rungs": list(outcome.rungs),
        "malformed_calls": [asdict(call) for call in outcome.malformed_calls],
        "reduced": list(map(asdict, outcome.reduced)),
        "fill_before": _share(outcome.tokens_before, outcome.window),
        "fill_after": _share(outcome.tokens_after, outcome.window),
        "prefix": {"repeated": outcome.repeated, "reused": outcome.reused, "why": outcome.unlike},
        "waited": outcome.first_byte,
        "prompt_tokens": whole_number(usage.get("prompt_tokens")) or None,
        "completion_tokens": whole_number(usage.get("completion_tokens")) or None,
    }
    if record.running:
        fields["seconds"] = now - record.since
    return fields


def turn_of(record: Record, now: float) -> dict[str, Any]:
    """One request with all that happened to it."""
    return {
        **outcome_of(record, now),
        "messages": record.messages,
        "checkpoint": note_of(record.note),
        "events": [
            {"at": round(event.at - record.since, 4), "event": event.name, **event.fields}
            for event in record.outcome.events
        ],
    }


def note_of(note: Note | None) -> dict[str, Any] | None:
    """A checkpoint, without its messages."""
    if note is None:
        return None
    return {"kind": note.kind, "covered": note.covered, "summary": note.by, "created_at": note.created}


def row_of(talk: Talk, viewer: Viewer, now: float, parts: Parts | None) -> dict[str, Any]:
    """One conversation as its newest request has it; `parts`: what the prompt of that holds."""
    record = talk.shown
    record.sample()
    outcome, points = record.outcome, record.points or (None, None, None)
    return {
        "id": talk.id,
        "title": talk.title if viewer.reads(talk.tenant) else None,
        "named": talk.named,
        "owner": owner(talk.tenant),
        "backend": outcome.backend,
        "model": outcome.model,
        "dialect": outcome.dialect,
        "client": record.client,
        "background": record.background,
        "turns": talk.turns,
        "messages": record.messages,
        "first_at": talk.first_at,
        "last_at": record.at + ((now - record.since) if record.running else outcome.seconds),
        **_state(record),
        "window": outcome.window,
        **dict(zip(("trigger", "target", "pause"), points, strict=True)),
        "prompt": record.prompt,
        "bar": _bar(record, parts),
        "pauses": list(record.pauses),
        "compactions": talk.compactions + (outcome.compactions if record.running else 0),
        "checkpoint": note_of(_newest_note(talk, record)),
        "sent_tokens": talk.sent,
        "not_sent_tokens": talk.not_sent,
        "error": outcome.error,
        **_progress(record, now),
    }


def progress_of(talk: Talk, now: float) -> dict[str, Any]:
    """Return the progress of the answer that is being generated."""
    record = talk.shown
    record.follow()
    return {"id": talk.id, "request": record.outcome.id, "state": record.state, **_progress(record, now)}


def _state(record: Record) -> dict[str, Any]:
    return {
        "state": record.state,
        "request": record.outcome.id,
        "stoppable": record.running and record.job is not None,
        "streamed": record.streamed,
    }


def _progress(record: Record, now: float) -> dict[str, Any]:
    used = None if record.prompt is None else record.prompt + record.answer_tokens
    return {
        "answer": record.answer_tokens,
        "fill": _share(used, record.outcome.window),
        "tokens_per_second": _speed(record, now),
    }


def _speed(record: Record, now: float) -> float | None:
    first = record.outcome.first_byte
    if not record.running or first is None:
        return None if record.speed is None else round(record.speed, 1)
    tokens, since = record.total_answer_tokens(), now - record.since - first
    return round(tokens / since, 1) if tokens and since > 0 else None


def _bar(record: Record, parts: Parts | None) -> dict[str, int | None] | None:
    if parts is None:
        return None
    held: dict[str, int | None] = {name: getattr(parts, name) for name in Parts.__slots__}
    used = sum(getattr(parts, name) for name in Parts.__slots__) + record.answer_tokens
    window = record.outcome.window
    return {**held, "answer": record.answer_tokens, "room": None if window is None else max(0, window - used)}


def _newest_note(talk: Talk, record: Record) -> Note | None:
    """The checkpoint with which the next prompt will begin: one that was made since the request came, or the request's own."""
    return next((note for note in reversed(talk.notes.values()) if note.created >= record.at), record.note)


def _share(tokens: int | None, window: int | None) -> float | None:
    return None if tokens is None or not window else round(tokens / window, 4)


def visible(talks: Iterator[Talk], viewer: Viewer) -> Iterator[Talk]:
    """Filter conversations by what a viewer may see."""
    return (talk for talk in talks if viewer.sees(talk.tenant))

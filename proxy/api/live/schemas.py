"""Responses of the routes that the page and the terminal read; `docs/api-live.md` explains each field."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from proxy.addons.live.diff import What
from proxy.core.history.checkpoint import By
from proxy.telemetry.events import MalformedCall, Reduced
from proxy.telemetry.outcome import Activity


class _Extensible(BaseModel):
    model_config = ConfigDict(extra="allow")


class Session(_Extensible):
    """Viewer, and what it may see."""

    role: Literal["open", "key", "admin"] | None = Field(description="null: a key is needed.")
    content: bool = Field(description="Whether what was said is shown.")
    version: str
    base_url: str


class Bar(_Extensible):
    """Contents of the window, in tokens."""

    system: int
    tools: int
    summary: int
    recalled: int
    tail: int
    answer: int
    room: int | None


class CheckpointNote(_Extensible):
    """The rewrite of its beginning with which a prompt is sent."""

    kind: str
    covered: int = Field(description="Messages of the client's that it stands for.")
    summary: By | None
    created_at: float


class Row(_Extensible):
    """One conversation."""

    id: str
    title: str | None
    named: bool
    owner: str
    backend: str
    model: str
    dialect: str
    client: str
    background: bool
    turns: int
    messages: int | None
    first_at: float
    last_at: float
    state: Activity
    request: str
    stoppable: bool
    streamed: bool
    window: int | None
    trigger: int | None
    target: int | None
    pause: int | None
    prompt: int | None
    answer: int
    fill: float | None
    bar: Bar | None
    pauses: list[int]
    tokens_per_second: float | None
    compactions: int
    checkpoint: CheckpointNote | None
    sent_tokens: int
    not_sent_tokens: int
    error: str | None


class Prefix(_Extensible):
    """Comparison of a prompt with the one before it."""

    repeated: int | None
    reused: int | None
    why: str


class RequestOutcome(_Extensible):
    """One request."""

    id: str
    conversation: str | None
    owner: str
    at: float
    dialect: str
    backend: str
    model: str
    status: int
    error: str | None
    action: str
    kind: str
    tools: str
    streamed: bool
    running: bool
    window: int | None
    tokens_before: int | None
    tokens_after: int | None
    fill_before: float | None
    fill_after: float | None
    rungs: list[str]
    reduced: list[Reduced]
    attempts: int
    compactions: int
    compaction_seconds: float
    summaries: int
    unfit: int
    summary: str
    recalled: int
    recalled_tokens: int
    left_out: int
    left_out_of: int
    searches: int
    malformed_calls: list[MalformedCall]
    leaked_calls: int
    repeated_calls: int
    refusals: int
    pauses: int
    resumes: int
    prefix: Prefix
    unfinished: bool
    stopped: bool
    first_byte: float | None
    seconds: float
    waited: float | None
    prompt_tokens: int | None
    completion_tokens: int | None


class Turn(RequestOutcome):
    """One request with all that happened to it."""

    messages: int | None
    checkpoint: CheckpointNote | None
    events: list[dict[str, Any]] = Field(description="Each with `at`, `event` and the event's own fields.")


class Conversations(_Extensible):
    """All that the viewer may see, newest first."""

    conversations: list[Row]


class Conversation(Row):
    """One with its turns, oldest first."""

    timeline: list[Turn]


class Outcomes(_Extensible):
    """A page of the log, newest first."""

    outcomes: list[RequestOutcome]
    next: str | None = Field(description="For `before`; null: there are no more.")


class SummaryBlock(_Extensible):
    """One summary block."""

    index: int
    text: str
    appended: str = Field(description="What code put behind it.")
    rules: list[str]
    by: By
    tokens: int


class Summary(_Extensible):
    """Stand-in for the covered part of a conversation."""

    conversation: str
    checkpoint: CheckpointNote
    tokens_before: int
    tokens_after: int
    blocks: list[SummaryBlock]
    verdicts: list[dict[str, Any]] = Field(description="`at` and `verdict`, newest first.")
    messages: list[dict[str, Any]]
    earlier: int


class CheckpointForgotten(_Extensible):
    """A checkpoint was forgotten, and the summary that holds now."""

    rejected: bool
    summary: Summary | None


class DiffRow(_Extensible):
    """One message of the forwarded prompt, or one that is not in it any more."""

    what: What
    role: str
    sent: list[int]
    forwarded: int | None
    before: str | None
    after: str | None
    tokens: int


class Diff(_Extensible):
    """Comparison of the client's messages with those forwarded."""

    request: str
    same: bool
    tokens: dict[str, int]
    counts: dict[str, int]
    tools: dict[str, Any]
    rows: list[DiffRow]


class Stopping(_Extensible):
    """A request is being stopped."""

    stopped: bool


class Forgotten(_Extensible):
    """Reply to a request to forget a lesson: true if there was one."""

    forgotten: bool


class CalibrationPoints(_Extensible):
    """Estimates of prompts and what the backend reported, oldest first."""

    points: list[dict[str, float]]


class Savings(_Extensible):
    """Savings against the same traffic without Spillway. Differences may be negative."""

    requests: int
    since: float
    tokens: dict[str, int]
    reading: dict[str, int]
    seconds: dict[str, float]
    rescued: dict[str, int]
    how: list[str]

"""The record of one request's life: filled while it is served, read by log, metrics, traces, page and headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from proxy.backends.profile import ModelKey
from proxy.core.headers import Headers
from proxy.telemetry.events import Event, MalformedCall, Reduced

Activity: TypeAlias = Literal["idle", "reading", "compacting", "waiting", "answering", "paused"]
CLIENT_DISCONNECTED = 499
"""Status of a request whose client left before it was answered (nginx's code for it)."""
COMPACTING = "compacting"
"""Action of a request whose history is being shortened."""
MOST_EVENTS = 300
"""Events of one request that are kept: a very long answer is paused again and again."""
MOST_REDUCTIONS = 16
"""Compactions of one request that are reported each by itself."""
_MOST_MALFORMED = 16
_REUSED_SHARE, _CACHE_BLOCKS = 0.8, 32
"""Prompt tokens below this share of the repeated ones, less whole cache blocks (vLLM: 16 tokens), were not reused."""


class Observer:
    """Base of whatever follows outcomes. Methods are called at once and in order: they must be quick and never raise."""

    def begun(self, outcome: Outcome) -> None:
        """Take note of a request that was let in."""

    def happened(self, outcome: Outcome, event: Event) -> None:
        """Take note of an event, which the outcome has taken in already."""

    def ended(self, outcome: Outcome) -> None:
        """Read an outcome that is complete."""


class Telemetry:
    """Opens an outcome for every request and shows it to the observers."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back."""
        self.clock = clock
        self.observers: list[Observer] = []

    def open(self, request_id: str) -> Outcome:
        """Open the outcome of a request that has just come."""
        return Outcome(request_id, self.clock, self.observers)

    def background(self, request_id: str, cause: Outcome) -> Outcome:
        """Open the outcome of background work that follows a request; it counts as no request."""
        outcome = Outcome(request_id, self.clock, self.observers)
        outcome.backend, outcome.model, outcome.credential = cause.backend, cause.model, cause.credential
        outcome.cause = cause
        return outcome

    def silent(self) -> Outcome:
        """Open an outcome that nobody sees, of a request that is only explained or counted."""
        outcome = Outcome("", self.clock, ())
        outcome.silent = True
        return outcome


class Outcome:
    """Outcome of one request. Attributes at their class default have not happened.

    Counts are over the whole request; `first_byte` and `seconds` are measured from its arrival.
    """

    dialect = ""
    silent = False
    """Whether nobody sees it."""
    cause: Outcome | None = None
    """The request that background work follows; None: this is a request."""
    backend = ""
    model = ""
    credential = ""
    """A digest, never the key."""
    conversation = ""
    """A digest of the client's name for it; empty: it has none."""
    trace: tuple[str, str] | None = None
    """The client's `traceparent` and `tracestate` (W3C Trace Context)."""
    carrier: Callable[[Headers], Headers] | None = None
    """Puts the trace into the headers of a request to a backend; None: the client's own headers go on as they came."""
    status = 0
    doing: Activity = "reading"
    action = "passed"
    kind = ""
    """Of the newest reduction of its history; empty: none."""
    tools: Literal["", "emulated"] = ""
    shaped: Mapping[str, int] = {}
    """Tokens that the policy saved, by the part of the prompt that it shortened."""
    window: int | None = None
    tokens_before: int | None = None
    """Prompt tokens as the client sent them, by the best estimate."""
    tokens_after: int | None = None
    """Prompt tokens as they were sent last."""
    attempts = 0
    rungs: tuple[str, ...] = ()
    """Rungs of the ladder that took something out, in this order."""
    compactions = 0
    reduced: tuple[Reduced, ...] = ()
    compaction_seconds = 0.0
    summaries = 0
    """Summaries that a model was asked for, and how many of them were not fit to be used."""
    unfit = 0
    summary = ""
    """What stands for the covered part: `written` by a model, an `extract` by code; empty: neither."""
    extracts = 0
    recalled = 0
    """Passages of the covered history that were put back into the prompt, and their tokens."""
    recalled_tokens = 0
    left_out = 0
    """Tokens from the middle of the newest user message that were not sent, and those of all of it."""
    left_out_of = 0
    cut_earlier: tuple[int, int] = (0, 0)
    """The same of earlier user messages, as far as this request's compactions cut them."""
    repeated: int | None = None
    """Tokens that the conversation's prompt before it began with, by the best estimate; None: nothing was sent."""
    reused: int | None = None
    """Prompt tokens that the backend had in its cache; None: it does not say."""
    unlike = ""
    """Why no more were repeated (see `record_repeated`), or reused (`backend`)."""
    malformed_calls: tuple[MalformedCall, ...] = ()
    leaked_calls = 0
    """Tool calls that were read back from text, and those left out because the answer had made them before."""
    repeated_calls = 0
    searches = 0
    refusals = 0
    pauses = 0
    resumes = 0
    unfinished = False
    """The answer ended for want of room."""
    stopped = False
    """A viewer ended the answer."""
    first_byte: float | None = None
    seconds = 0.0
    usage: Mapping[str, Any] | None = None
    """Usage of the whole answer, as the client got or would have got it."""
    delivered = False
    """Whether the client has all of the answer, so that it may leave."""
    closed = False
    error: str | None = None
    """Code of the error that the client got."""

    def __init__(self, request_id: str, clock: Callable[[], float], observers: Sequence[Observer]) -> None:
        self.id = request_id
        self.clock = clock
        self.since = clock()
        self.events: list[Event] = []
        """What happened, without anything that was said; at most `MOST_EVENTS`."""
        self._observers = observers

    # -- its life

    def begin(self, dialect: str, credential: str, trace: tuple[str, str] | None) -> None:
        """Record that a client was let in with a request in this dialect."""
        self.dialect, self.credential, self.trace = dialect, credential, trace
        for observer in self._observers:
            observer.begun(self)

    def add(self, name: str, **fields: Any) -> None:
        """Record an event that changes nothing else."""
        event = Event(self.clock(), name, fields)
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        self._show(event)

    def show(self, name: str, **fields: Any) -> None:
        """Show the observers something that holds what was said, and is therefore never kept."""
        self._show(Event(self.clock(), name, fields))

    def _show(self, event: Event) -> None:
        for observer in self._observers:
            observer.happened(self, event)

    def fail(self, status: int, error: str) -> None:
        """Record the error that the client gets; `status` 0: that of the response that went out before."""
        self.status, self.error = status, error

    def close(self, status: int) -> None:
        """End it; `status` is what the client got, if no failure was recorded."""
        self.status = self.status or status
        self.seconds = self.clock() - self.since
        if self.cause is None:
            self.add("finished" if self.error is None and self.status < 400 else "failed")
        observers, self._observers, self.closed = self._observers, (), True
        for observer in observers:
            observer.ended(self)

    # -- the prompt

    def record_route(self, backend: str, model: str) -> None:
        """Record the backend, and the id under which it knows the model."""
        self.backend, self.model = backend, model
        self.add("routed", backend=backend, model=model)

    def record_conversation(self, digest: str) -> None:
        """Record the conversation that the client names."""
        self.conversation = digest
        self.add("named", conversation=digest)

    def record_shaped(self, saved: Sequence[tuple[str, int]]) -> None:
        """Record the tokens that the policy saved, by part of the prompt."""
        self.shaped = dict(saved)
        self.add("shaped", saved=saved)

    def record_measured(self, tokens: int, window: int | None, tools: Literal["", "emulated"]) -> None:
        """Record the prompt as it stands; `window` None: it is not known."""
        if self.closed:  # the backend's own count came late
            return
        self.window, self.tokens_after, self.tools = window, tokens, tools
        if self.tokens_before is None:
            self.tokens_before, self.action = tokens, "forwarded"
        self.add("measured", tokens=tokens, window=window, tools=tools)

    def record_recalled(self, passages: int, tokens: int, seconds: float = 0.0) -> None:
        """Record the passages in front of the newest user message; the last record counts."""
        self.recalled, self.recalled_tokens = passages, tokens
        self.add("recalled", passages=passages, tokens=tokens, seconds=seconds)

    def record_cut(self, tokens: int, total: int) -> None:
        """Record that of the newest user message's `total` tokens so many are left out; the last record counts."""
        self.left_out, self.left_out_of = tokens, total
        self.add("message_cut", tokens=tokens, whole=total)

    # -- compaction

    def record_compacting(self, tokens: int) -> None:
        """Record that a history of so many tokens is being shortened."""
        self.action, self.doing = COMPACTING, "compacting"
        self.add("compacting", tokens=tokens)

    def record_compacted(
        self, result: Reduced, *, summary: str = "", rungs: tuple[str, ...] = (), cut: tuple[int, int] = (0, 0)
    ) -> None:
        """Record the end of a compaction; without gain its tokens after equal those before.

        `summary`, `rungs` and `cut` as in the attributes `summary`, `rungs` and `cut_earlier`.
        """
        if result.tokens_after < result.tokens_before:
            # An earlier summary stays in the history when a later compaction makes none.
            self.kind, self.summary = result.kind, summary or self.summary
            self.compactions += 1
            self.extracts += summary == "extract"
            self.cut_earlier = cut if cut[0] else self.cut_earlier
            self.reduced = (*self.reduced, result)[-MOST_REDUCTIONS:]
            self.rungs = tuple(dict.fromkeys((*self.rungs, *rungs)))
        self.action, self.doing = self.kind or "forwarded", "waiting"
        self.compaction_seconds += result.seconds
        self.add("compacted", **asdict(result), summary=summary, rungs=rungs, cut=cut)

    def record_summary(self, verdict: str, tokens: int = 0) -> None:
        """Record a model's summary: the `verdict` of `proxy.compaction.verification`, its prompt and completion tokens."""
        self.summaries += 1
        self.unfit += verdict not in {"kept", "mended"}
        self.add("summarised", verdict=verdict, tokens=tokens)

    def record_handed_over(self) -> None:
        """Record that a client's own compaction was answered with what a model wrote for an earlier one."""
        self.action = "repeated"
        self.add("handed_over")

    # -- attempts

    def record_sent(self, why: str, *, stream: bool = False) -> None:
        """Record a request to the backend: the first, or another one for this reason."""
        self.attempts += 1
        self.doing = "waiting"
        self.add("sent", why=why, stream=stream)

    def record_first_byte(self) -> None:
        """Record that the backend began to answer."""
        self.doing = "answering"
        if self.first_byte is None:
            self.first_byte = self.clock() - self.since
        self.add("first_byte")

    def record_failure(self, error: str) -> None:
        """Record that the backend could not be reached or broke off; `error` is a code or the name of a class."""
        self.add("backend_failed", error=error)

    def record_refused(self, what: Literal["overflow", "tools"], origin: str, window: int | None = None) -> None:
        """Record that the backend refused the prompt's length or its tools; `window` if its error names one."""
        self.refusals += 1
        self.add("refused", what=what, origin=origin, window=window)

    def record_repeated(self, tokens: int, prompt: int, why: str) -> None:
        """Record how many of the `prompt` tokens are those that the conversation's prompt before began with.

        `why` no more are: `first` (there was none, or it is forgotten), `tools` (these, or other options, changed),
        `system`, `edited` (by the client), `shortened` (by Spillway); empty: all of it are.
        """
        self.repeated, self.unlike = tokens, why
        self.add("repeated", tokens=tokens, prompt=prompt, why=why)

    def record_reused(self, tokens: int) -> None:
        """Record how many tokens of the first prompt the backend had in its cache."""
        self.reused = tokens
        if not self.unlike and tokens < (self.repeated or 0) * _REUSED_SHARE - _CACHE_BLOCKS:
            self.unlike = "backend"
        self.add("reused", tokens=tokens)

    # -- the answer

    def record_paused(self, reason: str) -> None:
        """Record that the running answer was paused."""
        self.pauses += 1
        self.doing = "paused"
        self.add("paused", reason=reason)

    def record_resumed(self, how: str) -> None:
        """Record the way of continuation in which the answer was asked to go on."""
        self.resumes += 1
        self.doing = "answering"
        self.add("resumed", how=how)

    def record_out_of_room(self) -> None:
        """Record that the answer ends with more to say: no way to continue it, or no resumes left."""
        self.unfinished = True
        self.add("out_of_room")

    def record_stopped(self) -> None:
        """Record that a viewer has the answer end here."""
        self.stopped = True
        self.add("stopped")

    def record_search(self, passages: int) -> None:
        """Record that the model searched the conversation, and got so many passages."""
        self.searches += 1
        self.add("searched", passages=passages)

    def record_malformed(self, call: MalformedCall) -> None:
        """Record a tool call that can't be made, or was only shown."""
        self.malformed_calls = (*self.malformed_calls, call)[:_MOST_MALFORMED]
        self.add("malformed_call", **asdict(call))

    def record_mended(self, what: Literal["leaked", "repeated"], number: int) -> None:
        """Record tool calls that were read back from the text, or left out as repeated."""
        if what == "leaked":
            self.leaked_calls += number
        else:
            self.repeated_calls += number
        self.add("calls_mended", what=what, number=number)

    # -- reading

    @property
    def key(self) -> ModelKey:
        """Backend and model."""
        return self.backend, self.model

    @property
    def fill(self) -> float | None:
        """Prompt tokens as a fraction of the window."""
        if self.window is None or self.tokens_after is None:
            return None
        return self.tokens_after / self.window

    @property
    def handled(self) -> bool:
        """Return whether more was done than to forward it."""
        return bool(self.compactions or self.pauses or self.attempts > 1)

    @property
    def mended_calls(self) -> bool:
        """Return whether any tool call was not passed on as it came."""
        return bool(self.malformed_calls or self.leaked_calls or self.repeated_calls)

    @property
    def plain(self) -> bool:
        """Return whether it was forwarded and answered, and nothing else happened."""
        odd = self.unfinished or self.stopped
        eventful = self.handled or self.refusals or odd or self.recalled or self.left_out or self.mended_calls
        return not eventful and self.error is None and self.status < 400

    def each(self, name: str) -> Iterator[Mapping[str, Any]]:
        """Fields of the events of this name."""
        return (event.fields for event in self.events if event.name == name)

    def traced(self, headers: Headers) -> Headers:
        """Headers of a request to a backend for this one, with its trace."""
        return headers if self.carrier is None else self.carrier(headers)


@lru_cache(maxsize=1024)
def owner(credential: str) -> str:
    """Eight hexadecimal digits that stand for a credential's digest and lead nowhere."""
    return blake2b(credential.encode(), digest_size=4, person=b"spillway-owner").hexdigest()

"""The record of one request's life: filled while it is served, read at its end by log, metrics, traces, page and headers, in tokens and seconds."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from proxy.backends.profile import ModelKey
from proxy.core.piece import as_count
from proxy.net.headers import Headers
from proxy.tokens.cache import current_tenant

SentAs: TypeAlias = Literal["forwarded", "continued", "shaped"]
"""As the client sent it, with what an earlier turn shortened, or changed in another way."""
Activity: TypeAlias = Literal["idle", "reading", "compacting", "waiting", "answering", "paused"]
CLIENT_DISCONNECTED = 499
"""Status of a request whose client left before it was answered (nginx's code for it)."""
COMPACTING = "compacting"
"""Action of a request whose history is being shortened."""
ANSWER_RUNGS = ("answer",)
"""Rungs of a compaction that shortened the answer so far, and not the history."""
MOST_EVENTS = 300
"""Events of one request that are stored: a very long answer is paused again and again."""
_MOST_REDUCTIONS = 64
"""Compactions of one request that are reported each by itself."""
_MOST_MALFORMED = 16
"""Malformed calls of one request that are reported."""
_BEGINNING: Mapping[Activity | None, str] = {
    "compacting": "compacting",
    "waiting": "compacted sent",
    "answering": "first_byte resumed",
    "paused": "paused",
    None: "named looked routed adopted window_requested mended shaped stabilised restored pinned commanded archived measured repeated reused "
    "tools_on_demand tools_given slot_restored document_part searched recalled message_cut summarising summarised "
    "compacted_ahead compacted_on_demand backend_failed refused window_learned window_disproved cut afforded restarted "
    "observed concluded calls_mended called malformed_call out_of_room kept_waiting stopped finished failed",
}
EVENTS = {name: activity for activity, names in _BEGINNING.items() for name in names.split()}
"""All events there are, each with the activity that begins with it."""
_COUNTERS = {
    "sent": "attempts", "summarised": "summaries", "searched": "searches", "refused": "refusals",
    "paused": "pauses", "resumed": "resumes", "concluded": "conclusions",
}  # fmt: skip
"""Figure that counts the events of a name."""


class Event(NamedTuple):
    """One thing that happened to a request."""

    at: float
    """On the clock of the telemetry."""
    name: str
    fields: Mapping[str, Any]


class Observer:
    """Base of whatever follows outcomes. Methods are called at once and in order: they must be quick and never raise."""

    def started(self, outcome: "Outcome", headers: Headers) -> None:
        """Take note of a request that was let in; `headers` are the client's."""

    def happened(self, outcome: "Outcome", event: Event) -> None:
        """Take note of an event, which the outcome has taken in already."""

    def ended(self, outcome: "Outcome") -> None:
        """Read an outcome that is complete."""


T = TypeVar("T", bound=Observer)


@lru_cache(maxsize=256)
def overriding(observers: tuple[T, ...], moment: Callable[..., Any]) -> tuple[T, ...]:
    """Select those that do something at a moment, a method of their base."""
    return tuple(each for each in observers if getattr(type(each), moment.__name__) is not moment)


@dataclass(eq=False)
class SentPrompt:
    """Figures of the prompt as it was sent last, and of what the backend had of it in its cache."""

    window: int | None = None
    tokens_before: int | None = None
    """Prompt tokens as the client sent them, by the best estimate."""
    tokens_after: int | None = None
    """Prompt tokens as they were sent last."""
    sent_as: SentAs = "forwarded"
    """Its action where nothing was shortened for it."""
    tools: Literal["", "emulated"] = ""
    covered: int = 0
    """Messages that an earlier turn shortened."""
    shaped: Mapping[str, int] = field(default_factory=dict)
    """Tokens that the policy saved, by the part of it that was shortened."""
    recalled: int = 0
    """Passages of the covered history that were put back into the prompt, and their tokens."""
    recalled_tokens: int = 0
    restored: int = 0
    """Messages that got back what their client had left out."""
    left_out: int = 0
    """Tokens from the middle of the newest user message that were not sent, and those of all of it."""
    left_out_of: int = 0
    afforded: int = 0
    """Tokens that its answer was bounded by because no more can be paid for; 0: it was not."""
    repeated: int | None = None
    """Tokens that the conversation's prompt before it began with, by the best estimate; None: nothing was sent."""
    reused: int | None = None
    """Prompt tokens that the backend had in its cache; None: it does not say."""
    unlike: str = ""
    """Why no more were repeated (see `proxy.addons.prompt_prefix`), or reused (`backend`)."""


@dataclass(eq=False)
class Compactions:
    """Figures of the compactions of one request."""

    compactions: int = 0
    compaction_seconds: float = 0.0
    kind: str = ""
    """Kind of the newest compaction; empty if there was none."""
    rungs: tuple[str, ...] = ()
    """Rungs of the ladder that took something out, in this order."""
    summary: str = ""
    """What replaces messages: `written` by a model, an `extract` by code; empty: neither."""
    unfit: int = 0
    """Summaries that a model was asked for and that were not fit to be used."""
    saved: int = 0
    """Prompt tokens by which all compactions shortened it, those of earlier turns included."""
    saved_answer: int = 0
    """Those of them that the answer so far was shortened by where it was resumed."""
    cut_earlier: tuple[int, int] = (0, 0)
    """Tokens that were cut from earlier user messages, and those of all of these messages."""


@dataclass(eq=False)
class Outcome:
    """Outcome of one request. Counts are over the whole request; `first_byte` and `seconds` are measured from its arrival."""

    id: str
    clock: Callable[[], float]
    observers: tuple[Observer, ...] = ()
    """They see it until its end; none for a request that is only explained or counted."""
    dialect: str = ""
    credential: str = ""
    """A digest, never the key."""
    cause: "Outcome | None" = None
    """The request that background work follows; None: this is a request."""
    backend: str = ""
    model: str = ""
    """Id under which the backend knows it."""
    listed: bool = False
    """Whether the backend lists it: else a client may have made it up."""
    since: float = field(init=False)
    events: list[Event] = field(default_factory=list)
    """What happened, never what was said; at most `MOST_EVENTS`."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of the events of each name, those that are no longer stored included."""
    conversation: str = ""
    """A digest of the client's name for it; empty: it has none."""
    traced: Callable[[Headers], Headers] = lambda headers: headers
    """Puts the trace into the headers of a request to a backend."""
    status: int = 0
    doing: Activity = "reading"
    action: str = "passed"
    sent: SentPrompt = field(default_factory=SentPrompt)
    shortened: Compactions = field(default_factory=Compactions)
    mended: Counter[str] = field(default_factory=Counter)
    """Tool calls that were read back from text (`leaked`), and that were left out because the answer had made them before (`repeated`)."""
    first_byte: float | None = None
    seconds: float = 0.0
    usage: Mapping[str, Any] | None = None
    """Usage of the whole answer, as the client got or would have got it."""
    error: str | None = None
    """Code of the error that the client got."""

    def __post_init__(self) -> None:
        self.since = self.clock()

    def add(self, name: str, **fields: Any) -> None:
        """Record one of the `EVENTS`."""
        event = Event(self.clock(), name, fields)
        self.doing = EVENTS[name] or self.doing
        self.counts[name] += 1
        if name == "first_byte" and self.first_byte is None:
            self.first_byte = event.at - self.since
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        for observer in overriding(self.observers, Observer.happened):
            observer.happened(self, event)

    def show(self, name: str, **fields: Any) -> None:
        """Show the observers something that holds prompts or answers, and is therefore never stored."""
        for observer in overriding(self.observers, Observer.happened):
            observer.happened(self, Event(self.clock(), name, fields))

    def fail(self, status: int, error: str) -> None:
        """Record the error that the client gets; `status` 0: that of the response that went out before."""
        self.status, self.error = status, error

    def close(self, status: int) -> None:
        """End it; `status` is what the client got, if no failure was recorded."""
        self.status = self.status or status
        self.seconds = self.clock() - self.since
        if self.cause is None:
            self.add("finished" if self.error is None and self.status < 400 else "failed")
        observers, self.observers = self.observers, ()
        for observer in overriding(observers, Observer.ended):
            observer.ended(self)

    def record_route(self, backend: str, model: str, *, listed: bool, looks: bool = False) -> None:
        """Record backend and model, and whether it lists that; `looks`: nothing but a look, which occupies no backend."""
        self.backend, self.model, self.listed = backend, model, listed
        self.add("looked" if looks else "routed", backend=backend, model=model)

    def record_measured(self, tokens: int, window: int | None, tools: Literal["", "emulated"], sent_as: SentAs) -> None:
        """Record the prompt as it stands; `window` None: it is not known. What is counted after the end changes nothing."""
        if self.seconds:
            return
        sent = self.sent
        sent.window, sent.tokens_after, sent.tools = window, tokens, tools
        sent.sent_as = sent_as if self.first_byte is None else sent.sent_as
        if self.action != COMPACTING:
            self.action = self.shortened.kind or sent.sent_as
        if not self.shortened.compactions:  # the backend may have counted by now what was estimated
            sent.tokens_before = tokens
        self.add("measured", tokens=tokens, window=window, tools=tools)

    def record_compacted(self, **result: Any) -> None:
        """Record the end of a compaction; without gain its tokens after equal those before.

        Args:
            result: fields of the API's object `Reduced`; the figures before and after are those of the history, or of the text
                that an answer is resumed from, and `cut` is as `Compactions.cut_earlier`.
        """
        done = self.shortened
        if (gain := result["tokens_before"] - result["tokens_after"]) > 0:
            done.saved += gain
            done.saved_answer += gain if result["rungs"] == ANSWER_RUNGS else 0
            # An earlier summary stays in the history when a later compaction makes none.
            done.kind, done.summary = result["kind"], result["summary"] or done.summary
            done.compactions += 1
            done.cut_earlier = result["cut"] if result["cut"][0] else done.cut_earlier
            done.rungs = tuple(dict.fromkeys((*done.rungs, *result["rungs"])))
        self.action = done.kind or self.sent.sent_as
        done.compaction_seconds += result["seconds"]
        self.add("compacted", **result)

    @property
    def reduced(self) -> list[Mapping[str, Any]]:
        """Compactions that gained something, as `record_compacted` got them, the newest of them."""
        gained = [each for each in self.each("compacted") if each["tokens_after"] < each["tokens_before"]]
        return gained[-_MOST_REDUCTIONS:]

    @property
    def malformed_calls(self) -> list[Mapping[str, Any]]:
        """Tool calls that were not made, the first of them.

        `reason` is as in `proxy.emulation.forms.CallFault`, `tool` a name that the model wrote, `form` that in which the call was
        written (`native` where the backend reported it), and `provider` the kind of backend.
        """
        return [*self.each("malformed_call")][:_MOST_MALFORMED]

    @property
    def key(self) -> ModelKey:
        """Backend and model."""
        return self.backend, self.model

    @property
    def fill(self) -> float | None:
        """Tokens of the prompt as a fraction of the window, or of the fullest attempt that was paused."""
        window, tokens = self.sent.window, self.sent.tokens_after
        if window is None or tokens is None:
            return None
        return float(max(tokens, *[each["tokens"] for each in self.each("paused")], 0) / window)

    @property
    def answered(self) -> bool:
        """Return whether a backend answered it, be it that its client left meanwhile."""
        return self.first_byte is not None and (self.status < 400 or self.status == CLIENT_DISCONNECTED)

    @property
    def handled(self) -> bool:
        """Return whether more was done than to forward it."""
        return bool(self.shortened.compactions or self.counts["paused"] or self.counts["sent"] > 1)

    @property
    def mended_calls(self) -> bool:
        """Return whether any tool call was not passed on as it came."""
        return bool(self.malformed_calls or self.mended)

    @property
    def tokens_without(self) -> int:
        """Prompt tokens without what was recalled, and with all that was taken out, by the best estimate."""
        taken_out = self.shortened.saved - self.shortened.saved_answer + sum(self.sent.shaped.values())
        return (self.sent.tokens_after or 0) + taken_out - self.sent.recalled_tokens

    @property
    def tokens_saved(self) -> int:
        """Tokens by which that is more than what was sent, as the backend counts, and up to a full window."""
        prompt, done = self.sent, self.shortened
        changed = done.saved or prompt.shaped or prompt.recalled_tokens
        if not (changed and self.counts["sent"] and prompt.tokens_after):
            return 0
        sent = prompt.tokens_after
        counted = 0 if self.counts["resumed"] else as_count((self.usage or {}).get("prompt_tokens"))
        without = min(self.tokens_without, max(sent, prompt.window or self.tokens_without))
        return done.saved_answer + round((without - sent) * (counted or sent) / sent)

    def each(self, name: str) -> Iterator[Mapping[str, Any]]:
        """Fields of the events of this name."""
        assert name in EVENTS
        return (event.fields for event in self.events if event.name == name)

    def figures(self) -> dict[str, Any]:
        """Return what it holds by the names under which log, traces and API show it."""
        return {
            **vars(self),
            **vars(self.sent),
            **vars(self.shortened),
            "leaked_calls": self.mended["leaked"],
            "repeated_calls": self.mended["repeated"],
            **{figure: self.counts[event] for event, figure in _COUNTERS.items()},
            "unfinished": self.counts["out_of_room"] > 0,
            "stopped": self.counts["stopped"] > 0,
            "tokens_saved": self.tokens_saved,
            "fill": self.fill,
        }

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Build Spillway's response headers, of what is known when they are sent.

        While the history is being shortened the fill is not: it is in the usage at the end of the answer.
        """
        sent = self.sent
        cache = {"repeated": sent.repeated, "reused": sent.reused, "why": sent.unlike or None}
        fill = None if self.action == COMPACTING else self.fill
        values: dict[str, object] = {
            "action": self.action,
            "backend": self.backend,
            "tools": sent.tools,
            "recalled": sent.recalled,
            "restored": sent.restored,
            "shaped": ", ".join([f"{part}={tokens}" for part, tokens in sent.shaped.items()]),
            "max-tokens": sent.afforded,
            "left-out": sent.left_out + self.shortened.cut_earlier[0],
            "cache": ", ".join([f"{name}={value}" for name, value in cache.items() if value is not None]),
            "fill": "" if fill is None else f"{fill:.4f}",
            "window": sent.window,
        }
        shown = {name: str(value).encode("latin-1", "replace") for name, value in values.items() if value}
        return [(b"x-spillway-" + name.encode(), value) for name, value in shown.items()]


@dataclass
class Telemetry:
    """Opens an outcome for every request; add-ons see it."""

    clock: Callable[[], float]
    """Seconds that never go back."""
    observers: tuple[Observer, ...] = ()

    def open(self, request_id: str, headers: Headers, *, dialect: str = "", credential: str = "") -> Outcome:
        """Open the outcome of a request that was let in, with these headers: what is kept of it is this credential's."""
        current_tenant.set(credential)
        outcome = Outcome(request_id, self.clock, self.observers, dialect, credential)
        for observer in overriding(self.observers, Observer.started):
            observer.started(outcome, headers)
        return outcome

    def record_rejected(self, request_id: str, status: int, error: str) -> None:
        """Record a request that was not let in."""
        outcome = Outcome(request_id, self.clock, self.observers)
        outcome.fail(status, error)
        outcome.close(status)

    def background(self, request_id: str, cause: Outcome) -> Outcome:
        """Open the outcome of background work that follows a request; it counts as no request."""
        outcome = Outcome(request_id, self.clock, self.observers, credential=cause.credential, cause=cause)
        outcome.backend, outcome.model, outcome.listed = cause.backend, cause.model, cause.listed
        return outcome

    def silent(self) -> Outcome:
        """Open an outcome that nobody sees, of a request that is only explained or counted."""
        return Outcome("", self.clock)

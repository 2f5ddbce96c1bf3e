"""Record of one request's life, in tokens and seconds: filled while it is served, and read at its end.

Log, metrics, traces, page and headers read it. An outcome is this record; an event is one thing that happened to the
request; an observer is told of both. An activity is what a viewer sees the request doing; an action is what was done
with its prompt.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from proxy.backends.profile import ModelKey
from proxy.core.piece import as_count
from proxy.net.headers import Headers
from proxy.tokens.cache import current_tenant

SentAs: TypeAlias = Literal["forwarded", "continued", "moved", "shaped"]
"""How a prompt was sent: as the client sent it, with what an earlier turn shortened, to a model with a larger window, or changed in another way."""
Activity: TypeAlias = Literal["idle", "reading", "compacting", "waiting", "answering", "paused"]
CLIENT_DISCONNECTED = 499
"""Status of a request whose client left before it was answered (nginx's code for it)."""
COMPACTING = "compacting"
"""Action of a request whose history is being shortened."""
ANSWER_RUNGS = ("answer",)
"""Rungs of a compaction that shortened the answer so far instead of the history."""
MOST_EVENTS = 300
"""Most events of a request that are stored, since a very long answer may be paused again and again."""
_MOST_REDUCTIONS = 64
"""Most compactions of a request that are reported one by one."""
_MOST_MALFORMED = 16
"""Most malformed calls of a request that are reported."""
_BEGINNING: Mapping[Activity | None, str] = {
    "compacting": "compacting",
    "waiting": "compacted sent",
    "answering": "first_byte resumed",
    "paused": "paused",
    None: "named looked routed moved adopted window_requested mended shaped stabilised restored pinned commanded archived measured "
    "repeated reused tools_on_demand tools_given slot_restored document_part searched recalled remembered message_cut summarising summarised "
    "compacted_ahead compacted_on_demand backend_failed refused window_learned window_disproved cut afforded restarted "
    "observed concluded calls_mended called malformed_call out_of_room kept_waiting stopped finished failed",
}
# Names are checked against this table where an event is added or read: as bare strings at 44 places, a misspelt one was
# a metric that stayed at zero.
EVENTS = {name: activity for activity, names in _BEGINNING.items() for name in names.split()}
"""All events, each with the activity that begins with it, or None."""
_COUNTERS = {
    "sent": "attempts", "summarised": "summaries", "searched": "searches", "refused": "refusals",
    "paused": "pauses", "resumed": "resumes", "concluded": "conclusions",
}  # fmt: skip
"""Names of figures that count the events of a name."""


class Event(NamedTuple):
    """One thing that happened to a request."""

    at: float
    """Time on the clock of the telemetry."""
    name: str
    fields: Mapping[str, Any]


class Observer:
    """Base of everything that follows outcomes.

    Methods are called at once and in order: they must be quick and never raise.
    """

    def started(self, outcome: "Outcome", headers: Headers) -> None:
        """Note a request that was accepted; `headers` are the client's."""

    def happened(self, outcome: "Outcome", event: Event) -> None:
        """Note an event that the outcome has already recorded."""

    def ended(self, outcome: "Outcome") -> None:
        """Read an outcome that is complete."""


T = TypeVar("T", bound=Observer)


@lru_cache(maxsize=256)
def overriding(observers: tuple[T, ...], moment: Callable[..., Any]) -> tuple[T, ...]:
    """Select the observers that act at a moment, that is, override this method of their base."""
    return tuple(each for each in observers if getattr(type(each), moment.__name__) is not moment)


@dataclass(eq=False)
class SentPrompt:
    """Figures of the prompt as it was last sent, and of what the backend had of it in its cache."""

    window: int | None = None
    tokens_before: int | None = None
    """Prompt tokens as sent by the client, by the best estimate."""
    tokens_after: int | None = None
    """Prompt tokens as last sent."""
    sent_as: SentAs = "forwarded"
    """Action to report if nothing was shortened for this request."""
    tools: Literal["", "emulated"] = ""
    covered: int = 0
    """Messages that an earlier turn shortened."""
    shaped: Mapping[str, int] = field(default_factory=dict)
    """Tokens saved by the policy, by the part of the prompt that it shortened."""
    recalled: int = 0
    """Passages of the covered history that were put back into the prompt; their tokens follow."""
    recalled_tokens: int = 0
    restored: int = 0
    """Messages that got back parts that their client had left out."""
    left_out: int = 0
    """Tokens from the middle of the newest user message that were not sent; the tokens of the whole message follow."""
    left_out_of: int = 0
    afforded: int = 0
    """Bound of the answer in tokens if no more could be paid for, else 0."""
    repeated: int | None = None
    """Tokens at its beginning that repeat the conversation's previous prompt, by the best estimate; None if nothing was
    sent."""
    reused: int | None = None
    """Prompt tokens that the backend had in its cache; None if it does not report them."""
    unlike: str = ""
    """Reason why no more were repeated (see `proxy.addons.prompt_prefix`), or reused (`backend`)."""


@dataclass(eq=False)
class Compactions:
    """Figures of the compactions of one request."""

    compactions: int = 0
    compaction_seconds: float = 0.0
    kind: str = ""
    """Kind of the newest compaction; empty if there was none."""
    rungs: tuple[str, ...] = ()
    """Rungs of the ladder that took something out, in order."""
    summary: str = ""
    """Author of the summary that replaces messages: a model (`written`), code (`extract`), or empty if there is none."""
    unfit: int = 0
    """Number of summaries by a model that were not fit to be used."""
    saved: int = 0
    """Prompt tokens saved by all compactions, including those of earlier turns."""
    saved_answer: int = 0
    """Part of `saved` by which the answer so far was shortened where it was resumed."""
    cut_earlier: tuple[int, int] = (0, 0)
    """Tokens cut from earlier user messages, and all tokens of these messages."""


@dataclass(eq=False)
class Outcome:
    """Outcome of one request. Counts are over the whole request; `first_byte` and `seconds` are measured from its arrival."""

    id: str
    clock: Callable[[], float]
    observers: tuple[Observer, ...] = ()
    """Observers, notified until the end; none if the request is only explained or counted."""
    dialect: str = ""
    credential: str = ""
    """Digest of the client's key; never the key."""
    cause: "Outcome | None" = None
    """Request that this background work follows; None if this is a request itself."""
    key: ModelKey = "", ""
    """Backend and model."""
    backend: str = ""
    """Backend's name for people."""
    model: str = ""
    """Model's id at the backend."""
    listed: bool = False
    """Whether the backend lists the model; otherwise a client may have made it up."""
    since: float = field(init=False)
    events: list[Event] = field(default_factory=list)
    """Events, at most `MOST_EVENTS`: what happened, never what was said."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of events by name, including those that are no longer stored."""
    conversation: str = ""
    """Digest of the client's name for the conversation; empty if it names none."""
    traced: Callable[[Headers], Headers] = lambda headers: headers
    """Adds the trace to the headers of a request to a backend."""
    status: int = 0
    doing: Activity = "reading"
    action: str = "passed"
    sent: SentPrompt = field(default_factory=SentPrompt)
    shortened: Compactions = field(default_factory=Compactions)
    mended: Counter[str] = field(default_factory=Counter)
    """Repaired tool calls: read back from text (`leaked`), or left out because the answer had already made them (`repeated`)."""
    first_byte: float | None = None
    seconds: float = 0.0
    usage: Mapping[str, Any] | None = None
    """Usage of the whole answer, as sent to the client, or as it would have been."""
    error: str | None = None
    """Code of the error sent to the client."""

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
        """Show the observers something with content of prompts or answers, which is therefore never stored."""
        for observer in overriding(self.observers, Observer.happened):
            observer.happened(self, Event(self.clock(), name, fields))

    def fail(self, status: int, error: str) -> None:
        """Record the error sent to the client; `status` 0 keeps the status of the response that was already sent."""
        self.status, self.error = status, error

    def close(self, status: int) -> None:
        """End the record; `status` is the client's, used if no failure was recorded."""
        self.status = self.status or status
        self.seconds = self.clock() - self.since
        if self.cause is None:
            self.add("finished" if self.error is None and self.status < 400 else "failed")
        observers, self.observers = self.observers, ()
        for observer in overriding(observers, Observer.ended):
            observer.ended(self)

    def record_route(self, key: ModelKey, backend: str, *, listed: bool, looks: bool = False) -> None:
        """Record backend and model; `looks`: the request only reads, and occupies no backend."""
        self.key, self.backend, self.model, self.listed, self.sent = key, backend, key[1], listed, SentPrompt()
        self.add("looked" if looks else "routed", backend=backend, model=self.model)

    def record_measured(self, tokens: int, window: int | None, tools: Literal["", "emulated"], sent_as: SentAs) -> None:
        """Record the prompt's present size; `window` is None if unknown.

        Counts that arrive after the end change nothing.
        """
        if self.seconds:
            return
        sent = self.sent
        sent.window, sent.tokens_after, sent.tools = window, tokens, tools
        sent.sent_as = sent_as if self.first_byte is None else sent.sent_as
        if self.action != COMPACTING:
            self.action = self.shortened.kind or sent.sent_as
        if not self.shortened.compactions:  # by now the backend may have counted what was estimated
            sent.tokens_before = tokens
        self.add("measured", tokens=tokens, window=window, tools=tools)

    def record_compacted(self, **fields: Any) -> None:
        """Record the end of a compaction. If it gained nothing, its tokens after equal those before.

        Args:
            fields: those of the API's object `Reduced`, but its ratio; the figures before and after are those of the history, or of
                the text that an answer is resumed from, and `cut` is as `Compactions.cut_earlier`.
        """
        done, ratio = self.shortened, fields["tokens_after"] / max(1, fields["tokens_before"])
        result = {"results_cleaned": 0, "summary": "", "cut": (0, 0), **fields, "ratio": round(ratio, 4)}
        result["seconds"] = round(fields["seconds"], 3)
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
        """Compactions that gained something, as passed to `record_compacted`, at most the newest 64."""
        gained = [each for each in self.each("compacted") if each["tokens_after"] < each["tokens_before"]]
        return gained[-_MOST_REDUCTIONS:]

    @property
    def malformed_calls(self) -> list[Mapping[str, Any]]:
        """Tool calls that were not made, at most the first 16.

        `reason` is as in `proxy.emulation.forms.CallFault`, `tool` a name that the model wrote, `form` that in which the call was
        written (`native` where the backend reported it), and `provider` the kind of backend.
        """
        return [*self.each("malformed_call")][:_MOST_MALFORMED]

    @property
    def fill(self) -> float | None:
        """Tokens of the prompt, or of the fullest attempt that was paused, as a fraction of the window."""
        window, tokens = self.sent.window, self.sent.tokens_after
        if window is None or tokens is None:
            return None
        return float(max(tokens, *[each["tokens"] for each in self.each("paused")], 0) / window)

    @property
    def answered(self) -> bool:
        """Return whether a backend answered, even if the client left meanwhile."""
        return self.first_byte is not None and (self.status < 400 or self.status == CLIENT_DISCONNECTED)

    @property
    def handled(self) -> bool:
        """Return whether Spillway did more than forward the request."""
        return bool(self.shortened.compactions or self.counts["paused"] or self.counts["sent"] > 1)

    @property
    def mended_calls(self) -> bool:
        """Return whether any tool call was changed or left out."""
        return bool(self.malformed_calls or self.mended)

    @property
    def tokens_without(self) -> int:
        """Prompt tokens without recalled text and with everything that was taken out, by the best estimate."""
        taken_out = self.shortened.saved - self.shortened.saved_answer + sum(self.sent.shaped.values())
        return (self.sent.tokens_after or 0) + taken_out - self.sent.recalled_tokens

    @property
    def tokens_saved(self) -> int:
        """Tokens saved: `tokens_without` less what was sent, as the backend counts, and up to a full window."""
        prompt, done = self.sent, self.shortened
        changed = done.saved or prompt.shaped or prompt.recalled_tokens
        if not (changed and self.counts["sent"] and prompt.tokens_after):
            return 0
        sent = prompt.tokens_after
        counted = (0 if self.counts["resumed"] else as_count((self.usage or {}).get("prompt_tokens"))) or sent
        without = self.tokens_without * counted / sent
        return done.saved_answer + round(min(without, max(counted, prompt.window or without)) - counted)

    def each(self, name: str) -> Iterator[Mapping[str, Any]]:
        """Yield the fields of the events of this name."""
        assert name in EVENTS
        return (event.fields for event in self.events if event.name == name)

    def figures(self) -> dict[str, Any]:
        """Return all figures by the names under which log, traces and API show them."""
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
        """Build Spillway's response headers from what is known when they are sent.

        While the history is being shortened, the fill is not known yet; it is in the usage at the end of the answer.
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
    """Opens an outcome for every request, and shows it to the observers."""

    clock: Callable[[], float]
    """Monotonic clock, in seconds."""
    observers: tuple[Observer, ...] = ()

    def open(self, request_id: str, headers: Headers, *, dialect: str = "", credential: str = "") -> Outcome:
        """Open the outcome of an accepted request; everything cached for it belongs to this credential."""
        current_tenant.set(credential)
        outcome = Outcome(request_id, self.clock, self.observers, dialect, credential)
        for observer in overriding(self.observers, Observer.started):
            observer.started(outcome, headers)
        return outcome

    def record_rejected(self, request_id: str, status: int, error: str) -> None:
        """Record a request that was rejected."""
        outcome = Outcome(request_id, self.clock, self.observers)
        outcome.fail(status, error)
        outcome.close(status)

    def background(self, request_id: str, cause: Outcome) -> Outcome:
        """Open the outcome of background work that follows a request; it does not count as a request."""
        outcome = Outcome(request_id, self.clock, self.observers, credential=cause.credential, cause=cause)
        outcome.key, outcome.backend = cause.key, cause.backend
        outcome.model, outcome.listed = cause.model, cause.listed
        return outcome

    def silent(self) -> Outcome:
        """Open an outcome without observers, for a request that is only explained or counted."""
        return Outcome("", self.clock)

"""Counters and histograms for `/metrics`, each one line that reads finished outcomes: figures and names, never prompts or keys."""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from typing_extensions import override

from proxy.addon import AddOn
from proxy.core.jsontext import dig
from proxy.core.piece import as_count
from proxy.outcome import EVENTS, Outcome

Sample: TypeAlias = tuple[tuple[str, ...], float]
"""Values of a metric's own labels, and the number to add or observe."""
Sampler: TypeAlias = Callable[[Outcome], Iterable[Sample]]
FieldSampler: TypeAlias = Callable[[Mapping[str, Any]], Iterable[Sample]]

_FILLS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.97, 1.0, 1.5, 2.0, 5.0)
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# Otherwise one client could use up the series of all others with model names that it makes up.
_MOST_MODELS, _MOST_OF_ONE = 256, 32
"""Most unlisted models with series of their own, in all and of one credential; all others are counted together."""
_OTHER = "other"


def _events(name: str, *labels: str, by: str = "") -> tuple[str, FieldSampler]:
    """Count events of this name, labelled by these fields; `by`: field with the number that each event adds, else 1."""
    assert name in EVENTS
    return name, lambda fields: [(tuple(str(fields[label]) for label in labels), fields[by] if by else 1)]


def _kinds(name: str) -> tuple[str, FieldSampler]:
    """Count each kind listed by events of this name."""
    return name, lambda fields: [((kind,), 1) for kind in fields["kinds"]]


def _one(read: Callable[[Outcome], float | None]) -> Sampler:
    """Add or observe one figure of the outcome, unless it is None."""
    return lambda o: () if (value := read(o)) is None else (((), value),)


def _reduced(*names: str) -> Sampler:
    """Add these fields of each compaction that gained something; if there are several, the label `when` tells them apart."""
    return lambda o: [
        ((name.split("_")[1],) if len(names) > 1 else (), each[name]) for each in o.reduced for name in names
    ]


def _ended(outcome: Outcome) -> Iterator[Sample]:
    if outcome.cause is None:
        yield (outcome.action, str(outcome.status)), 1


def _used(outcome: Outcome) -> Iterator[Sample]:
    """Yield tokens by kind, as the backend reported them."""
    usage = outcome.usage or {}
    cached = as_count(dig(usage, "prompt_tokens_details", "cached_tokens"))
    for kind, tokens in (
        ("prompt", as_count(usage.get("prompt_tokens"))),
        ("completion", as_count(usage.get("completion_tokens"))),
        ("cached", cached or (outcome.sent.reused or 0 if usage else 0)),
        ("recalled", outcome.sent.recalled_tokens if usage else 0),
        ("summary", sum(each["tokens"] for each in outcome.each("summarised"))),
    ):
        if tokens:
            yield (kind,), tokens


def _reused_share(outcome: Outcome) -> float | None:
    prompt = as_count((outcome.usage or {}).get("prompt_tokens")) or outcome.sent.tokens_after or 0
    if outcome.sent.repeated is None or outcome.sent.reused is None or not prompt:
        return None
    return min(1.0, outcome.sent.reused / prompt)


_BY_KEY = "key"
"""Label for the sender."""
COUNTERS: tuple[tuple[str, str, tuple[str, ...], Sampler | tuple[str, FieldSampler] | str], ...] = (
    ("requests", "Requests, by action and status of the answer.", ("action", "status"), _ended),
    ("saved_tokens", "Prompt tokens that were not sent: what was taken out, less what was recalled.", (), _one(lambda o: max(0, o.tokens_saved) if o.counts["sent"] and o.cause is None and (o.shortened.saved or o.sent.shaped) else None)),
    ("summarised_requests", "Requests sent with a summary, by who made it: written by a model, or an extract by code.", ("summary",), lambda o: (((o.shortened.summary,), 1),) if o.shortened.summary and o.answered and o.cause is None else ()),
    ("moves", "Conversations moved to a model with a larger window.", (), lambda o: (((), 1) for each in o.each("moved") if each["model"] == o.model)),
    ("compactions", "Histories shortened, by kind of reduction.", ("kind",), lambda o: [((each["kind"],), 1) for each in o.reduced]),
    ("compaction_messages", "Messages of histories that were shortened, before it and after.", ("when",), _reduced("messages_before", "messages_after")),
    ("compaction_tokens", "Tokens of histories that were shortened, before it and after.", ("when",), _reduced("tokens_before", "tokens_after")),
    ("cleaned_results", "Tool results that were capped, masked or left out.", (), _reduced("results_cleaned")),
    ("summaries", "Summaries, by the verdict of their check.", ("verdict",), "summarised"),
    ("extracts", "Extracts made by code in place of a summary.", (), _one(lambda o: sum(each["summary"] == "extract" for each in o.reduced) or None)),
    ("usage_tokens", "Tokens of answers, by a digest of the key that asked and by kind.", (_BY_KEY, "kind"), _used),
    ("ahead", "Compactions ahead of time, by result.", ("became",), "compacted_ahead"),
    ("compactions_on_demand", "Compactions that users asked for, by result.", ("became",), "compacted_on_demand"),
    ("document_parts", "Parts of messages that exceed the window, by result.", ("became",), "document_part"),
    ("recalled_tokens", "Tokens of recalled passages.", (), _one(lambda o: o.sent.recalled_tokens or None)),
    ("archived_messages", "Messages added to the archives of conversations.", (), _events("archived", by="messages")),
    ("searches", "Searches of conversations by models.", (), "searched"),
    ("found_tools", "Tools whose schema a model got inside an answer, by reason: looked up, or called without it.", ("why",), _events("tools_given", "why", by="tools")),
    ("pauses", "Answers paused, by reason.", ("reason",), "paused"),
    ("resumes", "Answers resumed, by way of continuation.", ("continuation",), _events("resumed", "how")),
    ("restored_messages", "Messages completed with what their client had left out of an answer.", (), _one(lambda o: o.sent.restored or None)),
    ("repairs", "Histories repaired so that backends accept them.", ("kind",), _kinds("mended")),
    ("stabilised", "Prompts that a billing line or cache marks were stripped from, or a mark was set in.", ("kind",), _kinds("stabilised")),
    # Savings may be negative, if the configured system prompt is longer than the client's, but a counter only rises.
    ("shaped_tokens", "Tokens that the policy saved, by kind of part.", ("kind",), lambda o: (((kind,), max(0, tokens)) for kind, tokens in o.sent.shaped.items())),
    ("prompt_tokens", "Tokens of the prompts that were sent, by estimate.", (), _one(lambda o: None if o.sent.repeated is None else o.sent.tokens_after)),
    ("repeated_tokens", "Prompt tokens that repeat the beginning of the conversation's previous prompt.", (), _one(lambda o: o.sent.repeated)),
    ("reused_tokens", "Prompt tokens that the backend reports as cached.", (), _one(lambda o: o.sent.reused)),
    ("prefix_breaks", "Prompts that repeat less of the previous one than they could, by reason.", ("why",), lambda o: (((o.sent.unlike,), 1),) if o.sent.unlike else ()),
    ("emulated_tool_calls", "Tool calls read from text, by form and outcome.", ("form", "outcome"), _events("called", "form", "became", by="number")),
    ("concluded_thoughts", "Thoughts ended to get an answer, by reason: their budget, or no answer.", ("why",), "concluded"),
    ("malformed_tool_calls", "Tool calls that could not be made, by kind of backend and why.", ("provider", "reason"), "malformed_call"),
    ("mended_tool_calls", "Tool calls that leaked into text and were read back, or repeated and left out.", ("what",), _events("calls_mended", "what", by="number")),
    ("heartbeats", "Heartbeats sent to clients that waited.", (), _events("kept_waiting", by="signs")),
    ("slots_restored_tokens", "Tokens of prompts that a llama-server restored from disk instead of reading them.", (), _events("slot_restored", by="tokens")),
    ("overflows", "Prompts refused by the backend for their size.", (), lambda o: (((), 1) for each in o.each("refused") if each["what"] == "overflow")),
    ("window_requests", "Windows that backends were asked to load models with, by what became of them.", ("became",), "window_requested"),
    ("observed", "Requests under the strategy `observe`, by what Spillway would have done and what was lost without it.", ("would", "lost"), "observed"),
    ("silent_cuts", "Prompts that the backend shortened silently.", (), "cut"),
    ("upstream_failures", "Requests to backends that could not be reached or broke off.", (), "backend_failed"),
)  # fmt: skip
"""Counters: name, help text, labels besides backend and model, and the numbers added at the end of each outcome.

The name of an event counts such events, by those of their fields that are named like the labels.
"""
HISTOGRAMS: tuple[tuple[str, str, tuple[str, ...], tuple[float, ...], Sampler], ...] = (
    ("fill_ratio", "Tokens of prompts as a fraction of the window, or of the fullest attempt that was paused.", (), _FILLS, _one(lambda o: o.fill if o.cause is None else None)),
    ("first_byte_seconds", "From a request to the first byte of its answer.", (), _SECONDS, _one(lambda o: o.first_byte if o.cause is None else None)),
    ("compaction_seconds", "What shortening a history took: in a request, or ahead of it.", ("when",), _SECONDS,
     lambda o: ((("request" if o.cause is None else "ahead",), each["seconds"]) for each in o.each("compacted"))),
    ("compaction_ratio", "Tokens of a history after it was shortened, per token before.", (), _RATIOS, _reduced("ratio")),
    ("prefix_reuse_ratio", "Share of a prompt that the backend says it had read before; of backends that tell.", (), _SHARES, _one(_reused_share)),
)  # fmt: skip
"""Histograms: the same, with the bounds of the buckets before the last."""


class Metrics(AddOn):
    """Counts finished outcomes. Each application has its own registry, so two can run in one process."""

    def __init__(self, *, keyed: bool = False) -> None:
        """Register the metrics; `keyed`: requests need a key, so the number of senders is bounded and each has its own series."""
        self._keyed = keyed
        self._registry = registry = CollectorRegistry()
        disable_created_metrics()  # type: ignore[no-untyped-call] # they double the series, and nobody reads them
        common = ("backend", "model")
        self._counters: list[tuple[Counter, bool, Sampler]] = []
        self._by_event = defaultdict[str, list[tuple[Counter, FieldSampler]]](list)
        for name, text, labels, figure in COUNTERS:
            counter = Counter(f"spillway_{name}", text, (*common, *labels), registry=registry)
            read = _events(figure, *labels) if isinstance(figure, str) else figure
            if isinstance(read, tuple):
                self._by_event[read[0]].append((counter, read[1]))
            else:
                self._counters.append((counter, _BY_KEY in labels, read))
        self._histograms = [
            (Histogram(f"spillway_{name}", text, (*common, *labels), buckets=buckets, registry=registry), read)
            for name, text, labels, buckets, read in HISTOGRAMS
        ]
        ProcessCollector(registry=registry)
        self._models: dict[tuple[str, str], tuple[str, str]] = {}
        """Labels of models with series of their own, by key."""
        self._unlisted = Tally[str]()
        """Number of those models that no backend lists, by credential."""

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show the result of `value` whenever the metrics are read."""
        Gauge(f"spillway_{name}", text, registry=self._registry).set_function(value)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    @override
    def ended(self, outcome: Outcome) -> None:
        """Count an outcome."""
        known = self._models.get(outcome.key)
        if known is None:
            # Clients choose names that no backend lists, so those with series of their own are bounded, and encoded with
            # "replace", since half of a surrogate pair cannot be written.
            named = outcome.listed or not outcome.model
            if not named and outcome.answered and self._unlisted.total() < _MOST_MODELS:
                named = self._unlisted[outcome.credential] < _MOST_OF_ONE
                self._unlisted[outcome.credential] += named
            model = outcome.model.encode(errors="replace").decode() if named else _OTHER
            known = outcome.backend, model
            if named:
                self._models[outcome.key] = known
        sender = owner(outcome.credential) if self._keyed and outcome.credential else ""
        events = [(each, event.fields) for event in outcome.events for each in self._by_event.get(event.name, ())]
        found = [(counter, False, read(fields)) for (counter, read), fields in events]
        found += [(counter, keyed, read(outcome)) for counter, keyed, read in self._counters]
        for counter, keyed, samples in found:
            for labels, number in samples:
                counter.labels(*known, *((sender,) if keyed else ()), *labels).inc(number)
        for histogram, read in self._histograms:
            for labels, value in read(outcome):
                histogram.labels(*known, *labels).observe(value)


@lru_cache(maxsize=1024)
def owner(credential: str) -> str:
    """Return eight hexadecimal digits that represent a credential's digest, from which it cannot be recovered."""
    return blake2b(credential.encode(), digest_size=4, person=b"spillway-owner").hexdigest()

"""Counters for `/metrics`: figures and names, never prompts or keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from proxy.telemetry import events as e
from proxy.telemetry.journal import Listener
from proxy.telemetry.outcome import Outcome, owner
from proxy.telemetry.tally import ManyHistogram, Tally

_FILLS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.97, 1.0, 1.5, 2.0, 5.0)
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_LEFT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_NAMES = ("backend", "model")
_MOST_MODELS = 256
"""Models with series of their own; the rest count together."""
_OTHER = "other"
_MOST_PENDING = 500
"""Requests that wait to be handed on: half a millisecond's work."""


class Metrics:
    """Counts what requests tell. Each application has its own registry, so two can live in one process."""

    def __init__(self, *, keyed: bool = False) -> None:
        """`keyed`: whether requests need a key, so that there are no more senders than keys, and each is counted by itself."""
        self._keyed = keyed
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Requests by what was done to them and how they were answered.", "action", "status"
        )
        self._saved = self._counter("saved_tokens", "Prompt tokens taken out of histories.")
        self._compactions = self._counter("compactions", "Histories shortened, by kind of reduction.", "kind")
        self._shortened, self._tokens, self._cleaned = self._compaction_counters()
        self._summaries = self._counter("summaries", "Summaries, by what was found about them.", "verdict")
        self._extracts = self._counter("extracts", "Extracts made by code, for want of a summary.")
        self._usage = self._counter(
            "usage_tokens", "Tokens of answers, by a digest of the key that asked and by kind.", "key", "kind"
        )
        self._ahead, self._recalled, self._searches = self._memory_counters()
        self._pauses = self._counter("pauses", "Answers paused, by reason.", "reason")
        self._resumes = self._counter("resumes", "Answers resumed, by way of continuation.", "continuation")
        self._repairs, self._stabilised = self._mending_counters()
        self._shaped = self._counter(
            "shaped_tokens", "Tokens that the policy saved, by kind of part.", "kind"
        )
        self._caches = self._cache_counters()
        self._calls, self._malformed, self._mended_calls = self._call_counters()
        self._overflows, self._cuts, self._failures = self._trouble_counters()
        self._fill, self._first_byte, self._compaction, self._ratio, self._reuse = self._histograms()
        ProcessCollector(registry=self._registry)
        self._models: dict[tuple[str, str], tuple[str, str]] = {}
        self._pending: defaultdict[tuple[Counter, tuple[str, ...]], float] = defaultdict(float)
        """What was counted since the counters were brought up to date, by counter and labels: they cost a microsecond each."""
        self._tallies: dict[tuple[str | int, ...], Tally] = {}
        """The same of requests that have ended: they end alike, mostly."""
        self._waiting = 0
        """So many of them."""
        self.heard = self._by_event()
        """What is counted, by type of event, and how."""

    def _by_event(self) -> Mapping[type, Listener]:
        return {
            e.Compacted: self._compacted,
            e.Summarised: self._summarised,
            e.CompactedAhead: lambda o, event: self._inc(self._ahead, o, event.became),
            e.Searched: lambda o, _: self._inc(self._searches, o),
            e.Paused: lambda o, event: self._inc(self._pauses, o, event.reason),
            e.Resumed: lambda o, event: self._inc(self._resumes, o, event.how),
            e.Mended: self._mended,
            e.Stabilised: self._count_stabilised,
            e.Called: lambda o, event: self._inc(self._calls, o, event.form, event.became, by=event.number),
            e.MalformedCall: lambda o, event: self._inc(self._malformed, o, event.provider, event.reason),
            e.CallsMended: lambda o, event: self._inc(self._mended_calls, o, event.what, by=event.number),
            e.Refused: self._refused,
            e.Cut: lambda o, _: self._inc(self._cuts, o),
            e.BackendFailed: lambda o, _: self._inc(self._failures, o),
            e.Finished: self._ended,
            e.Failed: self._ended,
        }

    def _call_counters(self) -> tuple[Counter, Counter, Counter]:
        return (
            self._counter(
                "emulated_tool_calls", "Tool calls read from text, by form and outcome.", "form", "outcome"
            ),
            self._counter(
                "malformed_tool_calls",
                "Tool calls that could not be made, by kind of backend and why.",
                "provider",
                "reason",
            ),
            self._counter(
                "mended_tool_calls",
                "Tool calls that leaked into text and were read back, or repeated and left out.",
                "what",
            ),
        )

    def _compaction_counters(self) -> tuple[Counter, Counter, Counter]:
        return (
            self._counter(
                "compaction_messages",
                "Messages of histories that were shortened, before it and after.",
                "when",
            ),
            self._counter(
                "compaction_tokens", "Tokens of histories that were shortened, before it and after.", "when"
            ),
            self._counter(
                "cleaned_results", "Tool results that were capped, masked, told of in short or left out."
            ),
        )

    def _memory_counters(self) -> tuple[Counter, Counter, Counter]:
        return (
            self._counter("ahead", "Compactions ahead of time, by what became of them.", "became"),
            self._counter("recalled_tokens", "Tokens of covered history put back into prompts."),
            self._counter("searches", "Searches of conversations by models."),
        )

    def _mending_counters(self) -> tuple[Counter, Counter]:
        stripped = "Prompts that billing lines or cache marks were stripped from."
        return (
            self._counter("repairs", "Histories mended for backends to take them.", "kind"),
            self._counter("stabilised", stripped, "kind"),
        )

    def _trouble_counters(self) -> tuple[Counter, Counter, Counter]:
        return (
            self._counter("overflows", "Prompts refused by the backend for their size."),
            self._counter("silent_cuts", "Prompts that the backend shortened without a word."),
            self._counter(
                "upstream_failures", "Requests to backends that could not be reached or broke off."
            ),
        )

    def watch(self, name: str, text: str, value: Callable[[], float], *, counts: bool = False) -> None:
        """Show what this gives whenever the metrics are read; `counts`: it only ever rises."""
        family = CounterMetricFamily if counts else GaugeMetricFamily
        self._registry.register(_Watched(lambda: family(f"spillway_{name}", text, value=value())))

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        self._hand_on()
        return generate_latest(self._registry)

    def _ended(self, outcome: Outcome, _: e.Finished | e.Failed) -> None:
        whose = outcome.credential if self._keyed else ""
        like = (outcome.backend, outcome.model, outcome.action, outcome.status, outcome.unlike, whose)
        tally = self._tallies.get(like)
        if tally is None:
            tally = self._tallies[like] = Tally(outcome, self._where(outcome), self._asker(outcome))
        tally.add(outcome)
        if outcome.recalled:
            self._inc(self._recalled, outcome, by=outcome.recalled_tokens)
        if outcome.shaped:
            for kind, tokens in outcome.shaped.items():
                # A system prompt of the user's own may be longer than the client's; a counter only rises.
                self._inc(self._shaped, outcome, kind, by=max(0, tokens))
        self._waiting += 1
        if self._waiting >= _MOST_PENDING:
            self._hand_on()

    def _tell(self, tally: Tally) -> None:
        pending, where = self._pending, tally.where
        pending[self._requests, (*where, *tally.answered)] += tally.number
        for kind in ("prompt", "completion", "cached", "recalled"):
            if tokens := getattr(tally, kind):
                pending[self._usage, (*where, tally.asker, kind)] += tokens
        prompts, repeated, reused, breaks = self._caches
        if tally.sent is not None:
            pending[prompts, where] += tally.sent
            pending[repeated, where] += tally.repeated
        if tally.reused is not None:
            pending[reused, where] += tally.reused
        if tally.unlike:
            pending[breaks, (*where, tally.unlike)] += tally.number
        for histogram, values in (
            (self._reuse, tally.reuses),
            (self._fill, tally.fills),
            (self._first_byte, tally.first_bytes),
        ):
            if values:
                histogram.labels(*where).observe_all(values)

    def _summarised(self, outcome: Outcome, event: e.Summarised) -> None:
        self._inc(self._summaries, outcome, event.verdict)
        if event.tokens:
            self._inc(self._usage, outcome, self._asker(outcome), "summary", by=event.tokens)

    def _asker(self, outcome: Outcome) -> str:
        """Whose account tokens are put on, as a label; empty: everybody's."""
        return owner(outcome.credential) if self._keyed and outcome.credential else ""

    def _cache_counters(self) -> tuple[Counter, Counter, Counter, Counter]:
        return (
            self._counter("prompt_tokens", "Tokens of the prompts that were sent, by estimate."),
            self._counter(
                "repeated_tokens", "Of them those that the prompt before in the conversation began with."
            ),
            self._counter("reused_tokens", "Of them those that the backend says it had read before."),
            self._counter(
                "prefix_breaks", "Prompts of which less was as before than could have been, by why.", "why"
            ),
        )

    def _compacted(self, outcome: Outcome, event: e.Compacted) -> None:
        when = "ahead" if outcome.ahead else "request"
        self._compaction.labels(*self._where(outcome), when).observe(event.seconds)
        if event.gained:
            self._inc(self._compactions, outcome, event.kind)
            self._inc(self._saved, outcome, by=event.before - event.after)
            self._reduced(outcome, event)
            if event.summary == "extract":
                self._inc(self._extracts, outcome)

    def _reduced(self, outcome: Outcome, event: e.Compacted) -> None:
        tokens = (event.before, event.after)
        for when, messages, size in zip(("before", "after"), event.messages, tokens, strict=True):
            self._inc(self._shortened, outcome, when, by=messages)
            self._inc(self._tokens, outcome, when, by=size)
        self._inc(self._cleaned, outcome, by=event.cleaned)
        self._ratio.labels(*self._where(outcome)).observe(event.ratio)

    def _mended(self, outcome: Outcome, event: e.Mended) -> None:
        for kind in event.kinds:
            self._inc(self._repairs, outcome, kind)

    def _count_stabilised(self, outcome: Outcome, event: e.Stabilised) -> None:
        for kind in event.kinds:
            self._inc(self._stabilised, outcome, kind)

    def _refused(self, outcome: Outcome, event: e.Refused) -> None:
        if event.what == "overflow":
            self._inc(self._overflows, outcome)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"spillway_{name}", text, (*_NAMES, *labels), registry=self._registry)

    def _histograms(self) -> tuple[ManyHistogram, ...]:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> ManyHistogram:
            labels = (*_NAMES, *labels)
            return ManyHistogram(f"spillway_{name}", text, labels, buckets=buckets, registry=self._registry)

        return (
            histogram("fill_ratio", "Prompt tokens as a fraction of the window.", _FILLS),
            histogram("first_byte_seconds", "From a request to the first byte of its answer.", _SECONDS),
            histogram(
                "compaction_seconds",
                "What shortening a history took: in a request, or ahead of it.",
                _SECONDS,
                "when",
            ),
            histogram(
                "compaction_ratio", "Tokens of a history after it was shortened, per token before.", _LEFT
            ),
            histogram(
                "prefix_reuse_ratio",
                "Share of a prompt that the backend says it had read before; of backends that tell.",
                _SHARES,
            ),
        )

    def _inc(self, counter: Counter, outcome: Outcome, *labels: str, by: float = 1) -> None:
        self._pending[counter, (*self._where(outcome), *labels)] += by

    def _hand_on(self) -> None:
        for tally in self._tallies.values():
            self._tell(tally)
        self._tallies.clear()
        self._waiting = 0
        for (counter, labels), number in self._pending.items():
            counter.labels(*labels).inc(number)
        self._pending.clear()

    def _where(self, outcome: Outcome) -> tuple[str, str]:
        """Backend and model as labels. Ids of models come from clients, so there must be an end."""
        where = (outcome.backend, outcome.model)
        labels = self._models.get(where)
        if labels is None:
            if len(self._models) >= _MOST_MODELS:
                return (outcome.backend, _OTHER)
            # Half of a surrogate pair can't be written.
            labels = self._models[where] = (outcome.backend, outcome.model.encode(errors="replace").decode())
        return labels


class _Watched(Collector):
    """What is asked for whenever the metrics are read."""

    def __init__(self, family: Callable[[], Metric]) -> None:
        self._family = family

    @override
    def collect(self) -> Iterable[Metric]:
        return (self._family(),)

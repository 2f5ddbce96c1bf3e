"""Traces for OpenTelemetry, made from outcomes: a span for each request, with its attempts, compactions, summaries and recalls.

Attributes are named by the semantic conventions for generative AI, version 1.41.0 (the last before they moved to a repository of
their own); attributes that these do not define begin with `spillway.`. Spans hold names and figures, never prompts or keys.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from typing_extensions import override

from proxy import __version__
from proxy.addon import AddOn
from proxy.core.jsontext import dig
from proxy.core.piece import as_count
from proxy.net.headers import Headers
from proxy.net.upstream import Upstream
from proxy.outcome import CLIENT_DISCONNECTED, Event, Outcome

SHUTDOWN_TIMEOUT = 2.0
"""Seconds that a collector without an answer may delay the shutdown; the exporter's own timeout is 10 or more."""
_SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
_W3C = TraceContextTextMapPropagator()
_TRACE_HEADERS = ("traceparent", "tracestate")
_NOTED = frozenset(
    (
        *("mended", "stabilised", "message_cut", "searched", "tools_given"),
        *("refused", "afforded", "cut", "window_learned", "window_disproved"),
        *("called", "paused", "restarted", "resumed", "concluded", "out_of_room"),
    )
)
"""Events added to the request's span: those whose fields are only figures and Spillway's own words."""
_ATTEMPT, _COMPACTION, _SUMMARY = "attempt", "compaction", "summary"
_ENDS = {
    **dict.fromkeys(("sent", "compacting", "refused", "paused"), _ATTEMPT),
    "compacted": _COMPACTION,
    **dict.fromkeys(("summarising", "summarised"), _SUMMARY),
}
_BEGINS = {"sent": _ATTEMPT, "compacting": _COMPACTION, "summarising": _SUMMARY}
_NAMES = {_COMPACTION: "compact", _SUMMARY: "summarise"}
_OUTCOME = {
    "http.response.status_code": "status",
    "gen_ai.conversation.id": "conversation",
    "spillway.tokens.before": "tokens_before",
    "spillway.tokens.after": "tokens_after",
    "spillway.tokens.repeated": "repeated",
    **{
        f"spillway.{name}": name
        for name in ("action", "window", "fill", "attempts", "compactions", "pauses", "resumes", "first_byte")
    },
}
"""Attributes of a request's span, and the fields of its outcome that they are read from."""
_USAGE = {
    "gen_ai.usage.input_tokens": ("prompt_tokens",),
    "gen_ai.usage.output_tokens": ("completion_tokens",),
    "gen_ai.usage.cache_read.input_tokens": ("prompt_tokens_details", "cached_tokens"),
    "gen_ai.usage.reasoning.output_tokens": ("completion_tokens_details", "reasoning_tokens"),
}
"""Attributes of a request's span, and their paths in the usage that a client gets."""


class Tracing(AddOn):
    """Makes spans of outcomes: the request's own at its start, all others at its end from its events."""

    def __init__(self, provider: TracerProvider, upstreams: Sequence[Upstream]) -> None:
        """Send spans to `provider`; `upstreams` is read later, so more may be added to it."""
        self._tracer = provider.get_tracer("spillway", __version__, _SCHEMA)
        self._upstreams = upstreams
        self._roots: dict[Outcome, Span] = {}

    @override
    def started(self, outcome: Outcome, headers: Headers) -> None:
        """Open the span of a request, below the client's own if its headers name one."""
        parent = _W3C.extract({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
        root = self._roots[outcome] = self._tracer.start_span(_operation(outcome), parent, SpanKind.SERVER)
        outcome.traced = partial(_traced_headers, root)

    @override
    def ended(self, outcome: Outcome) -> None:
        """End the span of a request, or of a compaction ahead of one, with its child spans."""
        epoch = time.time_ns() - round(outcome.clock() * 1e9)
        if outcome.cause is not None and any(outcome.each("compacting")):
            since = epoch + round(outcome.since * 1e9)
            self._roots[outcome] = self._tracer.start_span("compact ahead", start_time=since)
        root = self._roots.pop(outcome, None)
        if root is None:  # it was rejected
            return
        if root.is_recording():
            backend = self._backend_attributes(outcome)
            root.set_attributes({"spillway.request.id": outcome.id, **backend})
            _Timeline(self._tracer, root, epoch, backend, _name(outcome)).add(outcome.events)
            if outcome.cause is None:
                root.update_name(_name(outcome))
                _set_outcome(root, outcome)
        root.end()

    def _backend_attributes(self, outcome: Outcome) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {"spillway.backend": outcome.backend}
        upstream = next((each for each in self._upstreams if each.key == outcome.key[0]), None)
        if outcome.dialect or outcome.cause is not None:
            attributes |= {"gen_ai.operation.name": "chat", "spillway.dialect": outcome.dialect}
            kind = "unknown" if upstream is None else upstream.prober.known_backend.kind
            # The conventions require a provider; a backend of unknown kind is named after its interface.
            attributes["gen_ai.provider.name"] = "openai" if kind in ("unknown", "generic") else kind
        if outcome.model:
            attributes["gen_ai.request.model"] = _text(outcome.model)
        if upstream is not None:
            attributes["server.address"], attributes["server.port"] = upstream.place
        return attributes


@dataclass(slots=True)
class _Timeline:
    """Makes the child spans of a request from its events."""

    tracer: Tracer
    root: Span
    epoch: int
    """Zero of the events' clock, in nanoseconds since the epoch."""
    backend: Mapping[str, AttributeValue]
    """Attributes of the backend, added to each attempt."""
    name: str
    running: dict[str, Span] = field(default_factory=dict)
    sent_at: float = 0.0

    def add(self, events: Sequence[Event]) -> None:
        """Add all spans and notes."""
        for event in events:
            at = self.epoch + round(event.at * 1e9)
            if (span := self.running.pop(_ENDS.get(event.name, ""), None)) is not None:
                _end(span, event, at)
            if (part := _BEGINS.get(event.name)) is not None:
                self._begin(part, event, at)
            elif event.name in _NOTED:
                self.root.add_event(event.name, _prefixed("spillway", event), at)
            elif event.name == "first_byte" and (span := self.running.get(_ATTEMPT)) is not None:
                span.set_attribute("gen_ai.response.time_to_first_chunk", event.at - self.sent_at)
            elif event.name == "backend_failed" and self.running:
                _set_error(self.running.get(_SUMMARY) or next(reversed(self.running.values())), event.fields["error"])
            elif event.name == "recalled":
                since, above = at - round(event.fields["seconds"] * 1e9), set_span_in_context(self.root)
                attributes = _prefixed("spillway.recall", event)
                self.tracer.start_span("recall", above, attributes=attributes, start_time=since).end(at)
            elif event.name == "compacted_ahead":
                self.root.set_attributes(_prefixed("spillway.ahead", event))
        for span in reversed(self.running.values()):
            span.end()

    def _begin(self, part: str, event: Event, at: int) -> None:
        attributes, kind = _prefixed(f"spillway.{part}", event), SpanKind.INTERNAL
        if part == _ATTEMPT:
            self.sent_at, kind = event.at, SpanKind.CLIENT
            attributes |= {**self.backend, "gen_ai.request.stream": event.fields["stream"]}
        above = set_span_in_context(self.running.get(_COMPACTION, self.root))
        name = _NAMES.get(part, self.name)
        self.running[part] = self.tracer.start_span(name, above, kind, attributes, start_time=at)


def _end(span: Span, event: Event, at: int) -> None:
    part = _ENDS[event.name]
    if part != _ATTEMPT:
        span.set_attributes(_prefixed(f"spillway.{part}", event))
    elif "what" in event.fields:
        _set_error(span, event.fields["what"])
    span.end(at)


class Exporting(TracerProvider):
    """Exports spans as configured by OpenTelemetry's standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT` and others)."""

    def __init__(self) -> None:
        resource = Resource.create({"service.name": "spillway", "service.version": __version__})
        super().__init__(resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter()
        self.add_span_processor(BatchSpanProcessor(self._exporter))

    @override
    def shutdown(self) -> None:
        """Send the spans that are still waiting, within `SHUTDOWN_TIMEOUT`."""
        end = threading.Timer(SHUTDOWN_TIMEOUT, self._exporter.shutdown)
        end.start()
        super().shutdown()
        end.cancel()


def _traced_headers(root: Span, headers: Headers) -> Headers:
    """Return the headers of a request to a backend, with the span of the client's request as parent (W3C Trace Context)."""
    context: dict[str, str] = {}
    _W3C.inject(context, set_span_in_context(root))
    others = [header for header in headers if header[0].decode("latin-1") not in _TRACE_HEADERS]
    return [*others, *((name.encode(), value.encode("latin-1")) for name, value in context.items())]


def _operation(outcome: Outcome) -> str:
    return "chat" if outcome.dialect or outcome.cause is not None else "pass on"


def _name(outcome: Outcome) -> str:
    return f"{_operation(outcome)} {_text(outcome.model)}".strip()


def _prefixed(prefix: str, event: Event) -> dict[str, AttributeValue]:
    """Return the fields of an event that have a value as attributes."""
    return {f"{prefix}.{name}": value for name, value in event.fields.items() if value is not None}


def _set_outcome(root: Span, outcome: Outcome) -> None:
    figures = outcome.figures()
    values = {name: figures[field] for name, field in _OUTCOME.items()}
    for name, path in _USAGE.items():
        count = dig(outcome.usage, *path)
        values[name] = None if count is None else as_count(count)
    root.set_attributes({name: value for name, value in values.items() if value not in (None, "")})
    if outcome.error is not None and outcome.status != CLIENT_DISCONNECTED:
        root.set_attribute("error.type", _text(outcome.error))
        if not 400 <= outcome.status < 500:  # 4xx are the client's errors: a server span's status stays unset
            root.set_status(StatusCode.ERROR)


def _set_error(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)


def _text(name: str) -> str:
    """Return a client's name for something in a form that can be encoded: half of a surrogate pair cannot."""
    return name.encode(errors="replace").decode()

"""Traces for OpenTelemetry, made of outcomes: a span for each request, below it its attempts, compactions, summaries and recalls.

Names of attributes are those of the semantic conventions for generative AI, of version 1.41.0 (the last one before they got a
repository of their own); what these have no name for begins with `spillway.`. Names and figures, never prompts or keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from typing_extensions import override

from proxy import __version__
from proxy.addon import AddOn
from proxy.core.headers import Headers
from proxy.core.piece import whole_number
from proxy.telemetry.events import Event
from proxy.telemetry.outcome import CLIENT_DISCONNECTED, Outcome

PATIENCE = 2.0
SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
_W3C = TraceContextTextMapPropagator()
_TRACE_HEADERS = ("traceparent", "tracestate")
_ROOT_EVENTS = (
    *("mended", "stabilised", "message_cut", "searched", "refused", "cut", "window_learned", "window_disproved"),
    *("called", "paused", "resumed", "out_of_room", "handed_over"),
)
"""Events of the request's span; their fields are figures and words of Spillway's own."""
_USED = {
    "gen_ai.usage.input_tokens": ("prompt_tokens",),
    "gen_ai.usage.output_tokens": ("completion_tokens",),
    "gen_ai.usage.cache_read.input_tokens": ("prompt_tokens_details", "cached_tokens"),
    "gen_ai.usage.reasoning.output_tokens": ("completion_tokens_details", "reasoning_tokens"),
}
"""Where figures stand in the usage that a client is told."""
_ATTEMPT, _COMPACTION, _SUMMARY = "attempt", "compaction", "summary"


class Destination(Protocol):
    """Kind and address of a backend."""

    @property
    def kind(self) -> str:
        """Empty: not known yet."""

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""


@dataclass(slots=True)
class _Traced:
    """A running request's spans."""

    root: Span
    operation: str = ""
    open: dict[str, Span] = field(default_factory=dict)
    """Spans below the root that have not ended, the innermost last."""
    sent_at: float = 0.0
    streams: bool = False

    def end(self, part: str, error: str = "", **attributes: AttributeValue) -> None:
        """End a span, if it is open."""
        if (span := self.open.pop(part, None)) is not None:
            span.set_attributes({f"spillway.{part}.{name}": value for name, value in attributes.items()})
            if error:
                _set_error(span, error)
            span.end()


class Tracing(AddOn):
    """Makes spans of outcomes."""

    def __init__(self, provider: TracerProvider, backends: Mapping[str, Destination]) -> None:
        """`provider` gets the spans; `backends` by their names."""
        self._tracer = provider.get_tracer("spillway", __version__, SCHEMA)
        self._backends = backends
        self._traced: dict[Outcome, _Traced] = {}
        self._readers: dict[str, Callable[[Outcome, _Traced, Event], None]] = {
            "routed": self._routed,
            "sent": self._sent,
            "first_byte": self._first_byte,
            "backend_failed": self._backend_failed,
            "compacting": self._compacting,
            "compacted": self._compacted,
            "summarising": self._summarising,
            "summarised": self._summarised,
            "recalled": self._recalled,
            "compacted_ahead": self._compacted_ahead,
            **dict.fromkeys(_ROOT_EVENTS, self._noted),
        }

    @override
    def begun(self, outcome: Outcome) -> None:
        """Open the span of a request, below the client's own."""
        operation = "chat" if outcome.dialect else ""
        attributes: dict[str, AttributeValue] = {"spillway.request.id": outcome.id}
        if operation:
            attributes |= {"gen_ai.operation.name": operation, "spillway.dialect": outcome.dialect}
        parent = dict(zip(_TRACE_HEADERS, outcome.trace, strict=True)) if outcome.trace else {}
        root = self._tracer.start_span(
            operation or "pass on", _W3C.extract(parent), SpanKind.SERVER, attributes=attributes
        )
        self._open(outcome, root, operation)

    def _open(self, outcome: Outcome, root: Span, operation: str) -> _Traced:
        traced = self._traced[outcome] = _Traced(root, operation)
        outcome.carrier = partial(_carried, traced)
        return traced

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        """Open and end the spans below the request's."""
        traced = self._traced.get(outcome)
        if traced is None:
            if event.name != "compacting" or outcome.cause is None:
                return
            root = self._tracer.start_span("compact ahead", attributes={"spillway.request.id": outcome.id})
            traced = self._open(outcome, root, "chat")
            root.set_attributes(self._of_backend(outcome, "chat"))
        if (read := self._readers.get(event.name)) is not None:
            read(outcome, traced, event)

    @override
    def ended(self, outcome: Outcome) -> None:
        """End the span of a request with all that is known of it."""
        traced = self._traced.pop(outcome, None)
        if traced is None:  # it was not let in
            return
        for part in reversed(tuple(traced.open)):
            traced.end(part)
        root = traced.root
        if root.is_recording() and outcome.cause is None:
            root.set_attributes(_outcome_of(outcome))
            if outcome.error is not None and outcome.status != CLIENT_DISCONNECTED:
                root.set_attribute("error.type", _text(outcome.error))
                if not 400 <= outcome.status < 500:  # those are the client's errors, not the server's
                    root.set_status(Status(StatusCode.ERROR))
        root.end()

    def _start(self, traced: _Traced, part: str, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        traced.end(part)
        above = traced.open.get(_COMPACTION, traced.root)
        span = traced.open[part] = self._tracer.start_span(name, set_span_in_context(above), kind)
        return span

    def _routed(self, outcome: Outcome, traced: _Traced, _: Event) -> None:
        traced.root.update_name(_name(outcome, traced))
        traced.root.set_attributes(self._of_backend(outcome, traced.operation))

    def _sent(self, outcome: Outcome, traced: _Traced, event: Event) -> None:
        traced.sent_at, traced.streams = event.at, event.fields["stream"]
        span = self._start(traced, _ATTEMPT, _name(outcome, traced), SpanKind.CLIENT)
        if span.is_recording():
            host, port = self._backends[outcome.backend].place
            span.set_attributes(
                self._of_backend(outcome, traced.operation)
                | {"spillway.attempt.why": event.fields["why"], "server.address": host, "server.port": port}
            )
            if traced.streams:
                span.set_attribute("gen_ai.request.stream", value=True)

    def _first_byte(self, _: Outcome, traced: _Traced, event: Event) -> None:
        if traced.streams and (span := traced.open.get(_ATTEMPT)) is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", event.at - traced.sent_at)

    def _backend_failed(self, _: Outcome, traced: _Traced, event: Event) -> None:
        if (span := traced.open.get(_SUMMARY) or traced.open.get(_ATTEMPT)) is not None:
            _set_error(span, event.fields["error"])

    def _compacting(self, _: Outcome, traced: _Traced, __: Event) -> None:
        traced.end(_ATTEMPT)
        self._start(traced, _COMPACTION, "compact")

    def _compacted(self, _: Outcome, traced: _Traced, event: Event) -> None:
        traced.end(_COMPACTION, **{k: v for k, v in event.fields.items() if k not in {"rungs", "cut"}})

    def _summarising(self, _: Outcome, traced: _Traced, __: Event) -> None:
        self._start(traced, _SUMMARY, "summarise")

    def _summarised(self, _: Outcome, traced: _Traced, event: Event) -> None:
        traced.end(_SUMMARY, verdict=event.fields["verdict"])

    def _recalled(self, _: Outcome, traced: _Traced, event: Event) -> None:
        now = time.time_ns()
        attributes = {f"spillway.recall.{name}": event.fields[name] for name in ("passages", "tokens")}
        began = now - round(event.fields["seconds"] * 1e9)
        above = set_span_in_context(traced.root)
        self._tracer.start_span("recall", above, attributes=attributes, start_time=began).end(now)

    def _compacted_ahead(self, _: Outcome, traced: _Traced, event: Event) -> None:
        traced.root.set_attribute("spillway.ahead.became", event.fields["became"])

    def _noted(self, _: Outcome, traced: _Traced, event: Event) -> None:
        if event.name in {"refused", "paused"}:
            traced.end(_ATTEMPT, event.fields.get("what", ""))
        shown = {f"spillway.{name}": value for name, value in event.fields.items() if value is not None}
        traced.root.add_event(event.name, shown)

    def _of_backend(self, outcome: Outcome, operation: str) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {"spillway.backend": outcome.backend}
        if operation:
            kind = self._backends[outcome.backend].kind
            attributes["gen_ai.operation.name"] = operation
            # A backend of an unknown kind is named by its interface.
            attributes["gen_ai.provider.name"] = "openai" if kind in {"", "generic"} else kind
        if outcome.model:
            attributes["gen_ai.request.model"] = _text(outcome.model)
        return attributes


def _carried(traced: _Traced, headers: Headers) -> Headers:
    """Headers of a request to a backend, with the innermost open span as its parent (W3C Trace Context)."""
    innermost = next(reversed(traced.open.values()), traced.root)
    context: dict[str, str] = {}
    _W3C.inject(context, set_span_in_context(innermost))
    others = [header for header in headers if header[0].decode("latin-1") not in _TRACE_HEADERS]
    return [*others, *((name.encode(), value.encode("latin-1")) for name, value in context.items())]


def _name(outcome: Outcome, traced: _Traced) -> str:
    return f"{traced.operation or 'pass on'} {_text(outcome.model)}".strip()


class Exporting(TracerProvider):
    """Sends spans where the variables that OpenTelemetry's specification names say (`OTEL_EXPORTER_OTLP_ENDPOINT` and its like)."""

    def __init__(self) -> None:
        resource = Resource.create({"service.name": "spillway", "service.version": __version__})
        super().__init__(resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter()
        self.add_span_processor(BatchSpanProcessor(self._exporter))

    @override
    def shutdown(self) -> None:
        """Send what waits. A collector that is gone is tried for `PATIENCE` seconds; the exporter's own patience is 10 and more."""
        end = threading.Timer(PATIENCE, self._exporter.shutdown)
        end.start()
        super().shutdown()
        end.cancel()


def _outcome_of(outcome: Outcome) -> dict[str, AttributeValue]:
    """Return a request's attributes at its end."""
    attributes: dict[str, AttributeValue | None] = {
        "http.response.status_code": outcome.status,
        "spillway.action": outcome.action,
        "spillway.window": outcome.window,
        "spillway.fill": outcome.fill,
        "spillway.tokens.before": outcome.tokens_before,
        "spillway.tokens.after": outcome.tokens_after,
        "spillway.tokens.repeated": outcome.repeated,
        "spillway.attempts": outcome.attempts,
        "spillway.compactions": outcome.compactions,
        "spillway.pauses": outcome.pauses,
        "spillway.resumes": outcome.resumes,
        "spillway.first_byte": outcome.first_byte,
        "gen_ai.conversation.id": outcome.conversation or None,
    }
    for name, path in _USED.items():
        value: object = outcome.usage
        for step in path:
            value = value.get(step) if isinstance(value, Mapping) else None
        attributes[name] = None if value is None else whole_number(value)
    return {name: value for name, value in attributes.items() if value is not None}


def _set_error(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def _text(name: str) -> str:
    """A name that a client gave: half of a surrogate pair can't be written."""
    return name.encode(errors="replace").decode()

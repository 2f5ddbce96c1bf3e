"""Traces for OpenTelemetry, made of what requests tell: one span each, below it its attempts, compactions, summaries and recalls.

Names of attributes are those of the semantic conventions for generative AI, of version 1.41.0 (the last one before they got a
repository of their own); what these have no name for begins with `spillway.`. Names and figures, never prompts or keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from typing_extensions import override

from proxy import __version__
from proxy.neutral.piece import whole_number
from proxy.telemetry import events as e
from proxy.telemetry.journal import Listener
from proxy.telemetry.outcome import CLIENT_LEFT, Outcome, Reduced
from proxy.wire.headers import Headers

PATIENCE = 2.0
SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
_W3C = TraceContextTextMapPropagator()
_OF_TRACES = (b"traceparent", b"tracestate")
_NOTED = (
    *(e.Mended, e.Stabilised, e.MessageCut, e.Searched, e.Refused, e.Cut, e.WindowLearned, e.WindowDisproved),
    *(e.Called, e.Paused, e.Resumed, e.OutOfRoom, e.HandedOver),
)
"""What is an event of the request's span; their fields are figures and words of Spillway's own."""
_USED = {
    "gen_ai.usage.input_tokens": ("prompt_tokens",),
    "gen_ai.usage.output_tokens": ("completion_tokens",),
    "gen_ai.usage.cache_read.input_tokens": ("prompt_tokens_details", "cached_tokens"),
    "gen_ai.usage.reasoning.output_tokens": ("completion_tokens_details", "reasoning_tokens"),
}
"""Where figures stand in the usage that a client is told."""
_ATTEMPT, _COMPACTION, _SUMMARY = "attempt", "compaction", "summary"


class Destination(Protocol):
    """What is told of a backend."""

    @property
    def kind(self) -> str:
        """Empty: not known yet."""

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""


@dataclass(slots=True)
class _Traced:
    """A request that runs. Its outcome is kept, so that no other one gets its identity."""

    outcome: Outcome
    root: Span
    operation: str = ""
    parts: dict[str, Span] = field(default_factory=dict)
    """What of it is going on, the innermost last."""
    asked: float = 0.0
    """When the newest attempt was sent, and whether it is to be streamed."""
    streams: bool = False

    @property
    def named(self) -> str:
        return f"{self.operation or 'pass on'} {_text(self.outcome.model)}".strip()

    def end(self, part: str, error: str = "") -> None:
        """End a part, if it is going on."""
        if (span := self.parts.pop(part, None)) is not None:
            if error:
                _failed(span, error)
            span.end()


class Tracing:
    """Makes spans of what is told."""

    def __init__(
        self, provider: TracerProvider, backends: Mapping[str, Destination], clock: Callable[[], float]
    ) -> None:
        """`provider` gets the spans; `backends` by their names; `clock` gives seconds that never go back."""
        self._clock = clock
        self._tracer = provider.get_tracer("spillway", __version__, SCHEMA)
        self._backends = backends
        self._traced: dict[int, _Traced] = {}
        """By the identity of their outcomes: clients may give two requests one id."""
        self.heard: Mapping[type, Listener] = {
            e.Received: self._received,
            e.Routed: self._routed,
            e.Compacting: self._compacting,
            e.Compacted: self._compacted,
            e.Summarising: self._summarising,
            e.Summarised: self._summarised,
            e.Recalled: self._recalled,
            e.Sent: self._sent,
            e.FirstByte: self._first_byte,
            e.BackendFailed: self._backend_failed,
            e.CompactedAhead: self._ahead,
            e.Finished: self._ended,
            e.Failed: self._ended,
            **dict.fromkeys(_NOTED, self._noted),
        }
        """What there are spans of, by type of event, and how they are made."""

    def carried(self, outcome: Outcome, headers: Headers) -> Headers:
        """The headers of what is sent to a backend for a request, with the innermost span as its parent (W3C Trace Context)."""
        traced = self._traced.get(id(outcome))
        if traced is None:
            return headers
        innermost = next(reversed(traced.parts.values()), traced.root)
        told: dict[str, str] = {}
        _W3C.inject(told, set_span_in_context(innermost))
        kept = [header for header in headers if header[0] not in _OF_TRACES]
        return [*kept, *((name.encode(), value.encode("latin-1")) for name, value in told.items())]

    # -- a request

    def _received(self, outcome: Outcome, event: e.Received) -> None:
        operation = "chat" if event.dialect else ""
        attributes: dict[str, AttributeValue] = {"spillway.request.id": outcome.id}
        if operation:
            attributes |= {"gen_ai.operation.name": operation, "spillway.dialect": event.dialect}
        came = dict(zip(("traceparent", "tracestate"), event.trace, strict=True)) if event.trace else {}
        root = self._tracer.start_span(
            operation or "pass on", _W3C.extract(came), SpanKind.SERVER, attributes=attributes
        )
        self._traced[id(outcome)] = _Traced(outcome, root, operation)

    def _routed(self, outcome: Outcome, _: e.Routed) -> None:
        if (traced := self._traced.get(id(outcome))) is not None:
            traced.root.update_name(traced.named)
            traced.root.set_attributes(self._of_backend(traced))

    def _noted(self, outcome: Outcome, event: e.Event) -> None:
        if (traced := self._traced.get(id(outcome))) is None:
            return
        if isinstance(event, e.Refused):
            traced.end(_ATTEMPT, event.what)
        elif isinstance(event, e.Paused):
            traced.end(_ATTEMPT)
        fields = ((name, getattr(event, name)) for name in type(event).__slots__)
        traced.root.add_event(
            type(event).__name__, {f"spillway.{name}": value for name, value in fields if value is not None}
        )

    def _ended(self, outcome: Outcome, _: e.Finished | e.Failed) -> None:
        traced = self._traced.pop(id(outcome), None)
        if traced is None:  # it was not let in
            return
        root = traced.root
        for part in reversed(tuple(traced.parts)):
            traced.end(part)
        if root.is_recording():
            root.set_attributes(_outcome_of(outcome))
            if outcome.error is not None and outcome.status != CLIENT_LEFT:
                root.set_attribute("error.type", _text(outcome.error))
                if (
                    outcome.status >= 500 or outcome.status < 400
                ):  # of what the client did wrong the server is not to blame
                    root.set_status(Status(StatusCode.ERROR))
        root.end()

    # -- what becomes of it

    def _begin(
        self, outcome: Outcome, part: str, name: str, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span | None:
        traced = self._traced.get(id(outcome))
        if traced is None:
            return None
        traced.end(part)
        above = traced.parts.get(_COMPACTION, traced.root)
        span = self._tracer.start_span(name, set_span_in_context(above), kind)
        traced.parts[part] = span
        return span

    def _end(self, outcome: Outcome, part: str, **attributes: AttributeValue) -> None:
        traced = self._traced.get(id(outcome))
        if traced is not None and (span := traced.parts.get(part)) is not None:
            span.set_attributes({f"spillway.{part}.{name}": value for name, value in attributes.items()})
            traced.end(part)

    def _sent(self, outcome: Outcome, event: e.Sent) -> None:
        traced = self._traced.get(id(outcome))
        if traced is None:
            return
        traced.asked, traced.streams = self._clock(), event.stream
        span = self._begin(outcome, _ATTEMPT, traced.named, SpanKind.CLIENT)
        if span is not None and span.is_recording():
            span.set_attributes(self._of_backend(traced) | {"spillway.attempt.why": event.why})
            host, port = self._backends[outcome.backend].place
            span.set_attributes({"server.address": host, "server.port": port})
            if event.stream:
                span.set_attribute("gen_ai.request.stream", value=True)

    def _first_byte(self, outcome: Outcome, _: e.FirstByte) -> None:
        traced = self._traced.get(id(outcome))
        if traced is not None and traced.streams and (span := traced.parts.get(_ATTEMPT)) is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", self._clock() - traced.asked)

    def _backend_failed(self, outcome: Outcome, event: e.BackendFailed) -> None:
        traced = self._traced.get(id(outcome))
        if traced is not None:
            failed = traced.parts.get(_SUMMARY) or traced.parts.get(_ATTEMPT)
            if failed is not None:
                _failed(failed, event.error)

    def _compacting(self, outcome: Outcome, _: e.Compacting) -> None:
        if (traced := self._traced.get(id(outcome))) is None:  # what is done in the background is no request
            root = self._tracer.start_span("compact ahead", attributes={"spillway.request.id": outcome.id})
            traced = self._traced[id(outcome)] = _Traced(outcome, root, "chat")
            root.set_attributes(self._of_backend(traced))
        traced.end(_ATTEMPT)
        self._begin(outcome, _COMPACTION, "compact")

    def _compacted(self, outcome: Outcome, event: e.Compacted) -> None:
        self._end(outcome, _COMPACTION, **asdict(Reduced.of(event)), by=event.summary)

    def _summarising(self, outcome: Outcome, _: e.Summarising) -> None:
        self._begin(outcome, _SUMMARY, "summarise")

    def _summarised(self, outcome: Outcome, event: e.Summarised) -> None:
        self._end(outcome, _SUMMARY, verdict=event.verdict)

    def _recalled(self, outcome: Outcome, event: e.Recalled) -> None:
        traced = self._traced.get(id(outcome))
        if traced is None:
            return
        now = time.time_ns()
        span = self._tracer.start_span(
            "recall",
            set_span_in_context(traced.root),
            attributes={"spillway.recall.passages": event.passages, "spillway.recall.tokens": event.tokens},
            start_time=now - round(event.seconds * 1e9),
        )
        span.end(now)

    def _ahead(self, outcome: Outcome, event: e.CompactedAhead) -> None:
        traced = self._traced.pop(id(outcome), None)
        if traced is not None:
            for part in reversed(tuple(traced.parts)):
                traced.end(part)
            traced.root.set_attribute("spillway.ahead.became", event.became)
            traced.root.end()

    def _of_backend(self, traced: _Traced) -> dict[str, AttributeValue]:
        outcome = traced.outcome
        told: dict[str, AttributeValue] = {"spillway.backend": outcome.backend}
        if traced.operation:
            kind = self._backends[outcome.backend].kind
            told["gen_ai.operation.name"] = traced.operation
            # Who can't be told apart is named by the interface that it has.
            told["gen_ai.provider.name"] = "openai" if kind in {"", "generic"} else kind
        if outcome.model:
            told["gen_ai.request.model"] = _text(outcome.model)
        return told


class Exporting(TracerProvider):
    """Sends spans where the variables that OpenTelemetry's specification names say (`OTEL_EXPORTER_OTLP_ENDPOINT` and its like)."""

    def __init__(self) -> None:
        own = Resource.create({"service.name": "spillway", "service.version": __version__})
        super().__init__(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
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
    """What is known of a request at its end."""
    told: dict[str, AttributeValue | None] = {
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
        told[name] = None if value is None else whole_number(value)
    return {name: value for name, value in told.items() if value is not None}


def _failed(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def _text(name: str) -> str:
    """A name that a client gave: half of a surrogate pair can't be written."""
    return name.encode(errors="replace").decode()

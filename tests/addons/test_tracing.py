"""Traces of requests: through the real HTTP stack, into OpenTelemetry's own exporter that keeps them in memory."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from proxy.config import wants_traces
from proxy.core.settings import BackendSetting
from tests.fakes import FakeBackend, FakeModel, GenericFake, LlamaCppFake, scripted, walk
from tests.fakes.server import BackgroundServer
from tests.fakes.waiting import wait_until
from tests.pipeline.talk import MODEL, Talk, wait_ahead
from tests.pipeline.test_ahead import ON
from tests.pipeline.test_ahead import brain as talking
from tests.pipeline.test_recalling import ASK, WINDOW, brain, long_chat
from tests.proxying import Proxy, metric, running_proxy

CLIENTS_TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENTS_SPAN = "b7ad6b7169203331"
PARENT = f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-01"
SECRET = "the password of the safe is swordfish"
ONE = {"model": "m", "messages": [{"role": "user", "content": SECRET}]}


@contextmanager
def traced(fake: FakeBackend, sampler: Any = None, **settings: Any) -> Iterator[tuple[Proxy, InMemorySpanExporter]]:
    provider, kept = TracerProvider(sampler, shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with fake, running_proxy(fake, spans=provider, **settings) as proxy:
        yield proxy, kept


def parent_of(span: ReadableSpan) -> str:
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def by_kind(kept: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    wait_until(lambda: any(span.kind is SpanKind.SERVER for span in kept.get_finished_spans()))
    return [span for span in kept.get_finished_spans() if span.kind is kind]


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_is_one_span_with_its_attempt_below_it() -> None:
    fake = LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"]))
    with traced(fake) as (proxy, kept):
        answer = proxy.chat(ONE)
        (root,), (attempt,) = by_kind(kept, SpanKind.SERVER), by_kind(kept, SpanKind.CLIENT)
        assert (root.name, attempt.name) == ("chat m", "chat m")
        assert parent_of(attempt) == id_of(root)
        assert parent_of(root) == ""
        usage, seen = answer.json()["usage"], told(root)
        assert (seen["gen_ai.operation.name"], seen["gen_ai.request.model"]) == ("chat", "m")
        assert seen["gen_ai.provider.name"] == "llamacpp"
        assert seen["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert seen["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
        assert seen["http.response.status_code"] == 200
        assert seen["spillway.request.id"] == answer.headers["x-request-id"]
        assert seen["spillway.window"] == 4096
        assert 0 < seen["spillway.fill"] < 0.1
        assert told(attempt)["server.address"] == "127.0.0.1"
        assert told(attempt)["server.port"] == int(fake.url.rsplit(":")[-1])
        assert root.status.status_code is StatusCode.UNSET


def test_a_backend_that_was_found_later_is_traced_and_near_as_well() -> None:
    first, later = LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"])), GenericFake([FakeModel("n", 4096)])
    with later, traced(first) as (proxy, kept):
        proxy.app.state.add_found([BackendSetting(url=later.url, name="later", kind="generic")])
        assert proxy.chat({**ONE, "model": "n", "max_tokens": 5}).status_code == 200
        (root,) = by_kind(kept, SpanKind.SERVER)
        assert told(root)["server.port"] == int(later.url.rpartition(":")[2])
        assert all(each.near for each in proxy.app.state.add_found.args[0].upstreams)


def test_the_clients_trace_is_continued_and_goes_on_to_the_backend() -> None:
    fake = LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"]))
    with traced(fake) as (proxy, kept):
        proxy.chat(ONE, traceparent=PARENT, tracestate="vendor=1")
        (root,), (attempt,) = by_kind(kept, SpanKind.SERVER), by_kind(kept, SpanKind.CLIENT)
        assert parent_of(root) == CLIENTS_SPAN
        (chat,) = fake.chats()
        assert parent_of(attempt) == id_of(root)
        assert chat.header("traceparent") == f"00-{CLIENTS_TRACE}-{id_of(root)}-01"
        assert chat.header("tracestate") == "vendor=1"
        assert [name for name, _ in chat.headers].count("traceparent") == 1


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/api/chat", "/v1/other"])
def test_every_dialect_is_traced(path: str) -> None:
    fake = LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"]))
    said = {"/v1/responses": {"input": "hi"}}
    body = {"model": "m", "stream": False, **said.get(path, {"messages": ONE["messages"], "max_tokens": 9})}
    with traced(fake) as (proxy, kept):
        proxy.client.post(path, json=body, headers={"traceparent": PARENT})
        (root,), (attempt,) = by_kind(kept, SpanKind.SERVER), by_kind(kept, SpanKind.CLIENT)
        operation = {"/v1/other": None}.get(path, "chat")
        assert told(root).get("gen_ai.operation.name") == operation
        assert root.name == f"{operation or 'pass on'} m"
        assert parent_of(attempt) == id_of(root)
        assert f"00-{CLIENTS_TRACE}-{id_of(root)}-01" in {each.header("traceparent") for each in fake.requests}


def test_compaction_summary_and_recall_are_spans_of_their_own() -> None:
    fake = LlamaCppFake([FakeModel("m", WINDOW)], brain)
    with traced(fake) as (proxy, kept):
        answer = proxy.chat({"model": "m", "messages": long_chat(), "max_tokens": 40})
        assert answer.headers["x-spillway-action"] == "compacted"
        (root,), (attempt,) = by_kind(kept, SpanKind.SERVER), by_kind(kept, SpanKind.CLIENT)
        found = {span.name: span for span in kept.get_finished_spans()}
        compaction, recall = found["compact"], found["recall"]
        summaries = [span for span in kept.get_finished_spans() if span.name == "summarise"]
        assert {parent_of(compaction), parent_of(recall), parent_of(attempt)} == {id_of(root)}
        assert {parent_of(summary) for summary in summaries} == {id_of(compaction)}
        seen = told(compaction)
        (came_to,) = answer.json()["usage"]["spillway"]["compactions"]
        assert came_to["kind"] == "compacted"
        assert json.loads(json.dumps({name: seen[f"spillway.compaction.{name}"] for name in came_to})) == came_to
        counted = metric(proxy, "spillway_summaries_total")
        verdicts = {label.split('"')[-2]: number for label, number in counted.items()}
        assert Counter(told(summary)["spillway.summary.verdict"] for summary in summaries) == verdicts
        assert told(recall)["spillway.recall.passages"] == int(answer.headers["x-spillway-recalled"])
        starts = [span.start_time or 0 for span in (root, compaction, *summaries, recall, attempt)]
        assert starts == sorted(starts)
        sent = {str(request.header("traceparent"))[:-3] for request in fake.chats()}
        assert sent == {f"00-{root.context.trace_id:032x}-{id_of(root)}"}


def test_a_paused_answer_shows_each_of_its_attempts() -> None:
    fake = LlamaCppFake([FakeModel("m", 600)], walk(last=900))
    with traced(fake) as (proxy, kept):
        proxy.chat({**ONE, "messages": [{"role": "user", "content": "walk"}], "stream": True})
        (root,), attempts = by_kind(kept, SpanKind.SERVER), by_kind(kept, SpanKind.CLIENT)
        assert told(root)["spillway.pauses"] >= 1
        assert len(attempts) == told(root)["spillway.attempts"] > 1
        assert {parent_of(attempt) for attempt in attempts} == {id_of(root)}
        assert told(attempts[0])["spillway.attempt.why"] == "first"
        named = Counter(event.name for event in root.events)
        assert named["paused"] == told(root)["spillway.pauses"]
        assert named["resumed"] == told(root)["spillway.resumes"]


def test_a_failure_is_told_where_it_happened() -> None:
    fake = LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"]))
    with traced(fake) as (proxy, kept):
        proxy.chat(ONE)
        fake.stop()
        kept.clear()
        assert proxy.chat(ONE).status_code == 502
        (root,), (attempt,) = by_kind(kept, SpanKind.SERVER), by_kind(kept, SpanKind.CLIENT)
        assert (told(root)["error.type"], root.status.status_code) == ("upstream_unavailable", StatusCode.ERROR)
        assert attempt.status.status_code is StatusCode.ERROR
        assert told(attempt)["error.type"]


def test_what_is_done_ahead_is_a_trace_of_its_own() -> None:
    fake = LlamaCppFake([MODEL], talking())
    with traced(fake, **ON) as (proxy, kept):
        Talk(proxy).ask()
        wait_ahead(proxy, done=1)
        (root,) = [span for span in kept.get_finished_spans() if span.name == "compact ahead"]
        assert told(root)["spillway.ahead.became"] == "done"
        assert parent_of(root) == ""
        below = [span.name for span in kept.get_finished_spans() if parent_of(span) == id_of(root)]
        assert below == ["compact", "compact"]  # by code, then with a summary


def test_no_prompt_no_answer_and_no_key_is_in_a_span() -> None:
    fake = LlamaCppFake([FakeModel("m", WINDOW)], brain)
    with traced(fake, api_keys=("sk-mine",)) as (proxy, kept):
        key = {"authorization": "Bearer sk-mine"}
        proxy.chat({"model": "m", "messages": long_chat(), "max_tokens": 40, "user": SECRET}, **key)
        proxy.chat({**ONE, "tools": [{"type": "function", "function": {"name": SECRET}}]}, **key)
        proxy.chat({**ONE, "messages": [*ONE["messages"], {"role": "tool", "tool_call_id": SECRET, "content": SECRET}]}, **key)
        by_kind(kept, SpanKind.SERVER)
        wait_until(lambda: len(by_kind(kept, SpanKind.SERVER)) == 3)
        everything = "".join(span.to_json() for span in kept.get_finished_spans())
        for word in ("swordfish", "Mathilda", "Pim", ASK, "sk-mine", "garden"):
            assert word not in everything
        assert '"mended"' in everything


def test_names_are_those_of_the_conventions() -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    with traced(LlamaCppFake([FakeModel("m", WINDOW)], brain)) as (proxy, kept):
        proxy.chat({"model": "m", "messages": long_chat(), "max_tokens": 40, "stream": True})
        by_kind(kept, SpanKind.SERVER)
        names = {name for span in kept.get_finished_spans() for name in told(span)}
    standard = {"server.address", "server.port", "error.type", "http.response.status_code"}
    known |= {"gen_ai.request.stream", "gen_ai.response.time_to_first_chunk"}  # 1.41.0; older packages lack them
    assert {name for name in names if not name.startswith("spillway.")} - standard <= known
    assert len(names & known) > 5


# Off unless the environment says where to


def test_without_it_the_clients_trace_goes_on_as_it_came() -> None:
    with LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"])) as fake, running_proxy(fake) as proxy:
        proxy.chat(ONE, traceparent=PARENT, tracestate="vendor=1")
        (chat,) = fake.chats()
        assert (chat.header("traceparent"), chat.header("tracestate")) == (PARENT, "vendor=1")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_environment_says_whether(said: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert wants_traces() is wanted


def test_traces_go_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[bytes] = []

    async def collector(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        assert scope["path"] == "/v1/traces"
        came.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = BackgroundServer(collector)
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=here")
    try:
        with LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"])) as fake, running_proxy(fake) as proxy:
            proxy.chat(ONE)
        # What was not sent yet is sent when the proxy stops.
        resources = [each for body in came for each in ExportTraceServiceRequest.FromString(body).resource_spans]
    finally:
        server.stop()
    names = [span.name for each in resources for scope in each.scope_spans for span in scope.spans]
    assert sorted(names) == ["chat m", "chat m"]
    about = {attribute.key: attribute.value.string_value for attribute in resources[0].resource.attributes}
    assert (about["service.name"], about["deployment.environment.name"]) == ("spillway", "here")


def test_a_collector_that_is_gone_delays_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("proxy.addons.tracing.SHUTDOWN_TIMEOUT", 0.1)
    gone = threading.Event()

    def run() -> None:
        with LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"])) as fake, running_proxy(fake) as proxy:
            assert proxy.chat(ONE).status_code == 200
        gone.set()

    threading.Thread(target=run, daemon=True).start()
    assert gone.wait(15)


def test_without_the_extra_the_log_says_what_has_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.delitem(sys.modules, "proxy.addons.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with LlamaCppFake([FakeModel("m", 4096)], scripted(["hi"])) as fake, running_proxy(fake) as proxy:
        assert proxy.chat(ONE).status_code == 200
    assert "pip install 'spillway-proxy[otel]'" in caplog.text

"""Any JSON is survived: no 500, no traceback, and every stream has its dialect's end."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from proxy.core.jsontext import dumps
from proxy.stream.events import Stop, StreamEvent, UpstreamEnded
from proxy.stream.session import StreamSession
from tests.dialects.asking import PATHS, read
from tests.faults.hostile import CHUNKS, ERROR, REQUESTS, VALUES, WHOLE, places, replaced
from tests.proxying import Proxy, running_proxy
from tests.rawbackend import SSE, Call, RawBackend, raw_backend

NATIVE = "/v1/chat/completions"
SAID = [
    {"role": role, "content": f"{number} said on 2024-05-01: " + "some more words " * 60, "timestamp": number}
    for number in range(14)
    for role in ("user", "assistant")
]
paths = st.sampled_from(PATHS)
values = st.sampled_from(list(VALUES.values()))


@dataclass(eq=False)
class Said(logging.Handler):
    chunks: list[bytes] = field(default_factory=list)
    end: bytes = b"data: [DONE]\n\n"
    whole: bytes = b""
    status: int = 200
    tracebacks: list[logging.LogRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.chunks, self.whole, self.status = [dumps(chunk) for chunk in CHUNKS], dumps(WHOLE), 200
        self.tracebacks.clear()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.tracebacks += [record] if record.exc_info else []

    def answer(self, backend: RawBackend, call: Call) -> None:
        if not call.path.endswith("/chat/completions"):
            call.send(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        elif self.status == 200 and b'"stream":true' in call.body.replace(b" ", b""):
            call.send(SSE + b"".join(b"data: %b\n\n" % chunk for chunk in self.chunks) + self.end)
        else:
            head = b"HTTP/1.1 %d Said\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            call.send(head % (self.status, len(self.whole)) + self.whole)


@dataclass(frozen=True)
class Stage:
    proxy: Proxy
    said: Said

    def post(self, path: str, raw: bytes) -> httpx.Response:
        answer = self.proxy.client.post(path, content=raw, headers={"content-type": "application/json"})
        assert answer.status_code != 500, answer.text
        assert not self.said.tracebacks, self.said.tracebacks[0].exc_info
        return answer


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    said = Said()
    logging.getLogger().addHandler(said)
    try:
        models = {"m": {"window": 4096}}
        with raw_backend(said.answer) as backend, running_proxy(backend.setting, models=models, grace=0.0) as proxy:
            yield Stage(proxy, said)
    finally:
        logging.getLogger().removeHandler(said)


def asked(path: str, *, stream: bool, long: bool = False) -> dict[str, Any]:
    body = {**REQUESTS[path], "stream": stream}
    name = "input" if path == "/v1/responses" else "messages"
    return {**body, name: SAID * long + body[name]}


def ends_once(path: str, answer: httpx.Response) -> None:
    kind = answer.headers["content-type"]
    streamed = kind.startswith(("text/event-stream", "application/x-ndjson"))
    assert read(path, answer.content, stream=streamed).ends == 1


@given(paths, st.data(), values, st.booleans(), st.booleans())
def test_any_json_in_a_request(stage: Stage, path: str, data: st.DataObject, value: str, stream: bool, long: bool) -> None:
    stage.said.reset()
    body = asked(path, stream=stream, long=long)
    place = data.draw(st.sampled_from(list(places(body))))
    answer = stage.post(path, replaced(body, place, value))
    if answer.status_code == 200:
        ends_once(path, answer)


@given(paths, st.data(), values, st.booleans())
def test_any_json_in_a_stream(stage: Stage, path: str, data: st.DataObject, value: str, long: bool) -> None:
    stage.said.reset()
    number = data.draw(st.integers(0, len(CHUNKS) - 1))
    place = data.draw(st.sampled_from(list(places(CHUNKS[number]))))
    stage.said.chunks[number] = replaced(CHUNKS[number], place, value)
    answer = stage.post(path, dumps(asked(path, stream=True, long=long)))
    if path == NATIVE:  # its frames are passed on as they come
        assert answer.content.count(b"data: [DONE]\n\n") == 1
    else:
        ends_once(path, answer)


@given(paths, st.data(), values, st.booleans(), st.sampled_from([200, 400, 500]))
def test_any_json_in_a_whole_answer(
    stage: Stage, path: str, data: st.DataObject, value: str, stream: bool, status: int
) -> None:
    stage.said.reset()
    body = WHOLE if status == 200 else ERROR
    stage.said.whole = replaced(body, data.draw(st.sampled_from(list(places(body)))), value)
    stage.said.status = status
    answer = stage.proxy.client.post(path, json=asked(path, stream=stream and status != 200))
    assert not stage.said.tracebacks, stage.said.tracebacks[0].exc_info
    if status == 200 and path != NATIVE and answer.status_code == 200:
        ends_once(path, answer)


# -- what was met


@pytest.mark.parametrize("value", ["1e999", "1e308", "9" * 400])
@pytest.mark.parametrize("path", PATHS)
def test_a_time_that_is_none(stage: Stage, path: str, stream: bool, value: str) -> None:
    stage.said.reset()
    body = asked(path, stream=stream, long=True)
    name = "input" if path == "/v1/responses" else "messages"
    answer = stage.post(path, replaced(body, (name, 0, "timestamp"), value))
    assert answer.status_code == 200
    ends_once(path, answer)


@pytest.mark.parametrize("count", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("path", PATHS)
def test_usage_with_400_digits(stage: Stage, path: str, count: str) -> None:
    stage.said.reset()
    stage.said.whole = replaced(WHOLE, ("usage", count), "9" * 400)
    for _ in range(2):
        assert stage.post(path, dumps(asked(path, stream=False))).status_code == 200
    assert stage.proxy.client.get("/metrics").status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_mistake_of_ours_ends_an_open_stream(path: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.said.reset()
    handle = StreamSession.handle

    def mistaken(session: StreamSession, event: StreamEvent) -> tuple[bytes, Stop | None]:
        if isinstance(event, UpstreamEnded):
            raise ZeroDivisionError
        return handle(session, event)

    monkeypatch.setattr(StreamSession, "handle", mistaken)
    stage.said.chunks = stage.said.chunks[:3]  # no end, so that it comes with the end of the body
    monkeypatch.setattr(stage.said, "end", b"")
    answer = stage.proxy.client.post(path, json=asked(path, stream=True))
    seen = read(path, answer.content, stream=True)
    assert (seen.ends, seen.error) == (1, "Spillway failed on this request; its log says more.")
    assert [record.exc_info is not None for record in stage.said.tracebacks] == [True]

"""Whole bodies of backends as clients of other dialects are told of them: answers, errors, and what is neither."""

import json
import re
from typing import Any

import httpx
import pytest

from proxy.core.jsontext import dumps
from tests.proxying import Proxy, running_proxy
from tests.rawbackend import Call, RawBackend, answering, raw_backend

HELLO = [{"role": "user", "content": "hello"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "m", "max_tokens": 50, "messages": HELLO},
    "/v1/responses": {"model": "m", "input": HELLO},
    "/api/chat": {"model": "m", "messages": HELLO},
}
every = pytest.mark.parametrize("path", ASKED)
both = pytest.mark.parametrize("streamed", [True, False])
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]}


def asked(path: str, response: bytes, *, streamed: bool, **settings: Any) -> httpx.Response:
    def script(_: RawBackend, call: Call) -> None:
        call.send(response)

    with raw_backend(script) as backend, running_proxy(backend.setting, **settings) as proxy:
        return post(proxy, path, streamed=streamed)


def post(proxy: Proxy, path: str, *, streamed: bool) -> httpx.Response:
    return proxy.client.post(path, json={**ASKED[path], "stream": streamed})


def message_in(said: dict[str, Any]) -> str:
    error = said["error"]
    return str(error if isinstance(error, str) else error["message"])


@every
def test_an_answer_is_json_whatever_the_backend_calls_it(path: str) -> None:
    body = dumps(ANSWER)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    told = asked(path, head % len(body) + body, streamed=False)
    assert told.headers["content-type"] == "application/json"
    assert "Hi." in told.text


@every
@both
def test_an_error_that_came_as_an_answer_is_one_for_the_client(path: str, *, streamed: bool) -> None:
    told = asked(path, answering({"error": {"message": "slow down", "code": 429}}), streamed=streamed)
    assert (told.status_code, message_in(told.json())) == (429, "slow down")
    told = asked(path, answering({"error": "no more"}), streamed=streamed)
    assert (told.status_code, message_in(told.json())) == (502, "no more")


@every
@both
@pytest.mark.parametrize("body", [{"id": "x", "choices": []}, {"choices": {"a": 1}, "model": 7}, {}])
def test_what_is_no_answer_is_not_told_as_an_empty_one(path: str, body: dict[str, Any], *, streamed: bool) -> None:
    told = asked(path, answering(body), streamed=streamed)
    assert told.status_code == 502
    assert "no answer" in message_in(told.json())


@every
def test_a_refusal_after_the_stream_was_opened_is_told_in_it(path: str) -> None:
    def script(backend: RawBackend, call: Call) -> None:
        backend.gone.wait(10)
        call.send(answering({"error": "no more"}, "400 Bad"))

    with raw_backend(script) as backend, running_proxy(backend.setting, grace=0.05) as proxy:
        asked_for = {**ASKED[path], "stream": True}
        with proxy.client.stream("POST", path, json=asked_for) as response:
            assert response.status_code == 200
            backend.gone.set()
            said = b"".join(response.iter_bytes()).decode()
    last = [line.removeprefix("data: ") for line in said.splitlines() if "no more" in line][-1]
    told = json.loads(last)
    assert message_in(told.get("response", told)) == "no more"


@every
@both
def test_usage_that_the_backend_does_not_report_is_estimated(path: str, *, streamed: bool) -> None:
    """Clients count with it: none at all would be a prompt of no tokens, in which there is room for ever."""
    begun = {"id": "x", "created": 1, "model": "m"}
    chunks: list[dict[str, Any]] = [
        {**begun, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "One two three."}}]},
        {**begun, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    for mark in (b"data: [DONE]\n\n", b""):
        frames = b"".join(b"data: " + dumps(chunk) + b"\n\n" for chunk in chunks) + mark
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        told = asked(path, head + frames if streamed else answering(ANSWER), streamed=streamed)
        counts = [
            int(number)
            for name in ("input_tokens", "output_tokens", "prompt_eval_count", "eval_count")
            for number in re.findall(rf'"{name}":(\d+)', told.text.split("content_block_stop")[-1])
        ]
        assert len(counts) >= 2
        assert min(counts) > 0

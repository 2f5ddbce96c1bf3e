"""The demo's HTTP interface: llama-server's shapes, as far as Spillway reads them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from proxy.demo.app import create_demo
from proxy.demo.model import MODEL, WINDOW

pytestmark = pytest.mark.anyio

HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def demo() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_demo(pace=0))
    async with httpx.AsyncClient(transport=transport, base_url="http://demo") as client:
        yield client


async def frames(demo: httpx.AsyncClient, **more: Any) -> list[Any]:
    """The data of a streamed answer; the end mark as text."""
    answer = await demo.post("/v1/chat/completions", json={**HELLO, "stream": True, **more})
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [frame.removeprefix("data: ") for frame in answer.text.split("\n\n") if frame]
    return [json.loads(item) if item != "[DONE]" else item for item in data]


async def test_the_window_can_be_read_where_llama_server_shows_it(demo: httpx.AsyncClient) -> None:
    props = (await demo.get("/props")).json()
    models = (await demo.get("/v1/models")).json()
    slots = (await demo.get("/slots")).json()
    assert props["default_generation_settings"]["n_ctx"] == WINDOW
    assert props["total_slots"] == 1
    assert models["data"][0]["meta"]["n_ctx"] == WINDOW
    assert slots[0]["n_ctx"] == WINDOW


async def test_a_whole_answer(demo: httpx.AsyncClient) -> None:
    answer = (await demo.post("/v1/chat/completions", json=HELLO)).json()
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert "demo" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]


async def test_a_stream_says_the_same(demo: httpx.AsyncClient) -> None:
    whole = (await demo.post("/v1/chat/completions", json=HELLO)).json()["choices"][0]["message"]["content"]
    *chunks, end = await frames(demo)
    assert end == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "timings" in chunks[-1]
    assert not any("timings" in chunk or "usage" in chunk for chunk in chunks[:-1])


async def test_usage_comes_in_a_chunk_of_its_own_if_asked_for(demo: httpx.AsyncClient) -> None:
    *chunks, last, _ = await frames(demo, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(chunks) - 2
    count = await demo.post("/v1/chat/completions/input_tokens", json=HELLO)
    assert count.json() == {"input_tokens": last["usage"]["prompt_tokens"], "object": "response.input_tokens"}


async def test_a_continued_answer_repeats_the_beginning_only_when_not_streamed(demo: httpx.AsyncClient) -> None:
    begun = "This is Spillway's demo model, counting to 12.\n\n1, 2, 3"
    messages = [{"role": "user", "content": "count to 12"}, {"role": "assistant", "content": begun}]
    rest = ", 4, 5, 6, 7, 8, 9, 10, 11, 12.\n\nThat was all of it."
    whole = await demo.post("/v1/chat/completions", json={"messages": messages})
    *chunks, _ = await frames(demo, messages=messages)
    assert whole.json()["choices"][0]["message"]["content"] == begun + rest
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == rest


@pytest.mark.parametrize("stream", [True, False])
async def test_an_overflow_is_a_plain_400_in_both_forms(demo: httpx.AsyncClient, *, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 5000}], "stream": stream}
    answer = await demo.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "exceed_context_size_error"
    assert answer.json()["error"]["n_ctx"] == WINDOW


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
async def test_a_body_that_is_no_json_object_is_refused(demo: httpx.AsyncClient, content: bytes) -> None:
    answer = await demo.post("/v1/chat/completions", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/tags"), ("GET", "/v1/chat/completions"), ("POST", "/props")]
)
async def test_what_is_not_there_is_not_found(demo: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await demo.request(method, path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"

"""The built-in demo: what it says and how it goes on after a cut, what it refuses, and llama-server's shapes as Spillway reads them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction import summary as core_summary
from proxy.compaction.source import NOTHING
from proxy.compaction.verification import SummaryReply, checked
from proxy.core.history import marks
from proxy.demo import (
    LOST,
    MODEL,
    WINDOW,
    RequestRefused,
    create_demo,
    generate,
    prompt_tokens,
    reply,
    serve_on_loopback,
    tokens_of,
)

COUNT = reply([{"role": "user", "content": "count to 3000"}], used=10)
HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


def say(*turns: str, last_role: str = "user") -> str:
    """Reply to a conversation whose turns alternate; `last_role` says whose the last one is."""
    roles = ["user", "assistant"] if (len(turns) % 2 == 1) == (last_role == "user") else ["assistant", "user"]
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return reply(messages, used=409)


def test_a_short_answer_says_that_it_is_a_demo_what_it_heard_and_how_full_the_window_is() -> None:
    answer = say("Good morning, is anybody there?")
    assert "demo" in answer
    assert "not a language model" in answer
    assert '"Good morning, is anybody there?"' in answer
    assert "409 of my 4,096 tokens" in answer
    assert "9% full" in answer


@pytest.mark.parametrize("asked", ["count to 3000", "Please count slowly from 1 to 3,000!"])
def test_counting_names_every_number_once(asked: str) -> None:
    body = say(asked).split("\n\n")[1]
    assert body == ", ".join(map(str, range(1, 3001))) + "."


def test_a_long_answer_is_longer_than_the_window_but_not_by_much() -> None:
    assert WINDOW < len(tokens_of(COUNT)) < 1.6 * WINDOW


@given(st.data())
def test_a_partial_answer_is_continued_at_the_very_next_character(data: st.DataObject) -> None:
    request, whole = "count to 3000", COUNT
    cut = data.draw(st.integers(0, len(whole)))
    assert whole[:cut] + say(request, whole[:cut], last_role="assistant") == whole


@given(st.data())
def test_the_end_of_a_partial_answer_is_enough(data: st.DataObject) -> None:
    request, whole = "count to 3000", COUNT
    cut = data.draw(st.integers(600, len(whole)))
    kept = whole[cut - 500 : cut]
    rest = say(request, f"[shortened] {kept}", last_role="assistant")
    assert whole[:cut] + rest == whole


def test_a_partial_answer_is_found_behind_a_summary() -> None:
    messages = [
        {"role": "user", "content": "count to 3000"}, {"role": "assistant", "content": "[summary] the numbers up to 400"},
        {"role": "user", "content": marks.BRIDGE}, {"role": "assistant", "content": COUNT[:5000]},
    ]  # fmt: skip
    assert reply(messages, used=10) == COUNT[5000:]


@pytest.mark.parametrize("asked", ["continue", "Please go on.", "Continue exactly where it says '…, 17'"])
def test_a_user_can_ask_to_go_on(asked: str) -> None:
    assert say("count to 3000", COUNT[:700], asked) == COUNT[700:]


def test_a_text_it_never_said_is_not_continued() -> None:
    assert say("hello", "I have never said this. " * 40, last_role="assistant") == LOST


def test_a_summary_is_made_of_what_was_shown() -> None:
    ask = core_summary.instruction(tokens=200)
    answer = say("The launch code is 4711.", "Noted.", "Count to 3000", COUNT, ask)
    assert "The launch code is 4711." in answer
    assert "3000" in answer
    assert checked(SummaryReply(answer), NOTHING, tokens=200).text
    assert len(tokens_of(answer)) < 200


def test_a_fenced_transcript_is_summarised() -> None:
    transcript = "\n".join(f"USER: remark number {number}" for number in range(50))
    message = core_summary.fenced(transcript, tokens=200)
    answer = reply([message], used=10)
    assert "remark number 49" in answer
    assert "Sections:" not in answer
    assert checked(SummaryReply(answer), NOTHING, tokens=200).text
    assert len(tokens_of(answer)) < 250


def body(*contents: str, last_role: str = "user", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text} for text in contents]
    messages[-1]["role"] = last_role
    return {"messages": messages, **more}


def filled(tokens: int) -> dict[str, Any]:
    """A body whose prompt has exactly so many tokens."""
    return body("." * (tokens - prompt_tokens(body(""))))


def test_a_prompt_as_long_as_the_window_is_refused_with_the_numbers() -> None:
    with pytest.raises(RequestRefused) as refused:
        generate(filled(WINDOW))
    assert refused.value.status == 400
    assert "request (4096 tokens) exceeds the available context size (4096 tokens)" in str(refused.value)
    assert refused.value.fields == {"type": "exceed_context_size_error", "n_prompt_tokens": 4096, "n_ctx": 4096}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (filled(WINDOW - 1), 1),
        (body("hello", max_tokens=5), 5),
        (body("hello", max_tokens=5, max_completion_tokens=7), 7),
        (body("hello", max_tokens=0), 1),
        (body("count to 3000"), None),
    ],
    ids=["the window's last token", "a bound", "the newer one", "none", "the window"],
)
def test_an_answer_ends_at_its_bound_or_with_the_window_full(asked: dict[str, Any], expected: int | None) -> None:
    answer = generate(asked)
    assert answer.finish_reason == "length"
    assert len(answer.tokens) == (WINDOW - answer.prompt if expected is None else expected)


@given(st.integers(1, 400))
def test_an_answer_in_two_parts_is_the_answer_in_one(cut: int) -> None:
    request = body("count to 150")
    whole = "".join(generate(request).tokens)
    first = "".join(generate({**request, "max_tokens": cut}).tokens)
    partial = [*request["messages"], {"role": "assistant", "content": first}]
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    second = generate({"messages": partial, **flags})
    assert first + "".join(second.tokens) == whole


@pytest.fixture
async def demo() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_demo(pace=0))
    async with httpx.AsyncClient(transport=transport, base_url="http://demo") as client:
        yield client


async def frames(demo: httpx.AsyncClient, **more: Any) -> list[Any]:
    answer = await demo.post("/v1/chat/completions", json={**HELLO, "stream": True, **more})
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [frame.removeprefix("data: ") for frame in answer.text.split("\n\n") if frame]
    return [json.loads(item) if item != "[DONE]" else item for item in data]


@pytest.mark.anyio
async def test_the_window_can_be_read_where_llama_server_shows_it(demo: httpx.AsyncClient) -> None:
    props = (await demo.get("/props")).json()
    models = (await demo.get("/v1/models")).json()
    assert props["default_generation_settings"]["n_ctx"] == WINDOW
    assert props["total_slots"] == 1
    assert models["data"][0]["meta"]["n_ctx"] == WINDOW


@pytest.mark.anyio
async def test_a_whole_answer(demo: httpx.AsyncClient) -> None:
    answer = (await demo.post("/v1/chat/completions", json=HELLO)).json()
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert "demo" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_usage_comes_in_a_chunk_of_its_own_if_asked_for(demo: httpx.AsyncClient) -> None:
    *chunks, last, _ = await frames(demo, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(chunks) - 2
    count = await demo.post("/v1/chat/completions/input_tokens", json=HELLO)
    assert count.json() == {"input_tokens": last["usage"]["prompt_tokens"], "object": "response.input_tokens"}


@pytest.mark.anyio
async def test_an_overflow_is_a_plain_400_in_both_forms(demo: httpx.AsyncClient, *, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 5000}], "stream": stream}
    answer = await demo.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "exceed_context_size_error"
    assert answer.json()["error"]["n_ctx"] == WINDOW


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "content", "status", "kind"),
    [
        *(("POST", "/v1/chat/completions", each, 400, "invalid_request_error") for each in (b"{", b"[]", b"\xff")),
        *(("GET", path, None, 404, "not_found_error") for path in ("/api/tags", "/v1/chat/completions")),
        ("POST", "/props", None, 404, "not_found_error"),
    ],
)
async def test_what_is_no_json_object_or_not_there_is_refused(
    demo: httpx.AsyncClient, method: str, path: str, content: bytes | None, status: int, kind: str
) -> None:
    answer = await demo.request(method, path, content=content)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


@pytest.mark.anyio
async def test_it_serves_on_loopback_and_is_gone_afterwards() -> None:
    async with serve_on_loopback(create_demo(pace=0)) as url, httpx.AsyncClient() as client:
        assert url.startswith("http://127.0.0.1:")
        assert (await client.get(f"{url}/v1/models")).json()["data"][0]["id"] == MODEL
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/v1/models")


@pytest.mark.anyio
async def test_it_stops_soon_even_while_somebody_is_reading() -> None:
    body = {"messages": [{"role": "user", "content": "count to 3000"}], "stream": True}
    async with httpx.AsyncClient() as client:
        async with serve_on_loopback(create_demo(pace=30)) as url:
            request = client.build_request("POST", f"{url}/v1/chat/completions", json=body)
            answer = await client.send(request, stream=True)
            assert answer.status_code == 200
        await answer.aclose()

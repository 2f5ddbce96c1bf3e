"""What every fake does as an HTTP server."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.fakes import (
    HEADERS,
    FakeModel,
    Gate,
    GenericFake,
    LlamaCppFake,
    Question,
    Reply,
    await_until,
    scripted,
    wait_until,
    walk,
    words,
)
from tests.fakes.base import CHAT
from tests.fakes.reading import chunks, finishes, text
from tests.fakes.talking import ask, body, fetch, user


@pytest.fixture
def fake() -> Iterator[GenericFake]:
    with GenericFake(window=2000) as running:
        yield running


def test_it_listens_on_loopback_and_ends(fake: GenericFake) -> None:
    assert ask(fake, max_tokens=2).status_code == 200
    fake.stop()
    with pytest.raises(httpx.ConnectError):
        ask(fake)


def test_it_comes_back_on_the_same_port(fake: GenericFake) -> None:
    ask(fake, max_tokens=2)
    url = fake.url
    fake.stop()
    fake.start()
    assert fake.url == url
    assert ask(fake, max_tokens=2).status_code == 200
    assert len(fake.requests) == 2


def test_many_live_side_by_side() -> None:
    with GenericFake() as one, GenericFake() as other:
        ask(one, max_tokens=1)
        assert (one.served, other.served) == (1, 0)


@pytest.mark.anyio
async def test_it_serves_a_test_that_has_its_own_loop() -> None:
    with GenericFake(brain=walk(last=3)) as fake:
        async with httpx.AsyncClient(verify=False, base_url=fake.url) as client:
            response = await client.post(CHAT, json=body())
        await await_until(lambda: fake.active == 0)
    assert response.json()["choices"][0]["message"]["content"] == "w1 w2 w3"


def test_requests_are_recorded_as_they_came(fake: GenericFake) -> None:
    raw = b'{"model":"fake-model", "messages":[{"role":"user","content":"\\u00e4"}], "max_tokens":1}'
    fetch("POST", f"{fake.url}{CHAT}?a=1", content=raw, headers={"X-Twice": "yes"})
    recorded = fake.requests[0]
    assert (recorded.method, recorded.path, recorded.query, recorded.body) == ("POST", CHAT, "a=1", raw)
    assert recorded.header("x-twice") == "yes"
    assert ("content-length", str(len(raw))) in recorded.headers
    assert recorded.json["messages"][0]["content"] == "ä"


def test_responses_are_recorded_as_they_were_sent(fake: GenericFake) -> None:
    response = ask(fake, stream=True, max_tokens=20)
    assert fake.response_bytes == [response.content]
    assert fake.requests[0].sha256 == hashlib.sha256(response.content).hexdigest()
    assert fake.requests[0].ended == "complete"


def test_only_the_newest_requests_are_kept() -> None:
    with GenericFake(keep=2) as fake:
        for number in range(4):
            ask(fake, user(f"number {number}"), max_tokens=1)
        assert fake.served == 4
        assert [one.json["messages"][0]["content"] for one in fake.requests] == ["number 2", "number 3"]


def test_the_same_questions_get_the_same_bytes() -> None:
    def run() -> list[bytes]:
        with LlamaCppFake() as fake:
            for stream in (False, True):
                ask(fake, stream=stream, max_tokens=9)
            return fake.response_bytes

    assert run() == run()


def test_a_gate_holds_a_stream_at_a_chunk(fake: GenericFake) -> None:
    fake.gate = gate = Gate(at=3)
    thread = threading.Thread(target=ask, args=(fake,), kwargs={"stream": True, "max_tokens": 8})
    thread.start()
    gate.wait_reached()
    assert text(chunks(fake.response_bytes[0])) == "w1 w"
    gate.release(2)
    wait_until(lambda: gate.reached and text(chunks(fake.response_bytes[0])) == "w1 w2 w")
    gate.open()
    thread.join()
    assert text(chunks(fake.response_bytes[0])) == words(1, 4)


def test_a_gate_can_hold_back_the_status_line(fake: GenericFake) -> None:
    fake.gate = gate = Gate(at=HEADERS)
    thread = threading.Thread(target=ask, args=(fake,), kwargs={"stream": True, "max_tokens": 2})
    thread.start()
    gate.wait_reached()
    assert fake.requests[0].status == 0
    gate.open()
    thread.join()
    assert fake.requests[0].status == 200


def test_a_reply_may_bring_its_own_gate() -> None:
    gate = Gate(at=1)
    with GenericFake(brain=scripted([Reply(text="one two", gate=gate)])) as fake:
        thread = threading.Thread(target=ask, args=(fake,), kwargs={"stream": True})
        thread.start()
        gate.wait_reached()
        gate.open()
        thread.join()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_noticed(stream: bool) -> None:
    with GenericFake(gate=Gate(at=2)) as fake:
        with httpx.Client(verify=False) as client, pytest.raises(httpx.ReadTimeout):
            client.post(fake.url + CHAT, json=body(stream=stream), timeout=httpx.Timeout(5, read=0.1))
        wait_until(lambda: fake.cancelled == 1)
        assert fake.active == 0
        assert fake.requests[0].ended == "cancelled"


def test_an_endless_stream_ends_with_its_client() -> None:
    with GenericFake(window=10**9) as fake:
        with httpx.stream("POST", fake.url + CHAT, json=body(stream=True)) as response:
            parts = response.iter_raw(100)  # kept, because a reader that is thrown away closes the connection
            next(parts)
            assert fake.active == 1
        wait_until(lambda: fake.cancelled == 1 and fake.active == 0)


def test_a_reply_may_drop_the_connection() -> None:
    with GenericFake(brain=scripted([Reply(text="one two three", cut=True, after=2)] * 2)) as fake:
        with pytest.raises(httpx.RemoteProtocolError):
            ask(fake, stream=True)
        with pytest.raises(httpx.RemoteProtocolError):
            ask(fake)
        assert text(chunks(fake.response_bytes[0])) == "one two"
        assert [request.ended for request in fake.requests] == ["cut", "cut"]
        assert fake.cancelled == 0


def test_a_reply_may_be_raw_bytes() -> None:
    raw = [b": odd\n\n", b'data: {"choices":null}\n\n', b"data: [DO", b"NE]\n\n"]
    with GenericFake(brain=scripted([Reply(raw=raw)])) as fake:
        assert ask(fake, stream=True).content == b"".join(raw)


def test_canned_failures_come_first(fake: GenericFake) -> None:
    fake.fail_next(429, {"error": "slow down"}, [("retry-after", "7")])
    fake.fail_next(500, b"oops", [("content-type", "text/plain")])
    assert fetch("GET", fake.url + "/v1/models").status_code == 200
    first, second, third = (ask(fake, max_tokens=1) for _ in range(3))
    assert (first.status_code, first.json(), first.headers["retry-after"]) == (
        429,
        {"error": "slow down"},
        "7",
    )
    assert (second.status_code, second.text) == (500, "oops")
    assert third.status_code == 200


def test_a_canned_failure_may_be_no_answer_at_all(fake: GenericFake) -> None:
    fake.fail_next(0, path="*", times=2)
    for _ in range(2):
        with pytest.raises(httpx.RemoteProtocolError):
            fetch("GET", fake.url + "/v1/models")
    assert fetch("GET", fake.url + "/v1/models").status_code == 200


def test_requests_may_come_gzipped(fake: GenericFake) -> None:
    packed = gzip.compress(json.dumps(body(max_tokens=1)).encode())
    response = fetch("POST", fake.url + CHAT, content=packed, headers={"content-encoding": "gzip"})
    assert response.status_code == 200
    assert fake.requests[0].body == packed


def test_responses_are_gzipped_for_clients_that_accept_it() -> None:
    with GenericFake(gzip=True, gzip_streams=True) as fake:
        for stream in (False, True):
            response = ask(fake, stream=stream, max_tokens=9)
            assert response.headers["content-encoding"] == "gzip"
            assert gzip.decompress(fake.response_bytes[-1]) == response.content
            assert b"w" in response.content
        plain = fetch(
            "POST", fake.url + CHAT, json=body(max_tokens=9), headers={"accept-encoding": "identity"}
        )
        assert "content-encoding" not in plain.headers


def test_chunks_may_hold_several_tokens() -> None:
    with GenericFake(tokens_per_chunk=4, brain=walk(last=10)) as fake:
        events = chunks(ask(fake, stream=True).content)
        assert text(events) == words(1, 10)
        assert len(events) == 1 + 20 // 4 + 1


def test_delays_slow_a_stream_down() -> None:
    with GenericFake(delay=0.02, brain=walk(last=3)) as fake:
        assert ask(fake, stream=True).elapsed.total_seconds() > 6 * 0.02


def test_a_crash_in_a_brain_is_loud() -> None:
    def brain(question: Question) -> Reply:
        raise LookupError("no idea")

    with pytest.raises(LookupError, match="no idea"), GenericFake(brain=brain) as fake:
        assert ask(fake).status_code == 500


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="no option 'windwo'"):
        GenericFake(windwo=3)


def test_a_brain_may_break_the_stream() -> None:
    with GenericFake(brain=scripted([Reply(text="one two three", error="worn out", after=1)])) as fake:
        events = chunks(ask(fake, stream=True).content)
        assert text(events) == "one"
        assert events[-1]["error"]["message"] == "worn out"
        assert finishes(events) == []


def test_several_models_are_told_apart() -> None:
    models = [FakeModel("small", 100), FakeModel("large", 1000)]
    with GenericFake(models, walk(last=2)) as fake:
        long = user("word " * 200)
        assert ask(fake, long, model="small").status_code == 400
        assert ask(fake, long, model="large").status_code == 200
        assert ask(fake, long, model="other").status_code == 404

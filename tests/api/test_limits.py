"""What clients may hold up is bounded, and what goes beyond is told."""

import json
import os
import socket
from typing import Any

import httpx
import pytest

from tests.fakes import Gate, GenericFake, LlamaCppFake, scripted, wait_until, walk
from tests.fakes.llamacpp import POOL_FULL
from tests.fakes.model import Reply
from tests.proxying import Proxy, running_proxy
from tests.raw import Raw, chat, connected

MIB = 2**20


def works(proxy: Proxy) -> bool:
    asked = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    told = proxy.chat(asked)
    return told.status_code == 200


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", b"a" * 65536),
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx", b"a" * 65536),
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x: y\r\n" * 10000),
        (b"GET /", b"a" * 65536),
        (b"", b"\r\n" * 30000),
        (b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", b"a" * 65536),
        (b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 10000),
        (b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n5;", b"a" * 65536),
    ],
    ids=["value", "name", "headers", "target", "nothing", "trailer", "trailers", "extension"],
)
def test_a_head_without_end_is_refused(begin: bytes, more: bytes) -> None:
    with GenericFake() as fake, running_proxy(fake, api_keys=["k"]) as proxy, connected(proxy.url) as client:
        client.send(begin)
        # What the systems on both sides buffer is the most that goes beyond.
        assert client.flood(more, 40 * MIB) < 40 * MIB or client.error()[0] in (401, 431)
        assert proxy.client.get("/v1/models", headers={"authorization": "Bearer k"}).status_code == 200


@pytest.mark.parametrize("size", [70_000, 200_000])
def test_headers_beyond_the_bound_are_told_so(size: int) -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"a" * size + b"\r\n\r\n")
        status, error = client.error()
        assert (status, error["code"]) == (431, "headers_too_large")
        assert "65536" in error["message"]
        assert fake.served == 0


def test_headers_within_the_bound_are_taken() -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(chat(headers="x: " + "a" * 60_000 + "\r\n"))
        assert client.answer("POST")[0].status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ",
        b"G",
        chat()[:-5],
        b"POST /v1/embeddings HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
    ids=["head", "first byte", "body", "pass-through"],
)
def test_a_request_that_stops_in_its_middle_is_told_and_closed(sent: bytes) -> None:
    with GenericFake() as fake, running_proxy(fake, client_timeout=0.3) as proxy, connected(proxy.url) as client:
        client.send(sent)
        status, error = client.error()
        assert (status, error["code"]) == (408, "request_timeout")
        assert client.rest() == b""
        wait_until(lambda: fake.active == 0)


def test_a_connection_on_which_nothing_comes_is_closed() -> None:
    with GenericFake() as fake, running_proxy(fake, client_timeout=0.3) as proxy, connected(proxy.url) as client:
        assert client.rest() == b""


def test_a_slow_answer_is_no_slow_request() -> None:
    gate = Gate()
    fake = GenericFake(brain=scripted([Reply(text="hi", gate=gate)]))
    with fake, running_proxy(fake, client_timeout=0.2) as proxy, connected(proxy.url) as client, connected(proxy.url) as other:
        client.send(chat())
        gate.wait_reached()
        assert other.rest() == b""  # the time is over
        gate.open()
        assert client.answer("POST")[0].status == 200


def test_connections_are_counted_and_the_next_one_is_told() -> None:
    with GenericFake() as fake, running_proxy(fake, max_connections=3) as proxy:
        held = [Raw(proxy.url) for _ in range(3)]
        for each in held:
            each.send(b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        with connected(proxy.url) as client:
            client.send(chat())
            response, body = client.answer()
            assert response.status == 503
            assert response.getheader("retry-after") == "2"
            assert "SPILLWAY_MAX_CONNECTIONS" in json.loads(body)["error"]["message"]
        # Or an orchestrator would restart what is only busy.
        assert httpx.get(f"{proxy.url}/healthz", trust_env=False).status_code == 200
        for each in held:
            each.close()
        wait_until(lambda: works(proxy))


def told(raw: Raw) -> tuple[int, Any] | None:
    raw.sock.settimeout(1)
    try:
        return raw.error()
    except TimeoutError:
        return None


def test_a_length_beyond_the_bound_is_refused_before_the_body() -> None:
    with GenericFake() as fake, running_proxy(fake, max_body=MIB) as proxy, connected(proxy.url) as client:
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\ncontent-length: 2000000\r\n\r\n"
        )
        status, error = client.error()  # and not `100 Continue`
        assert (status, error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_a_refusal_reaches_a_client_that_still_sends(path: str) -> None:
    """Closed at once, the connection would be reset, and the answer be lost with what was not read."""
    with GenericFake() as fake, running_proxy(fake, api_keys=["k"]) as proxy, connected(proxy.url) as client:
        client.send(b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 30000000\r\n\r\n" % path.encode())
        assert client.flood(b"x" * MIB, 29 * MIB) >= 29 * MIB
        response, body = client.answer("POST")
        assert response.status == 401
        assert json.loads(body)["error"]["code"] == "invalid_api_key"


def narrow(proxy: Proxy) -> str:
    """Have the system hold back little of an answer: a busy machine takes long to make the megabytes that it would take."""
    with socket.socket(fileno=os.dup(proxy.server.servers[0].sockets[0].fileno())) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return proxy.url


def test_a_client_that_does_not_read_is_given_up_and_its_backend_let_go() -> None:
    fake = GenericFake(brain=walk(), tokens_per_chunk=400, window=10**9)
    with fake, running_proxy(fake, client_timeout=0.5) as proxy, connected(narrow(proxy), window=4096) as client:
        client.send(chat(stream=True, tokens=None))
        wait_until(lambda: fake.active == 1)
        wait_until(lambda: fake.cancelled == 1)
        wait_until(lambda: fake.active == 0)


def test_a_client_that_does_not_read_lets_the_others_have_the_shared_memory() -> None:
    """Of those whose slots were cleared one is served at a time: the one that is, is given up as any other."""
    full = {"error": {"code": 500, "message": POOL_FULL, "type": "server_error"}}
    with (
        LlamaCppFake(brain=walk(), tokens_per_chunk=400, window=10**8) as fake,
        running_proxy(fake, client_timeout=2.0) as proxy,
        connected(narrow(proxy), window=4096) as holder,
        connected(proxy.url) as next_one,
    ):
        assert (
            proxy.chat({"model": "fake-model", "messages": [{"role": "user", "content": "w7"}], "max_tokens": 9}).status_code
            == 200
        )
        fake.fail_next(500, full)
        holder.send(chat(stream=True, tokens=None))
        wait_until(lambda: fake.active == 1 and not fake._canned)
        fake.fail_next(500, full)
        next_one.send(chat(text="and I?", headers="x-note: 2\r\n", tokens=None))
        wait_until(lambda: not fake._canned)
        assert fake.active == 1
        wait_until(lambda: fake.cancelled == 1)
        wait_until(lambda: fake.active == 1)  # the next one has its turn


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/v1/embeddings", "/v1/messages/count_tokens"],
)
def test_a_name_of_a_model_has_a_bound_and_is_shown_nowhere_beyond(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    messages = [{"role": "user", "content": "hi"}]
    with GenericFake() as fake, running_proxy(fake) as proxy:
        body = {"model": "b" * 100_000, "messages": messages, "input": "hi", "max_tokens": 9}
        answer = proxy.client.post(path, json=body)
        assert answer.status_code == 400
        assert "512" in answer.text
        told = [proxy.client.get(each).text for each in ("/metrics", "/spillway/outcomes", "/spillway/models", "/v1/models")]
        assert not any("b" * 600 in each for each in (answer.text, caplog.text, *told))
        assert not fake.chats()

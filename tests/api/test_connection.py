"""HTTP/1.1 and 1.0 as the world speaks them, on raw sockets in front of the whole application."""

import json

import pytest

from tests.fakes import Gate, GenericFake, VllmFake, scripted, wait_until
from tests.fakes.model import Reply
from tests.proxying import running_proxy
from tests.raw import chat, connected

H2C = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


def said(body: bytes) -> str:
    text: str = json.loads(body)["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("pieces", [1, 7])
def test_an_offer_of_http_2_is_ignored_and_the_body_kept(pieces: int) -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        request = chat(headers=H2C)
        size = -(-len(request) // pieces)
        for start in range(0, len(request), size):
            client.send(request[start : start + size])
        response, body = client.answer("POST")
        assert response.status == 200
        assert "hello" in json.dumps(fake.chats()[0].json)
        assert said(body)
        client.send(chat(text="again"))  # the connection goes on in HTTP/1.1
        assert client.answer("POST")[0].status == 200
        assert "upgrade" not in {name.lower() for name, _ in fake.chats()[0].headers}


def test_an_offer_of_http_2_with_a_body_in_chunks_is_ignored_too() -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        head, body = chat(headers=H2C).split(b"\r\n\r\n")
        head = head.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
        client.send(b"%b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (head, len(body), body))
        assert client.answer("POST")[0].status == 200


@pytest.mark.parametrize(
    "headers",
    [
        "content-length: 5\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 5",
        "content-length: 5\r\ncontent-length: 5",
        "content-length: 5\r\ncontent-length: 6",
        *("content-length: 5, 5", "content-length: -5", "content-length: +5", "content-length: 0x5", "content-length:"),
        "content-length: 99999999999999999999",
        "content-length : 5",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked, identity",
        *("x: a\r\n folded: b", "x: a\rb", "x: a\0b", ": a"),
    ],
)
def test_a_request_whose_end_can_be_read_in_two_ways_is_refused(headers: str) -> None:
    """Each of them has been the way past a proxy, somewhere (RFC 9112, section 11.2)."""
    smuggled = "5\r\nhello\r\n0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(f"POST /v1/embeddings HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n\r\n{smuggled}".encode("latin-1"))
        status, _ = client.error()
        assert status in (400, 501)
        assert client.rest() == b""
        assert [each.path for each in fake.requests if each.path.startswith("/v1/smuggled")] == []


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        ("content-length: 4 ", b"AAAA", 404), ("content-length: 0004\t", b"AAAA", 404),
        ("content-length: 18446744073709551615", b"AAAA", None), ("content-length: 400", b"AAAA", None),
        ("transfer-encoding: chunked", b"4\r\nAA", None), ("transfer-encoding: chunked", b"4\r\nAAAA\r\nzz\r\n", 400),
        ("content-length: 400\r\nexpect: 100-continue", b"", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["/v1/files", "/v1/chat/completions"])
def test_what_a_client_does_wrong_changes_no_belief(target: str, head: str, body: bytes, status: int | None) -> None:
    """It sends a malformed request, or leaves in the middle of it."""
    with VllmFake(brain=scripted(["one", "two"])) as fake, running_proxy(fake) as proxy:
        question = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}]}
        assert proxy.chat(question).status_code == 200
        with connected(proxy.url) as client:
            client.send(f"POST {target} HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n".encode() + body)
            if status is not None:
                assert client.answer("POST")[0].status in (status, 400)
            elif target == "/v1/files":
                wait_until(lambda: bool(proxy.server.server_state.tasks))
        wait_until(lambda: not proxy.server.server_state.tasks)
        del fake.requests[:]
        assert proxy.chat(question).status_code == 200
        assert [each.path for each in fake.requests] == ["/v1/chat/completions"]


@pytest.mark.parametrize("target", [b"/\xc3\xa9", b"/e?\xff", b"/" + b"a" * 65_400], ids=["path", "query", "long"])
def test_a_target_that_no_server_is_sent_is_the_clients_fault(target: bytes) -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % target)
        assert client.answer("GET")[0].status in (400, 404)


def test_transfer_encoding_in_http_1_0_is_refused() -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(b"POST /v1/embeddings HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
        assert client.error()[0] == 400


def test_trailers_are_no_headers() -> None:
    """A proxy in front that strips or sets headers does not look at them."""
    with GenericFake() as fake, running_proxy(fake, api_keys=["k"]) as proxy, connected(proxy.url) as client:
        client.send(
            b"POST /v1/embeddings HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\nauthorization: Bearer k\r\n\r\n"
        )
        assert client.error()[0] == 401


def test_an_error_is_never_written_into_an_answer_under_way() -> None:
    gate = Gate()
    fake = GenericFake(brain=scripted([Reply(text="hi", gate=gate)]))
    with fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(chat(stream=True))
        gate.wait_reached()
        client.send(chat(text="b") + b"no HTTP\r\n\r\n")
        assert b"HTTP/1.1 400" not in client.rest()


def test_requests_that_come_at_once_are_answered_in_their_order() -> None:
    fake = GenericFake(brain=scripted(["one", "two", "three"]))
    with fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(chat(text="a") + chat(text="b") + chat(text="c"))
        assert [said(client.answer("POST")[1]) for _ in range(3)] == ["one", "two", "three"]


def test_a_connection_ends_where_the_client_says_so() -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(chat(headers="connection: close\r\n") + b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = client.rest()
        assert answer.lower().count(b"http/1.1 ") == 1
        assert b"connection: close" in answer


def test_a_client_that_expects_to_be_told_to_go_on_is_told() -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        head, body = chat(headers="expect: 100-continue\r\n").split(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert client.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert client.answer("POST")[0].status == 200


def test_nothing_that_breaks_a_connection_leaves_a_trace_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy:
        for data in (
            b"\x16\x03\x01\x02\x00\x01",
            b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n",
            b"SSH-2.0-x\r\n",
            chat(stream=True),
        ):
            with connected(proxy.url) as client:
                client.send(data)
        wait_until(lambda: fake.active == 0)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime", "/"])
def test_a_websocket_is_refused_so_that_clients_go_on_over_http(path: str) -> None:
    """Codex (0.169) does so at once with 426; with 501 it tries six times more."""
    asked = (
        f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(asked.encode())
        response, body = client.answer("GET")
        assert (response.status, response.headers["upgrade"]) == (426, "HTTP/1.1")
        assert json.loads(body)["error"]["code"] == "websocket_not_supported"
        assert 'set_default_openai_responses_transport("http")' in json.loads(body)["error"]["message"]
        assert [request for request in fake.requests if request.path == path] == []


def test_a_tunnel_is_refused() -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n")
        status, error = client.error()
        assert (status, error["code"]) == (400, None)
        assert client.rest() == b""


@pytest.mark.parametrize("path", ["/", "/v1/chat/completions", "/v1/embeddings"])
@pytest.mark.parametrize("keys", [(), ("k",)])
def test_a_trace_is_not_passed_on_since_it_would_echo_credentials(path: str, keys: tuple[str, ...]) -> None:
    with GenericFake() as fake, running_proxy(fake, api_keys=keys) as proxy, connected(proxy.url) as client:
        client.send(f"TRACE {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer k\r\n\r\n".encode())
        response, body = client.answer("TRACE")
        assert (response.status, json.loads(body)["error"]["code"]) == (501, "method_not_supported")
        assert b"Bearer" not in body
        assert [request for request in fake.requests if request.path == path] == []


def test_an_http_1_0_client_gets_a_whole_answer_with_its_length() -> None:
    with GenericFake() as fake, running_proxy(fake) as proxy, connected(proxy.url) as client:
        client.send(chat(version="1.0"))
        head, _, body = client.rest().partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(body) in head
        assert b"connection: close" in head
        assert said(body)

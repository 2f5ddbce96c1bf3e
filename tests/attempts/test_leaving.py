"""A client that leaves takes its upstream request along, on every path; an answer before the end of an upload is passed on."""

import queue
import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from proxy.core.jsontext import loads
from proxy.core.settings import BackendSetting
from tests import rawbackend
from tests.proxying import running_proxy
from tests.raw import connected
from tests.rawbackend import DEADLINE, SSE, Call, RawBackend, answering, raw_backend, read_until, sent

pytestmark = pytest.mark.slow

CHAT = b'{"model": "m", "stream": %b, "messages": [{"role": "user", "content": "go"}]}'
LEFT = 5.0
"""Seconds within which the backend must have been left; a hang takes the read timeout, 900."""


def request(method: str, path: str, *headers: str, body: bytes = b"", length: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *headers]
    if body and length:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHUNKED = "transfer-encoding: chunked"
ASKS = {
    "GET": request("GET", "/events"),
    "POST of JSON": request("POST", "/v1/embeddings", "content-type: application/json", body=b'{"model":"m"}'),
    "POST of a form": request("POST", "/api/x", "content-type: application/x-www-form-urlencoded", body=b"a=b"),
    "POST in chunks": request("POST", "/api/x", CHUNKED, body=b"3\r\nabc\r\n0\r\n\r\n", length=False),
    "chat, streamed": request("POST", "/v1/chat/completions", "content-type: application/json", body=CHAT % b"true"),
    "chat, whole": request("POST", "/v1/chat/completions", "content-type: application/json", body=CHAT % b"false"),
    "chat, bypassed": request(
        "POST", "/v1/chat/completions", "content-type: application/json", "x-spillway-bypass: 1", body=CHAT % b"true"
    ),
}


def silent(backend: RawBackend, call: Call) -> None:
    if call.left(LEFT):
        backend.gone.set()


def endless(backend: RawBackend, call: Call) -> None:
    frame = b'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
    until = time.monotonic() + LEFT
    call.send(SSE)
    while call.send(frame):
        if call.left(0.002):
            break
        if time.monotonic() > until:
            return
    backend.gone.set()


@pytest.mark.parametrize("ask", sorted(ASKS))
def test_who_leaves_before_the_first_byte_is_not_answered_to_the_end(ask: str) -> None:
    with raw_backend(silent) as backend, running_proxy(backend.setting) as proxy:
        with sent(proxy.url, ASKS[ask]):
            arrived(backend)
        assert backend.gone.wait(DEADLINE)


class Deaf:
    def __init__(self) -> None:
        self.uploading: queue.Queue[socket.socket] = queue.Queue()
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.setting = BackendSetting(url=f"http://127.0.0.1:{port}", name="deaf", kind="generic")
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                taken, _ = self._listening.accept()
                if b"/api/x" in taken.recv(200):
                    self.uploading.put(taken)
                else:
                    taken.sendall(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    taken.close()


MUCH = 30_000_000
"""Bytes that are more than systems hold between client and backend."""
UPLOADS = {
    "in chunks": request("POST", "/api/x", CHUNKED, "content-type: application/octet-stream"),
    "of a length": request("POST", "/api/x", "content-length: 300000000", "content-type: text/plain"),
}


@pytest.mark.parametrize("upload", sorted(UPLOADS))
def test_an_upload_that_nobody_reads_is_answered_with_what_to_do(upload: str) -> None:
    with (
        closing(Deaf()) as backend,
        running_proxy(backend.setting, connect_timeout=0.25, read_timeout=0.25) as proxy,
        connected(proxy.url) as client,
    ):
        client.send(UPLOADS[upload])
        client.sock.settimeout(0.3)
        client.flood(b"10000\r\n" + b"x" * 65536 + b"\r\n", MUCH)
        client.sock.settimeout(DEADLINE)
        answer, told = client.answer("POST")
        backend.uploading.get(timeout=DEADLINE).close()  # what was written and not read is let go of
    assert answer.status == 504
    error = loads(told)["error"]
    assert (error["type"], error["code"]) == ("upstream_error", "upstream_timeout")
    assert "did not answer in time" in error["message"]


@pytest.mark.parametrize("ask", sorted(set(ASKS) - {"chat, whole"}))
def test_who_leaves_in_the_middle_of_a_stream_ends_it(ask: str) -> None:
    with raw_backend(endless) as backend, running_proxy(backend.setting) as proxy:
        with sent(proxy.url, ASKS[ask]) as sock:
            read_until(sock, b'"x"')
        assert backend.gone.wait(DEADLINE)


def test_who_leaves_in_the_middle_of_an_upload_ends_it() -> None:
    with raw_backend(silent) as backend, running_proxy(backend.setting) as proxy:
        with sent(proxy.url, request("POST", "/api/x", CHUNKED, body=b"3\r\nabc\r\n", length=False)):
            arrived(backend)
        assert backend.gone.wait(DEADLINE)


def test_an_upload_that_has_ended_is_watched_no_less() -> None:
    """The client leaves long after its body has gone through."""

    def script(backend: RawBackend, call: Call) -> None:
        read_until(call.sock, b"0\r\n\r\n")
        call.send(SSE + b": here\n\n")
        silent(backend, call)

    body = b"3\r\nabc\r\n"
    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        with sent(proxy.url, request("POST", "/api/x", CHUNKED, body=body, length=False)) as sock:
            arrived(backend)
            sock.sendall(b"0\r\n\r\n")
            read_until(sock, b": here")
        assert backend.gone.wait(DEADLINE)


def test_who_leaves_a_list_has_no_more_of_it_made() -> None:
    """Each of the models is asked for on its own; nobody waits for the rest of them."""
    listed = {"object": "list", "data": [{"id": f"m{n}", "object": "model"} for n in range(8)]}

    def script(backend: RawBackend, call: Call) -> None:
        if call.path == "/v1/models":
            call.send(answering(listed))
        elif call.path == "/api/show":
            backend.gone.wait(DEADLINE)
            call.send(answering({"model_info": {"general.architecture": "x", "x.context_length": 4096}}))
        else:
            call.send(answering({"models": []}))

    with raw_backend(script, lists=False) as backend:
        setting = backend.setting.model_copy(update={"kind": "ollama"})
        with running_proxy(setting) as proxy:
            with sent(proxy.url, request("GET", "/spillway/models")):
                until(lambda: any(call.path == "/api/show" for call in backend.calls))
            # The request that was on its way is shared, and ends; the proxy is free to answer another one meanwhile.
            assert proxy.client.get("/healthz").status_code == 200
            backend.gone.set()
            asked = {call.json["model"] for call in backend.calls if call.path == "/api/show"}
            assert proxy.client.get("/metrics").status_code == 200
            assert asked == {"m0"}
            again = {call.json["model"] for call in backend.calls if call.path == "/api/show"}
            assert again == {"m0"}


def test_an_answer_before_the_end_of_the_upload_is_passed_on() -> None:
    """The client has more to send, and waits for what will not come: a backend that refuses at once, and hangs up."""

    def script(backend: RawBackend, call: Call) -> None:
        call.send(answering({"error": {"message": "too large"}}, "413 Content Too Large"))

    start = request("POST", "/v1/audio/transcriptions", "content-type: audio/wav", f"content-length: {10**9}")
    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        with sent(proxy.url, start + b"xxx") as sock:
            said = read_until(sock, b"too large")
            assert said.startswith(b"HTTP/1.1 413 ")
        assert proxy.client.get("/healthz").status_code == 200


def test_a_refusal_before_all_of_a_request_is_sent_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole body is at hand, and more of it than goes into the buffers between the two."""
    monkeypatch.setattr(rawbackend, "READ", 0)

    def script(backend: RawBackend, call: Call) -> None:
        call.send(answering({"error": {"message": "too large"}}, "413 Content Too Large"))

    content = '{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % ("x" * 20 * 2**20)
    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        for _ in range(4):
            answer = proxy.client.post("/v1/chat/completions", content=content, headers={"x-spillway-bypass": "1"})
            assert (answer.status_code, answer.json()["error"]["message"]) == (413, "too large")


def test_an_upload_keeps_its_length() -> None:
    def script(backend: RawBackend, call: Call) -> None:
        call.send(answering({"ok": True}))

    body = b"RIFF" * 1000
    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        proxy.client.post("/v1/audio/transcriptions", content=body, headers={"content-type": "audio/wav"})
        proxy.client.post("/v1/audio/transcriptions", content=iter([body]))
        told, untold = backend.calls
        assert (told.header("content-length"), told.header("transfer-encoding")) == (str(len(body)), None)
        assert told.body == body
        assert (untold.header("content-length"), untold.header("transfer-encoding")) == (None, "chunked")


def arrived(backend: RawBackend) -> None:
    until(lambda: bool(backend.calls))


def until(condition: object, seconds: float = DEADLINE) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)

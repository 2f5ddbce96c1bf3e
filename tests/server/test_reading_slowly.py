"""A client on a slow line gets the whole of its answer, however its connection ends."""

from __future__ import annotations

import threading
from contextlib import suppress

import httpx
import pytest

from proxy.server import connection, server
from tests.proxying import Proxy, running_proxy
from tests.rawbackend import Call, RawBackend, answering, raw_backend
from tests.server.raw import Raw, chat, connected

SIZE = 3 * 2**20


def large(backend: RawBackend, call: Call) -> None:
    said = {"role": "assistant", "content": "x" * SIZE}
    call.send(answering({"id": "1", "choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}))


def read_slowly(client: Raw, proxy: Proxy) -> bytes:
    """The answer; the guard looks at the connection many times meanwhile."""
    took = b""
    try:
        while part := client.sock.recv(SIZE // 64):
            took += part
            for _ in range(8):
                proxy.client.get("/healthz")
    except ConnectionResetError:
        return took
    return took


@pytest.mark.parametrize(
    "asked",
    [chat(headers="connection: close\r\n"), chat(version="1.0")],
    ids=["close", "1.0"],
)
def test_the_last_answer_of_a_connection_is_whole_on_a_slow_line(
    asked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_SILENCE", 0.0)
    monkeypatch.setattr(connection, "LINGER", 0.0)
    with (
        raw_backend(large) as backend,
        # The guard looks four times in this.
        running_proxy(backend.setting, client_timeout=2.0) as proxy,
        connected(proxy.url, window=65536) as client,
    ):
        client.send(asked)
        head, _, body = read_slowly(client, proxy).partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(body) in head
        assert len(body) > SIZE


def test_a_stop_waits_for_those_who_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LAST_WORDS", 0.0)
    took, over = [b""], threading.Event()

    def read(client: Raw, url: str) -> None:
        """Only once the server has been stopping for some looks at whether it may end."""
        refused = 0
        with httpx.Client(base_url=url, trust_env=False) as other:
            while refused < 100 and not over.is_set():
                try:
                    refused += other.get("/readyz").status_code == 503
                except httpx.TransportError:
                    over.wait(20)
        with suppress(ConnectionResetError):
            while part := client.sock.recv(SIZE):
                took[0] += part

    with raw_backend(large) as backend:
        with running_proxy(backend.setting, graceful_timeout=20.0) as proxy:
            client = Raw(proxy.url, window=65536)
            client.send(chat(headers="connection: close\r\n"))
            took[0] = client.sock.recv(1)
            reader = threading.Thread(target=read, args=(client, proxy.url))
            reader.start()
        over.set()
        reader.join()
        client.close()
        assert len(took[0]) > SIZE

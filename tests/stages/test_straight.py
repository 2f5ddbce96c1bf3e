"""Far from the pause point a chunk goes straight through: no task is woken for it, and nothing else changes."""

from __future__ import annotations

import socket
import threading

import pytest

from proxy.net.http11 import Connection
from tests.answer.support import DONE, ending, opening, said
from tests.proxying import running_proxy
from tests.rawbackend import SSE, Call, RawBackend, raw_backend, read_all, read_until
from tests.server.raw import chat, connected

WORDS = [f" word{number}" for number in range(40)]
KNOWN = {"fake-model": {"window": 100_000}}
PATIENCE = 20.0
"""Seconds."""


class Steps:
    """A backend that says the next word when it is told to."""

    def __init__(self) -> None:
        self._next = threading.Semaphore(0)

    def go(self) -> None:
        self._next.release()

    def __call__(self, backend: RawBackend, call: Call) -> None:
        call.send(SSE + opening())
        for word in WORDS:
            if not self._next.acquire(timeout=PATIENCE) or not call.send(said(word)):
                return
        call.send(ending() + DONE)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the tasks that read answers were given, in pieces."""
    given: list[bytes] = []
    read = Connection.read

    async def kept(connection: Connection) -> bytes:
        data = await read(connection)
        given.append(data)
        return data

    monkeypatch.setattr(Connection, "read", kept)
    return given


def test_a_word_that_comes_alone_wakes_no_task(reads: list[bytes]) -> None:
    steps = Steps()
    with (
        raw_backend(steps) as backend,
        running_proxy(backend.setting, models=KNOWN) as proxy,
        connected(proxy.url) as client,
    ):
        client.send(chat(stream=True, tokens=None))
        for word in WORDS:
            steps.go()
            read_until(client.sock, b'"' + word.encode() + b'"')
        assert sum(b" word" in piece for piece in reads) < 5


def test_words_that_come_any_how_come_in_order() -> None:
    steps = Steps()
    with (
        raw_backend(steps) as backend,
        running_proxy(backend.setting, models=KNOWN) as proxy,
        connected(proxy.url) as client,
    ):
        client.send(chat(stream=True, tokens=None, headers="connection: close\r\n"))
        for _ in WORDS:
            steps.go()
        body = read_all(client.sock)
    places = [body.find(b'"%b"' % word.encode()) for word in WORDS]
    assert places == sorted(places)
    assert places[0] > 0
    assert body.endswith(b"0\r\n\r\n")


def test_a_client_that_leaves_between_two_words_is_seen() -> None:
    steps = Steps()
    with (
        raw_backend(steps) as backend,
        running_proxy(backend.setting, models=KNOWN) as proxy,
        connected(proxy.url) as client,
    ):
        client.send(chat(stream=True, tokens=None))
        for word in WORDS[:10]:
            steps.go()
            read_until(client.sock, b'"' + word.encode() + b'"')
        client.sock.shutdown(socket.SHUT_RDWR)
        client.sock.close()
        assert backend.chats()[0].left()

"""What was held in a flood is given back to the system when it is over."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.engine.spillway import spillway_server
from tests.fakes import GenericFake, wait_until, walk
from tests.server.raw import Raw, chat, connected

MIB = 2**20
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for the memory in use"),
]


def in_use(pid: int) -> float:
    """MiB of memory that the process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def test_bodies_that_never_end_are_bounded_and_given_back(tmp_path: Path) -> None:
    with GenericFake() as fake, spillway_server([fake.url], log=tmp_path / "log") as proxy:
        with connected(proxy.url) as client:
            client.send(chat())
            assert client.answer("POST")[0].status == 200
        before = in_use(proxy.pid)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 62914560\r\n\r\n"
        clients = [Raw(proxy.url) for _ in range(10)]
        floods = [
            threading.Thread(target=client.flood, args=(head + b"x" * (60 * MIB - 100), 1))
            for client in clients
        ]
        for flood in floods:
            flood.start()
        for flood in floods:
            flood.join()
        assert in_use(proxy.pid) - before < 350  # 256 are held, 600 were sent
        for client in clients:
            client.close()
        wait_until(lambda: in_use(proxy.pid) - before < 30, 30)


def test_clients_that_do_not_read_are_bounded_and_what_they_held_is_given_back(tmp_path: Path) -> None:
    with (
        GenericFake(brain=walk(), tokens_per_chunk=400, window=10**9) as fake,
        spillway_server([fake.url], log=tmp_path / "log", client_timeout=5) as proxy,
    ):
        with connected(proxy.url) as client:
            client.send(chat(stream=True, tokens=None))
            for _ in range(50):
                assert client.sock.recv(65536)
        wait_until(lambda: fake.active == 0)
        before = in_use(proxy.pid)
        clients = [Raw(proxy.url, window=4096) for _ in range(20)]
        for number, client in enumerate(clients):
            client.send(chat(stream=True, text=f"go {number}", tokens=None))
        wait_until(lambda: fake.cancelled >= len(clients), 100)
        assert in_use(proxy.pid) - before < 4 * len(clients)
        for client in clients:
            client.close()
        wait_until(lambda: in_use(proxy.pid) - before < 20, 30)

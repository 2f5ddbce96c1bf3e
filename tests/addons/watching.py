"""A viewer of the live feed, as a browser is one."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from proxy.core.jsontext import loads
from tests.proxying import Proxy

DEADLINE = 20.0


def code(answer: httpx.Response) -> tuple[int, str | None]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return answer.status_code, error["code"]


class Viewing:
    """What a viewer was told."""

    def __init__(self) -> None:
        self.reading = True
        self.events: list[tuple[str, Any]] = []
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue()

    def read(self, answer: httpx.Response) -> None:
        name = ""
        try:
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    self._queue.put((name, loads(line[6:])))
        except httpx.HTTPError:
            pass
        self.reading = False

    def until(self, name: str, fits: Callable[[Any], bool] = lambda _: True) -> Any:
        """The next event of this name that fits."""
        end = time.monotonic() + DEADLINE
        while True:
            told = self._queue.get(timeout=max(0.01, end - time.monotonic()))
            self.events.append(told)
            if told[0] == name and fits(told[1]):
                return told[1]


@contextmanager
def viewing(proxy: Proxy, query: str = "", **headers: str) -> Iterator[Viewing]:
    seen = Viewing()
    with (
        httpx.Client(base_url=proxy.url, timeout=60, trust_env=False) as client,
        client.stream("GET", f"/spillway/live{query}", headers=headers) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream"
        thread = threading.Thread(target=seen.read, args=(answer,), daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            # A socket that is only closed stays open for as long as somebody reads it.
            answer.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE)

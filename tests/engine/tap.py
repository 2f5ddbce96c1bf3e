"""A tap on the line to a server: everything goes through as it is, and both directions are kept."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from typing_extensions import override

from tests.fakes.waiting import wait_until

_HOP = frozenset({"host", "connection", "keep-alive", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the body of its answer, without the framing of HTTP."""

    path: str
    asked: bytes
    answered: bytes


@dataclass(frozen=True, slots=True)
class Tap:
    """A running tap. `url` is the root under which the server is reached through it."""

    url: str
    seen: list[Exchange] = field(default_factory=list)

    def chats(self) -> list[Exchange]:
        return [exchange for exchange in self.seen if exchange.path == "/v1/chat/completions"]

    def wait_for(self, count: int) -> None:
        """Block until so many chat completions have ended: a client may have its answer a moment earlier.

        Raises:
            AssertionError: they did not within five seconds.
        """
        wait_until(lambda: len(self.chats()) >= count)


@contextmanager
def tapped(url: str) -> Iterator[Tap]:
    with httpx.Client(base_url=url, timeout=None, trust_env=False) as client:

        class Handler(BaseHTTPRequestHandler):
            def _relay(self) -> None:
                asked = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                answered = b""
                with client.stream(self.command, self.path, content=asked, headers=headers) as reply:
                    self.send_response_only(reply.status_code)
                    for name, value in reply.headers.multi_items():
                        if name not in _HOP:
                            self.send_header(name, value)
                    self.end_headers()
                    for data in reply.iter_raw():
                        answered += data
                        self.wfile.write(data)
                tap.seen.append(Exchange(self.path, asked, answered))

            do_GET = do_POST = _relay  # noqa: N815 - the names that the base class looks for

            @override
            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            tap = Tap(f"http://127.0.0.1:{server.server_port}")
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield tap
            finally:
                server.shutdown()
                thread.join()

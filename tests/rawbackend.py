"""A backend that says byte by byte what a script has it say, and sees the proxy hang up."""

import re
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from proxy.core.jsontext import dumps, loads
from proxy.core.settings import BackendSetting

DEADLINE = 20.0
"""Seconds after which a wait of a test has failed."""
READ = 64 * 2**20
"""Bytes of a body that are read before a script runs; of a larger one it gets what has come."""
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class Call:
    """One request, and the connection on which it came."""

    def __init__(self, sock: socket.socket, head: bytes, body: bytes) -> None:
        self.sock = sock
        self.head = head
        self.body = body
        self.method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        self.path = target.partition("?")[0]

    @property
    def json(self) -> Any:
        return loads(self.body)

    def header(self, name: str) -> str | None:
        found = re.search(rf"(?im)^{name}: *(.*?)\r?$", self.head.decode("latin-1"))
        return found[1] if found else None

    def send(self, data: bytes) -> bool:
        """Send; False when the proxy has hung up."""
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True

    def left(self, seconds: float = DEADLINE) -> bool:
        """Wait for the proxy to hang up, dropping what it still sends."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self.sock], [], [], left)[0]:
                try:
                    if not self.sock.recv(65536):
                        return True
                except OSError:
                    return True
        return False


class RawBackend:
    """What is running: its address, and the calls that were not for its list of models."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.setting = BackendSetting(url=self.url, name="raw", kind="generic")
        self.calls: list[Call] = []
        self.gone = threading.Event()
        """For scripts to tell that they saw the proxy hang up."""

    def chats(self) -> list[Call]:
        return [call for call in self.calls if call.path.endswith("/chat/completions")]


@contextmanager
def raw_backend(script: Callable[[RawBackend, Call], None], *, lists: bool = True) -> Iterator[RawBackend]:
    """Run `script` for each request, each on a connection of its own. `lists`: it lists one model, `m`, by itself."""

    class Handler(socketserver.BaseRequestHandler):
        @override
        def handle(self) -> None:
            call = _read(self.request)
            if call is None:
                return
            if lists and call.path.endswith("/models"):
                call.send(answering({"object": "list", "data": [{"id": "m", "object": "model"}]}))
                return
            backend.calls.append(call)
            script(backend, call)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        backend = RawBackend(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield backend
        finally:
            server.shutdown()
            for call in backend.calls:
                with suppress(OSError):
                    call.sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def replying(*answers: bytes) -> Iterator[RawBackend]:
    """Answer one chat request after the other with these bytes, the last one over and over; nothing else is known."""
    left = list(answers)

    def script(_: RawBackend, call: Call) -> None:
        chat = call.path.endswith("/chat/completions")
        call.send((left.pop(0) if len(left) > 1 else left[0]) if chat else answering({}, "404 Not Found"))

    with raw_backend(script) as backend:
        yield backend


def _read(sock: socket.socket) -> Call | None:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (part := sock.recv(65536)):
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"(?im)^content-length: *(\d+)", head)
    length = int(found[1]) if found else 0
    while len(body) < length <= READ and (part := sock.recv(65536)):
        body += part
    return Call(sock, head, body)


def answering(value: Any, status: str = "200 OK", headers: Sequence[str] = ()) -> bytes:
    """A whole response with this JSON, after which the connection is closed."""
    return plain(dumps(value), status, headers)


def plain(body: bytes, status: str = "200 OK", headers: Sequence[str] = ()) -> bytes:
    """A whole response with this body, whatever it is, in the name of JSON."""
    lines = [
        f"HTTP/1.1 {status}", "content-type: application/json", "connection: close", f"content-length: {len(body)}", *headers,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def sent(url: str, request: bytes) -> Iterator[socket.socket]:
    """A client that sends these bytes, and hangs up at the end."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE) as sock:
        sock.sendall(request)
        yield sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """What comes up to and with `mark`."""
    data = b""
    while mark not in data:
        part = sock.recv(65536)
        assert part, f"{mark!r} did not come: {data!r}"
        data += part
    return data

"""What stands between a proxy and its Redis: a wire that can be slowed, cut, or made to talk nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fakes.waiting import wait_until

GARBAGE = b"\x00\xff<html>\r\nnot a reply\r\n$12:\r\n*-7\r\n"


class Between:
    """Forwards a port of loopback; `delay` seconds before each reply, `garbage` instead of it."""

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.garbage = False
        self.port = 0
        self._target = port

    async def serve(self, ended: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            await ended.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        # Cancelled at the end of the test: Python 3.11 would log that as a failure.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._requests(reader, back), self._replies(there, writer))
        writer.close()
        back.close()

    async def _requests(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            back.write(data)
            await back.drain()
        back.close()

    async def _replies(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65536):
            if self.delay:
                await asyncio.sleep(self.delay)  # this is the slow server
            writer.write(GARBAGE if self.garbage else data)
            await writer.drain()
        writer.close()


@contextmanager
def between(port: int) -> Iterator[Between]:
    """One that forwards to this port, on a port of its own."""
    wire = Between(port)
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    thread = threading.Thread(target=_run, args=(loop, wire, ended), daemon=True)
    thread.start()
    wait_until(lambda: wire.port, timeout=20)
    try:
        yield wire
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(20)


def _run(loop: asyncio.AbstractEventLoop, wire: Between, ended: asyncio.Event) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(wire.serve(ended))  # what is under way then is cancelled with it

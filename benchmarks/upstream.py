"""A fake llama-server that costs next to nothing: canned bytes, one write per streamed chunk.

The user's message says what to stream: `bench:CHUNKS:PAUSE` with PAUSE in microseconds between chunks,
`bench:CHUNKS:PAUSE:hold` to fall silent after them, and `bench:CHUNKS:PAUSE:resume:STREAMS:RUN` for an answer that
does not end before it is paused: the attempt that goes on with it (`continue_final_message`) says what it goes on after, waits
until STREAMS such attempts of this RUN stand there, leaves the load generator time to read the clocks, and says CHUNKS
more. The first attempt comes without a PAUSE.
Prints its port, and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import uvloop
from typing_extensions import override

from benchmarks import canned

START_AFTER = 0.5
"""Seconds between the last attempt's first chunk and the second ones."""
ENDLESS = 30_000
"""Chunks after which even an answer that was to be paused ends."""
_ORDER = re.compile(rb'"content": ?"bench:(\d+):(\d+)(?::(hold|resume)(?::(\d+):\d+)?)?"')
_USAGE = re.compile(rb'"include_usage": ?true')
_CONTINUED = re.compile(rb'"continue_final_message": ?true')
_LAST = re.compile(rb' (word\d+)"')
"""The end of what an attempt is to go on with."""
_TIMINGS = re.compile(rb'"timings_per_token": ?true')


@dataclass
class Plan:
    """One stream: what is left to send."""

    frames: Sequence[bytes]
    """Said over and over."""
    chunks: int
    pause: float
    """Seconds between chunks."""
    end: bytes
    """Empty: it falls silent instead."""
    sent: int = 0


class Gathering:
    """Streams that wait for each other."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[Callable[[], None]]] = {}

    def join(self, run: bytes, go: Callable[[], None], *, of: int) -> None:
        """Call `go` START_AFTER seconds after the last one of so many has joined the run."""
        waiting = self._waiting.setdefault(run, [])
        waiting.append(go)
        if len(waiting) >= of:
            del self._waiting[run]
            loop = asyncio.get_running_loop()
            for each in waiting:
                loop.call_later(START_AFTER, each)


class Server(asyncio.Protocol):
    """One connection. Requests are not pipelined."""

    def __init__(self, gathering: Gathering) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathering = gathering
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._waiting: Plan | None = None
        self._received: list[bytes] = []
        self._size = 0
        self._head = b""
        self._needed = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    @override
    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._size += len(data)
        if not self._head and not self._read_head():
            return
        if self._size >= self._needed:
            whole = b"".join(self._received)
            head, body = self._head, whole[len(self._head) : self._needed]
            self._received, self._size, self._head = [], 0, b""
            self._serve(head, body)

    def _read_head(self) -> bool:
        whole = b"".join(self._received)
        self._received = [whole]
        end = whole.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._head = whole[: end + 4]
        _, found, length = self._head.lower().partition(b"\r\ncontent-length:")
        self._needed = len(self._head) + (int(length.split(b"\r\n", 1)[0]) if found else 0)
        return True

    def _serve(self, head: bytes, body: bytes) -> None:
        method, target, _ = head.split(b" ", 2)
        path = target.partition(b"?")[0]
        if method == b"GET":
            self._write(canned.GET.get(path, canned.NOT_FOUND))
        elif path != b"/v1/chat/completions":
            self._write(canned.NOT_FOUND)
        elif order := _ORDER.search(body):
            self._stream(body, order)
        else:
            self._write(canned.completion(body))

    def _stream(self, body: bytes, order: re.Match[bytes]) -> None:
        chunks, pause, kind = int(order[1]), int(order[2]) / 1e6, order[3]
        self._write(canned.EVENT_STREAM)
        if kind == b"resume" and _CONTINUED.search(body):
            timings = bool(_TIMINGS.search(body))
            last = _LAST.search(body)
            self._write(b"".join(canned.later_start(last[1].decode() if last else "", timings=timings)))
            frames = canned.later_frames(chunks, timings=timings)
            plan = Plan(frames, chunks, pause, canned.LATER_LAST + canned.DONE)
            self._gathering.join(order[0], partial(self._next, plan), of=int(order[4]))
            return
        said = ENDLESS if kind == b"resume" else chunks
        usage = canned.usage_frame(canned.prompt_tokens(body), said) if _USAGE.search(body) else b""
        end = b"" if kind == b"hold" else canned.LAST + usage + canned.DONE
        self._write(canned.FIRST)
        self._next(Plan(canned.FRAMES, said, 0 if kind == b"resume" else pause, end))

    def _next(self, plan: Plan) -> None:
        if self._transport is None:
            return
        if plan.sent < plan.chunks:
            self._write(plan.frames[plan.sent % len(plan.frames)])
            plan.sent += 1
            self._schedule(plan)
        else:
            self._write(plan.end)

    def _schedule(self, plan: Plan) -> None:
        if self._paused:
            self._waiting = plan
        elif plan.pause:
            self._loop.call_later(plan.pause, self._next, plan)
        else:
            self._loop.call_soon(self._next, plan)  # its own turn of the loop, so its own write to the socket

    @override
    def pause_writing(self) -> None:
        self._paused = True

    @override
    def resume_writing(self) -> None:
        self._paused = False
        plan, self._waiting = self._waiting, None
        if plan is not None:
            self._schedule(plan)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(partial(Server, Gathering()), "127.0.0.1", 0, backlog=1024)
    print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())

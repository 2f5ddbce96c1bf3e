"""A chat completion as server-sent events, one event per token unless told otherwise."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from tests.fakes.generation import Broken, Delta, Dropped, Generation, grouped
from tests.fakes.http import EVENT_STREAM, Exchange
from tests.fakes.model import Prompt
from tests.fakes.waiting import HEADERS

if TYPE_CHECKING:
    from tests.fakes.base import HttpFake
    from tests.fakes.chat import FakeBackend

DONE = b"data: [DONE]\n\n"


async def pace(fake: "HttpFake", generation: Generation, index: int) -> None:
    """Wait as long as gates and delays say before the chunk of this index."""
    for gate in (fake.gate, generation.reply.gate):
        if gate is not None:
            await gate.passage(index)
    delay = fake.delay if index > 0 else (fake.prompt_delay if index < 0 else fake.delay)
    await asyncio.sleep(delay)


class ChatStream:
    """Sends one streamed answer."""

    def __init__(self, fake: "FakeBackend", exchange: Exchange, prompt: Prompt, generations: Sequence[Generation]) -> None:
        self._fake, self._exchange, self._prompt = fake, exchange, prompt
        self._generations = generations
        self._head = fake.head(prompt, "chat.completion.chunk")
        self._opened = False
        self._finished: set[int] = set()

    async def run(self, raw: Sequence[bytes] | None = None) -> None:
        """Send it all, however it ends."""
        await pace(self._fake, self._generations[0], HEADERS)
        if not self._fake.late_headers:
            await self._open()
        try:
            await (self._raw(raw) if raw is not None else self._events())
        except Dropped:
            await self._exchange.cut()
            return
        except Broken as broken:
            await self._write(self._fake.error_frame(str(broken), self._head))
            if self._fake.done_after_error:
                await self._write(DONE)
        await self._exchange.close(hang_up=self._fake.hangs_up)

    async def _open(self) -> None:
        self._opened = True
        await self._exchange.open(200, EVENT_STREAM, self._fake.stream_headers())
        for _ in range(self._fake.comments):
            await self._exchange.write(self._fake.comment)

    async def _write(self, data: bytes) -> None:
        if not self._opened:
            await self._open()
        await self._exchange.write(data)

    async def _raw(self, pieces: Sequence[bytes]) -> None:
        for index, piece in enumerate(pieces):
            await pace(self._fake, self._generations[0], index)
            await self._write(piece)

    async def _events(self) -> None:
        fake = self._fake
        for fields in fake.preface(self._prompt):
            await self._chunk([fake.choice(0, dict(fake.first_delta or {}), None)], None, **fields)
        if fake.first_delta is not None and not fake.late_headers:
            await self._roles()
        async for choice, delta, last in self._deltas():
            generation = self._generations[choice]
            finish = generation.finish if last else None
            generation.sent += delta.tokens
            await self._chunk([fake.choice(choice, fake.delta(delta), finish)], generation)
        for choice, generation in enumerate(self._generations):
            if choice not in self._finished or fake.double_finish:
                await self._chunk([fake.choice(choice, {}, generation.finish)], generation)
        if fake.wants_usage(self._prompt):
            usage = fake.usage(self._prompt, self._generations)
            await self._chunk([], self._generations[0], usage=usage)
        await self._write(DONE)

    async def _roles(self) -> None:
        for choice in range(len(self._generations)):
            await self._chunk([self._fake.choice(choice, dict(self._fake.first_delta or {}), None)], None)

    async def _deltas(self) -> AsyncIterator[tuple[int, Delta, bool]]:
        """Deltas of all choices in turn, each at its time, and whether it carries the finish reason."""
        index = 0
        running = [(choice, self._pieces(choice)) for choice in range(len(self._generations))]
        while running:
            for entry in list(running):
                choice, deltas = entry
                delta, last = next(deltas, (None, False))
                if delta is None:
                    running.remove(entry)
                    continue
                await pace(self._fake, self._generations[choice], index)
                if not self._opened:
                    await self._open()
                    await self._roles()
                if last:
                    self._finished.add(choice)
                yield choice, delta, last
                index += 1
                if self._fake.comment_every and index % self._fake.comment_every == 0:
                    await self._exchange.write(self._fake.comment or b": ping\n\n")

    def _pieces(self, choice: int) -> Iterator[tuple[Delta, bool]]:
        """Deltas of one choice; the last one is marked if it has to carry the finish reason."""
        whole = self._fake.whole_calls
        deltas = _whole_calls(self._generations[choice]) if whole else iter(self._generations[choice])
        deltas = grouped(deltas, self._fake.tokens_per_chunk)
        if not self._fake.finish_with_content:
            yield from ((delta, False) for delta in deltas)
            return
        held = next(deltas, None)
        for delta in deltas:
            if held is not None:
                yield held, False
            held = delta
        if held is not None:
            yield held, True

    async def _chunk(self, choices: list[dict[str, Any]], generation: Generation | None, **fields: Any) -> None:
        chunk = {**self._fake.envelope(self._head, choices), **fields}
        self._fake.decorate(chunk, self._prompt, generation)
        await self._write(b"data: " + orjson.dumps(chunk) + b"\n\n")


def _whole_calls(deltas: Generation) -> Iterator[Delta]:
    """Join the pieces of each call; a call that is cut off never shows."""
    held: Delta | None = None
    for delta in deltas:
        if delta.kind != "call":
            yield delta
        elif delta.first:
            held = delta
        elif held is not None:
            held.text += delta.text
            held.tokens += delta.tokens
        if delta.kind == "call" and delta.last and held is not None:
            yield held

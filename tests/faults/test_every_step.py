"""A client that leaves at any step of any task of its request: nothing of it is left over."""

import asyncio
import inspect
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from typing_extensions import override

from proxy.net.tasks import running
from proxy.net.transport import HttpTransport
from tests.connections import in_use
from tests.fakes import FAKES, FakeBackend, FakeModel, LlamaCppFake, Reply, qa, summariser, wait_until, walk
from tests.fakes.model import Brain
from tests.fakes.waiting import Gate
from tests.faults.leftovers import locked
from tests.histories import function
from tests.proxying import Proxy, running_proxy
from tests.raw import Raw, asking, connected

pytestmark = pytest.mark.slow

STEPS = 24 if settings.get_current_profile_name() == "deep" else 5
"""Steps of each kind of request at which its client leaves; deep: about all there are, in strides."""
ALONGSIDE = {"alongside", "ahead", "ahead-run"}
"""Tasks that serve no request."""
FOR_EVER = 60.0
"""Seconds; longer than it is waited for anything."""
TOOL = function("look")
HALF_A_CALL = '<tool_call>{"name": "look", "arguments": {"at": </tool_call>'


def history(tag: str) -> list[dict[str, str]]:
    said = ("user", "assistant")
    return [{"role": said[i % 2], "content": f"{tag} {i} " + "word " * 150} for i in range(11)]


def short(tag: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": tag}]


def posting(path: str, body: dict[str, Any]) -> bytes:
    return asking(body).replace(b"/v1/chat/completions", path.encode(), 1)


def chat(messages: Callable[[str], Any], **fields: Any) -> Callable[[str], bytes]:
    return lambda tag: asking({"model": "m", "stream": True, "messages": messages(tag), **fields})


def responses(tag: str) -> bytes:
    return posting("/v1/responses", {"model": "m", "input": history(tag), "stream": True, "store": True})


def messages(tag: str) -> bytes:
    body = {"model": "m", "messages": history(tag), "stream": True, "max_tokens": 100}
    return posting("/v1/messages", body)


def plain(window: int) -> FakeBackend:
    return LlamaCppFake([FakeModel("m", window)], summariser(qa()))


def walking(window: int) -> FakeBackend:
    return LlamaCppFake([FakeModel("m", window)], summariser(walk(last=500)))


def toolless(window: int) -> FakeBackend:
    return FAKES["ollama"]([FakeModel("m", window, tools=False)], lambda _: Reply(text=HALF_A_CALL))


MADE: dict[str, tuple[Callable[[int], FakeBackend], int, Callable[[str], bytes]]] = {
    "short": (plain, 2048, chat(short)),
    "compacted": (plain, 2048, chat(history, max_tokens=10)),
    "compacted, whole": (plain, 2048, chat(history, max_tokens=10, stream=False)),
    "gone on with": (walking, 1024, chat(short, max_tokens=2000)),
    "corrected": (toolless, 4096, chat(short, tools=[TOOL], max_tokens=100)),
    "responses": (plain, 2048, responses),
    "messages": (plain, 2048, messages),
    "passed on": (plain, 2048, lambda tag: posting("/v1/embeddings", {"model": "m", "input": tag * 99})),
    "explained": (plain, 2048, lambda tag: posting("/spillway/explain", {"model": "m", "messages": history(tag)})),
}


class Silent(Gate):
    """Once the client has left the backend says nothing more: what is not ended would go on for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.left = False

    @override
    async def passage(self, index: int) -> None:
        if self.left:
            await asyncio.sleep(FOR_EVER)

    def held(self, brain: Brain) -> Brain:
        return lambda question: replace(brain(question), gate=self)


class Steps:
    """Counts the steps of all tasks that are begun in a loop, and has something done after one of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.taken = 0
        self._at = -1
        self._then: Callable[[], None] = lambda: None

    def after(self, step: int, then: Callable[[], None]) -> None:
        """Begin to count anew."""
        self.taken, self._at, self._then = 0, step, then

    def task(self, loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> asyncio.Task[Any]:
        """A loop's factory of tasks."""
        counted = self._run(coro) if inspect.iscoroutine(coro) else coro
        return asyncio.Task(counted, loop=loop, **named)

    async def _run(self, coro: Coroutine[Any, Any, Any]) -> Any:
        return await self._stepped(coro)

    @types.coroutine
    def _stepped(self, coro: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        value, error = None, None
        try:
            while True:
                waits = coro.send(value) if error is None else coro.throw(error)
                self.taken += 1
                if self.taken == self._at:
                    self._loop.call_soon(self._then)
                value = error = None
                try:
                    value = yield waits
                except GeneratorExit:
                    coro.close()
                    raise
                except BaseException as raised:  # noqa: BLE001 - is thrown into what is stepped through
                    error = raised
        except StopIteration as ended:
            return ended.value


@contextmanager
def stepping(proxy: Proxy) -> Iterator[Steps]:
    steps, ready = Steps(proxy.loop), threading.Event()

    def begin() -> None:
        proxy.loop.set_task_factory(steps.task)
        ready.set()

    proxy.loop.call_soon_threadsafe(begin)
    assert ready.wait(20)
    yield steps


def left_over(proxy: Proxy, transport: HttpTransport, fake: FakeBackend) -> list[str]:
    tasks = {task.get_name() for task in running()} - ALONGSIDE
    busy = ["a connection"] * in_use(transport)
    return [*tasks, *busy, *(["the backend's work"] if fake.active else [])]


def leave(client: Raw, gate: Silent) -> Callable[[], None]:
    def leaving() -> None:
        gate.left = True
        client.sock.shutdown(2)

    return leaving


def is_over(client: Raw) -> None:
    """Read until the answer, or the connection, has ended."""
    data = b""
    try:
        while not data.endswith((b"0\r\n\r\n", b"}")) and (part := client.sock.recv(65536)):
            data += part
    except OSError:
        return


# A task that is cancelled before its first step has Python 3.11 warn of the coroutine that it was to run.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", sorted(MADE))
@pytest.mark.rows(3)
def test_nothing_is_left_of_a_request_whose_client_leaves_at_any_step(kind: str) -> None:
    make, window, ask = MADE[kind]
    transport = HttpTransport(connect_timeout=20, read_timeout=20)
    with make(window) as fake, running_proxy(fake, transport=transport) as proxy, stepping(proxy) as steps:
        with connected(proxy.url) as client:  # to learn how many steps there are, and all else that is learned once
            client.send(ask("first"))
            is_over(client)
        with connected(proxy.url) as client:
            steps.after(-1, lambda: None)
            client.send(ask("second"))
            is_over(client)
        most = max(steps.taken, 1)
        gate = Silent()
        fake.brain = gate.held(fake.brain)
        for step in sorted({1 + most * number // STEPS for number in range(STEPS)}):
            with connected(proxy.url) as client:
                gate.left = False
                steps.after(step, leave(client, gate))
                client.send(ask(f"at {step}"))
                is_over(client)
            wait_until(lambda: not left_over(proxy, transport, fake))
        assert not locked()

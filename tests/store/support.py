"""What the tests of the stores share: a clock that is set by hand, checkpoints, and a real redis-server."""

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from proxy.core.history.checkpoint import Checkpoint
from proxy.store import Store, StoreLimits, open_store
from tests.fakes.waiting import PATIENT, wait_until

T = TypeVar("T")

NOW = 1_700_000_000.0
DAY = 86400.0


class HandClock:
    """Seconds since the epoch, moved by the test."""

    def __init__(self) -> None:
        self.now = NOW
        self.passing: list[Callable[[float], None]] = []
        """What has clocks of its own."""

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        for other in self.passing:
            other(seconds)


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def checkpoint(number: int = 1, *, scope: str = "scope", text: str = "hello", **changes: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "scope": scope, "digest": digest(number), "covered": number, "replacement": ({"role": "user", "content": text},),
        "tokens_before": 100, "tokens_after": 10, "kind": "compacted", "created": NOW,
    }  # fmt: skip
    return Checkpoint(**fields | changes)


def open_with(url: str, clock: HandClock, **limits: Any) -> Store:
    generous: dict[str, Any] = {"ttl": DAY, "max_bytes": 2**30, "timeout": PATIENT}
    return open_store(url, StoreLimits(clock=clock, **generous | limits))


async def finds(store: Store, *numbers: int) -> int | None:
    """The number of the checkpoint that is found for these digests."""
    found = await store.find("scope", [digest(number) for number in numbers])
    return found.covered if found else None


async def eventually(action: Callable[[], Awaitable[T]], holds: Callable[[T], object]) -> None:
    """Repeat the action until its result is as wanted: a store in trouble is tried again only now and then."""
    deadline = time.monotonic() + 30
    while not holds(await action()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


class RedisServer:
    """A redis-server on a port of loopback that keeps nothing on disk."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = _free_port()
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Redis:
        return Redis(port=self.port, protocol=2, retry=Retry(NoBackoff(), 0))

    def start(self) -> None:
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        nothing_kept = ["--save", "", "--appendonly", "no", "--loglevel", "warning"]
        self._process = subprocess.Popen(["redis-server", *where, *nothing_kept, *self._options], stdout=subprocess.DEVNULL)
        wait_until(self._answers, timeout=20)

    def age(self, seconds: float) -> None:
        """Time passes for what is stored. The server's own clock can't be set, so its times are."""
        with self.client() as client:
            for name in client.scan_iter("*"):
                if (left := client.pttl(name)) >= 0:
                    client.pexpire(name, int(left - 1000 * seconds))

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "redis-server ended by itself"
        with self.client() as client:
            try:
                client.ping()
            except RedisError as error:
                return "NOAUTH" in str(error) or "uthentication" in str(error)
            return True


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def need_redis() -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A running server of the test's own, to do harm to."""
    need_redis()
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests of this process that do it no harm."""
    need_redis()
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()

"""Every kind of store against a model of a few lines, over random operations."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from typing_extensions import override

from proxy.core.history.checkpoint import Checkpoint
from tests.store.support import NOW, HandClock, RedisServer, checkpoint, digest, open_with

T = TypeVar("T")

TTL = 100.0
SCOPES = st.sampled_from(["one", "two"])
NUMBERS = st.integers(0, 5)
KEYS = st.sampled_from(["key one", "key two"])


class StoreMachine(RuleBasedStateMachine):
    """The model: what was put, and when it was last used."""

    lasting = True
    forgets = False
    """Whether values that were not written for long expire, too."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.url = self.make_url()
        self.runner = asyncio.Runner()
        self.held: dict[tuple[str, int], Checkpoint] = {}
        self.used: dict[tuple[str, int], float] = {}
        self.state: dict[str, bytes] = {}
        self.written: dict[str, float] = {}
        self.open()

    def make_url(self) -> str:
        return "memory://"

    def open(self) -> None:
        self.store = open_with(self.url, self.clock, ttl=TTL)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def live(self) -> dict[tuple[str, int], Checkpoint]:
        return {key: item for key, item in self.held.items() if self.used[key] > self.clock.now - TTL}

    @rule(scope=SCOPES, number=NUMBERS, text=st.text(max_size=20), age=st.integers(0, 50))
    def put(self, scope: str, number: int, text: str, age: int) -> None:
        item = checkpoint(number, scope=scope, text=text, created=NOW - age)
        self.run(self.store.put(item))
        self.held[scope, number] = item
        self.used[scope, number] = self.clock.now

    @rule(scope=SCOPES, numbers=st.lists(NUMBERS, max_size=6))
    def find(self, scope: str, numbers: list[int]) -> None:
        expected = next((number for number in numbers if (scope, number) in self.live()), None)
        found = self.run(self.store.find(scope, [digest(number) for number in numbers]))
        if expected is None:
            assert found is None
        else:
            assert found == self.held[scope, expected]
            self.used[scope, expected] = self.clock.now

    @rule(seconds=st.integers(1, 60))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(older_than=st.none() | st.integers(-50, 0).map(lambda age: NOW + age))
    def purge(self, older_than: float | None) -> None:
        old = {key for key, item in self.held.items() if older_than is None or item.created < older_than}
        count = self.run(self.store.purge(older_than=older_than))
        assert len(old & self.live().keys()) <= count <= len(old)  # the expired may have gone already
        for key in old:
            del self.held[key]

    @rule(key=KEYS, value=st.binary(max_size=10))
    def write_value(self, key: str, value: bytes) -> None:
        assert self.run(self.store.value(key, value)) == value
        self.state[key], self.written[key] = value, self.clock.now

    @rule(key=KEYS)
    def read_value(self, key: str) -> None:
        value, expired = self.run(self.store.value(key)), self.forgets and self.clock.now - self.written.get(key, NOW) > TTL / 2
        assert value == self.state.get(key) or (expired and value is None)

    @rule()
    def compare(self) -> None:
        exported = self.run(self.store.export())
        assert sorted(exported, key=repr) == sorted(self.live().values(), key=repr)
        assert [item.created for item in exported] == sorted(item.created for item in exported)

    @precondition(lambda self: self.lasting)
    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        self.open()

    @invariant()
    def is_healthy(self) -> None:
        assert self.store.healthy

    @override
    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()


class MemoryMachine(StoreMachine):
    lasting = False


FEW = settings(stateful_step_count=40)


def test_memory() -> None:
    run_state_machine_as_test(MemoryMachine, settings=FEW)


def test_sqlite(tmp_path: Path) -> None:
    class SqliteMachine(StoreMachine):
        @override
        def make_url(self) -> str:
            return f"sqlite:///{tempfile.mkdtemp(dir=tmp_path)}/spillway.sqlite3"

    run_state_machine_as_test(SqliteMachine, settings=FEW)


def test_redis(redis_server: RedisServer) -> None:
    class RedisMachine(StoreMachine):
        forgets = True

        @override
        def make_url(self) -> str:
            with redis_server.client() as client:
                client.flushall()
            self.clock.passing.append(redis_server.age)
            return redis_server.url

    run_state_machine_as_test(RedisMachine, settings=FEW)

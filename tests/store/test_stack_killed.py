"""A proxy that is killed, or whose disk loses what was written last: the store opens, and what it holds is whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history.checkpoint import Checkpoint
from tests.engine.spillway import spillway_server
from tests.fakes import Gate
from tests.store.stack import Conversation, backend, ready, stalling, summaries
from tests.store.support import HandClock, checkpoint, digest, open_with


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spillway.sqlite3"


def soundness(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as db:
        told: str = db.execute("PRAGMA integrity_check").fetchone()[0]
        return told


def export(path: Path) -> list[Checkpoint]:
    async def read() -> list[Checkpoint]:
        store = open_with(f"sqlite:///{path}", HandClock())
        try:
            return await store.export()
        finally:
            await store.close()

    return asyncio.run(read())


def test_killed_while_a_summary_is_being_written(path: Path, tmp_path: Path) -> None:
    gate, url = Gate(), f"sqlite:///{path}"
    with stalling(gate) as fake, ThreadPoolExecutor(1) as pool:
        with spillway_server([fake.url], log=tmp_path / "first", store=url) as server:
            running = pool.submit(Conversation(server.url, "killed").turn)
            gate.wait_reached(30)
            os.kill(server.pid, signal.SIGKILL)
            assert running.exception() is not None
        gate.open()
        with spillway_server([fake.url], log=tmp_path / "second", store=url) as server:
            assert ready(server.url) == "ok"
            again = Conversation(server.url, "killed")
            assert [again.turn() != "forwarded" for _ in range(3)] == [True, False, False]
            assert "damaged" not in server.log
    assert soundness(path) == "ok"
    assert len(export(path)) == 1


def test_killed_again_and_again_while_many_histories_are_shortened(path: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{path}"
    finished: list[Conversation] = []
    with backend() as fake:
        for life in range(3):
            with (
                ThreadPoolExecutor(4) as pool,
                spillway_server([fake.url], log=tmp_path / f"life {life}", store=url) as server,
            ):
                each = [Conversation(server.url, f"life {life} {n}", bound=60) for n in range(12)]
                turns = [pool.submit(one.turn) for one in each]
                for _, turn in zip(range(4), as_completed(turns, timeout=60), strict=False):
                    turn.result()
                os.kill(server.pid, signal.SIGKILL)
                wait(turns, timeout=60)
                finished += [one for one in each if one.actions]
        assert len(finished) >= 12
        with spillway_server([fake.url], log=tmp_path / "last", store=url) as server:
            asked = summaries(fake)
            for conversation in finished[:-4]:  # the newest may have been answered before they were written
                conversation.url = server.url
            actions = [conversation.turn() for conversation in finished[:-4]]
            assert actions.count("forwarded") >= len(actions) - 4 * 2
            assert summaries(fake) - asked <= 4 * 2
            assert "damaged" not in server.log
    assert soundness(path) == "ok"


def test_a_log_that_lost_its_end_costs_the_newest_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source.sqlite3"
    left = _left_behind(source)
    items = [checkpoint(number, text="x" * 3000) for number in range(30)]

    @given(st.floats(0, 1), st.booleans())
    def cut(share: float, noise: bool) -> None:
        place = tmp_path / "copy.sqlite3"
        for suffix in ("", "-wal", "-shm"):
            Path(f"{place}{suffix}").unlink(missing_ok=True)
        shutil.copy(source, place)
        keep = int(len(left) * share)
        Path(f"{place}-wal").write_bytes(left[:keep] + (b"\xa5" * (len(left) - keep) if noise else b""))
        kept = export(place)
        assert kept == items[: len(kept)]
        assert soundness(place) == "ok"
        assert asyncio.run(_works(place))

    cut()
    assert len(export(source)) == 30


def _left_behind(path: Path) -> bytes:
    """Fill a store, and take its write-ahead log as a power cut would leave it; the file is as it was before that."""
    files = (path, Path(f"{path}-wal"))

    async def fill() -> list[bytes]:
        store = open_with(f"sqlite:///{path}", HandClock())
        for number in range(30):
            await store.put(checkpoint(number, text="x" * 3000))
        contents = [_contents(file) for file in files]
        await store.close()
        return contents

    contents = asyncio.run(fill())
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return contents[1]


def _contents(file: Path) -> bytes:
    return file.read_bytes()


async def _works(path: Path) -> bool:
    store = open_with(f"sqlite:///{path}", HandClock())
    try:
        await store.put(checkpoint(1000))
        return await store.find("scope", [digest(1000)]) == checkpoint(1000) and store.healthy
    finally:
        await store.close()

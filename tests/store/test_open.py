"""Addresses of stores, and the command that looks into one."""

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.cli import store as command
from proxy.core.errors import SettingError
from proxy.core.settings import Settings
from proxy.store.driver import public_url
from tests.store.support import NOW, HandClock, RedisServer, checkpoint, open_with

WRONG = {
    "mysql://host/db": "no such kind of store; allowed are sqlite, sqlite:///PATH, memory://",
    "": "no such kind of store",
    "sqlite:///": "write sqlite:///PATH",
    "sqlite:///:memory:": "memory:// needs no file",
    "memory://x": "no such kind of store",
    "redis://host:port/0": "malformed; write redis://",
    "redis://host?wrong=option": "malformed; write redis://",
    "redis://[half": "malformed; write redis://",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_address_is_told_in_one_line(url: str, clock: HandClock) -> None:
    with pytest.raises(SettingError) as caught:
        open_with(url, clock)
    assert WRONG[url] in str(caught.value)
    assert str(caught.value).startswith("SPILLWAY_STORE=")
    assert "\n" not in str(caught.value)


def test_a_path_that_cannot_be_written_is_told_in_one_line(tmp_path: Path, clock: HandClock) -> None:
    with pytest.raises(SettingError, match=r"^SPILLWAY_STORE='sqlite:///.*': can't open [^\n]*$"):
        open_with(f"sqlite:///{tmp_path}", clock)


def test_a_missing_client_library_is_told(monkeypatch: pytest.MonkeyPatch, clock: HandClock) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "redis"] + ["proxy.store.redis"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(SettingError, match=r"not installed; pip install 'spillway-proxy\[redis\]'"):
        open_with("redis://localhost", clock)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://user:SECRET@host:1/2?password=SECRET", "redis://host:1/2"), ("rediss://:SEC@RET@host", "rediss://host"),
        ("redis://:SECRET@[half", "redis://…"), ("sqlite:////var/lib/x", "sqlite:////var/lib/x"),
    ],
)  # fmt: skip
def test_no_secret_is_shown(url: str, expected: str) -> None:
    assert public_url(url) == expected


# The command

Run = Callable[..., list[str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_(url: str, action: str, days: float | None = None) -> list[str]:
        settings = Settings.model_construct(store=url)
        assert command.run(settings, Namespace(action=action, older_than=days)) == 0
        return capsys.readouterr().out.splitlines()

    return run_


@pytest.fixture(params=["sqlite", "redis"])
def filled(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> str:
    """The address of a store with three checkpoints, from three days."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        with server.client() as client:
            client.flushall()
        url = server.url
    else:
        url = f"sqlite:///{tmp_path}/spillway.sqlite3"

    async def fill() -> None:
        store = open_with(url, clock, ttl=100.0)
        for number in range(3):
            await store.put(checkpoint(number, created=NOW - number * 86400, text="ünï"))
        await store.close()

    asyncio.run(fill())
    return url


def test_stats(filled: str, run: Run) -> None:
    count, size, oldest = run(filled, "stats")
    assert count == "checkpoints 3"
    assert int(size.removeprefix("bytes ")) > 300
    assert oldest == "oldest 2023-11-12T22:13:20+00:00"


def test_export_is_json_by_line_oldest_first(filled: str, run: Run) -> None:
    documents = [json.loads(line) for line in run(filled, "export")]
    assert [document["covered"] for document in documents] == [2, 1, 0]
    assert documents[0]["replacement"] == [{"role": "user", "content": "ünï"}]


def test_purge_by_age_and_of_all(filled: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.cli.store.time.time", lambda: NOW)
    assert run(filled, "purge", 1.5) == ["purged 1 checkpoint"]
    assert run(filled, "purge") == ["purged 2 checkpoints"]
    assert run(filled, "stats") == ["checkpoints 0", "bytes 0", "oldest -"]
    assert run(filled, "export") == []


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("memory://", "lives in the memory of the proxy"), ("sqlite:///nowhere/x.sqlite3", "there is no such file yet"),
        ("redis://127.0.0.1:1/0", "the store can't be reached"), ("mysql://x", "no such kind of store"),
    ],
)  # fmt: skip
def test_a_store_that_is_not_there(
    address: str, reason: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=reason):
        run(address, "stats")
    assert list(tmp_path.iterdir()) == []

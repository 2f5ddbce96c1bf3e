from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proxy.errors import SettingError
from proxy.store.opening import shown
from tests.store.support import HandClock, open_with

WRONG = {
    "mysql://host/db": "no such kind of store; allowed are sqlite:///PATH, memory://",
    "spillway.sqlite3": "no such kind of store",
    "": "no such kind of store",
    "SQLITE:///x": "no such kind of store",
    "sqlite://x.sqlite3": "write sqlite:///PATH",
    "sqlite:///": "it names no file; memory:// keeps",
    "sqlite:///:memory:": "it names no file; memory:// keeps",
    "sqlite:///a\0b": "it names no file",
    "sqlite:///~nobody-of-that-name/x": "there is no such user",
    "memory://x": "memory:// takes nothing after it",
    "redis://host:port/0": "malformed; write redis://",
    "redis://host:99999": "malformed; write redis://",
    "redis://host/nine": "malformed; write redis://",
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


@pytest.mark.parametrize("where", ["file/x.sqlite3", "file/deep/x.sqlite3", "folder"])
def test_a_path_that_cannot_be_written_is_told_in_one_line(
    where: str, tmp_path: Path, clock: HandClock
) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingError, match=r"^SPILLWAY_STORE='sqlite:///.*': can't open [^\n]*$"):
        open_with(f"sqlite:///{tmp_path}/{where}", clock)


def test_a_missing_client_library_is_told(monkeypatch: pytest.MonkeyPatch, clock: HandClock) -> None:
    monkeypatch.delitem(sys.modules, "proxy.store.redis", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "redis"] + ["proxy.store.redis_wire"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(SettingError, match=r"not installed; pip install 'spillway-proxy\[redis\]'"):
        open_with("redis://localhost", clock)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://user:SECRET@host:1/2?password=SECRET", "redis://host:1/2"),
        ("rediss://:SEC@RET@host", "rediss://host"),
        ("redis://:SECRET@[half", "redis://…"),
        ("sqlite:////var/lib/x", "sqlite:////var/lib/x"),
    ],
)
def test_no_secret_is_shown(url: str, expected: str) -> None:
    assert shown(url) == expected

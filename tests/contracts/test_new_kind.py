"""A kind of backend is one file and one line: discovery, settings, commands and access control know it by that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.process import running
from proxy.cli.launch import LISTENING
from tests.fakes import FakeModel, GenericFake

SOURCE = Path(__file__).parent.parent.parent / "proxy"
HOST = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.79"
"""Where nobody else listens."""
TOLD = {"SPILLWAY_DISCOVER": HOST, "SPILLWAY_STORE": "memory://"}
SPILLWAY = [sys.executable, "-m", "proxy"]
FILE = """
from proxy.backends.base import Backend


class Oven(Backend):
    kind, owner, title, port = "oven", "fake", "The Oven", 4321
    start = listen = "preheat it"
    admin = ("POST */melt",)
"""
LINES = {"from proxy.backends.vllm import Vllm": "from proxy.backends.oven import Oven\n", "Generic())": "Oven(), "}
"""The line, and the import that goes with it, each before what is there."""


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Spillway that has one kind more, which looks for backends where nobody else listens."""
    (tmp_path / "proxy").mkdir()
    for each in SOURCE.iterdir():
        (tmp_path / "proxy" / each.name).symlink_to(each)
    (tmp_path / "proxy/backends").unlink()
    shutil.copytree(SOURCE / "backends", tmp_path / "proxy/backends")
    (tmp_path / "proxy/backends/oven.py").write_text(FILE)
    table = tmp_path / "proxy/backends/__init__.py"
    text = table.read_text()
    for before, line in LINES.items():
        assert text.count(before) == 1
        text = text.replace(before, line + before)
    table.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPILLWAY_DISCOVER", HOST)
    return tmp_path


def told(*arguments: str) -> str:
    """All that a command writes."""
    done = subprocess.run([*SPILLWAY, *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_it_is_found_served_and_guarded(kitchen: Path) -> None:
    with GenericFake([FakeModel("loaf", 6144)], place=(HOST, 4321)):
        assert " oven " in told("check")
        with running([*SPILLWAY, "serve", "--port", "0"], kitchen / "log", TOLD) as server:
            assert f"Found oven at http://{HOST}:4321." in server.wait_for("Found")
            url = server.wait_for(LISTENING).rpartition(LISTENING)[2].strip()
            assert "loaf" in httpx.get(f"{url}/models", timeout=60).text
            assert httpx.post(f"{url}/melt", json={"model": "loaf"}, timeout=60).status_code == 403


def test_settings_and_texts_name_it(kitchen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_DEMO", "0")
    assert "The Oven (4321)" in told("serve")
    monkeypatch.setenv("SPILLWAY_BACKENDS", json.dumps([{"url": f"http://{HOST}:1", "kind": "oven"}]))
    assert "reheat it" in told("check")
    (kitchen / "spillway.toml").write_text('[[backends]]\nurl = "http://h"\nkind = "kiln"\n')
    monkeypatch.delenv("SPILLWAY_BACKENDS")
    refused = told("check")
    assert "spillway.toml:3: SPILLWAY_BACKENDS__0__KIND='kiln': must be one of auto, " in refused
    assert "oven" in refused

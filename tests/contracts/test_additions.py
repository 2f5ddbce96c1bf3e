"""A kind of backend is one file and one line, a dialect one folder and one line: everything else knows them by that."""

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
from tests.fakes import FakeModel, GenericFake, LlamaCppFake, scripted

SOURCE = Path(__file__).parent.parent.parent / "proxy"
HOST = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.79"
"""Where nobody else listens."""
TOLD = {"SPILLWAY_DISCOVER": HOST, "SPILLWAY_STORE": "memory://"}
SPILLWAY = [sys.executable, "-m", "proxy"]
OVEN = """
from proxy.backends.base import Backend


class Oven(Backend):
    kind, owner, title, port = "oven", "fake", "The Oven", 4321
    start = listen = "preheat it"
    admin = ("POST */melt",)
"""
RECIPE = """
from dataclasses import replace

from proxy.core.jsontext import dumps, loads
from proxy.dialects.chat import CHAT


def read(raw, model):
    return CHAT.read(dumps(loads(raw) | {"model": model}))


RECIPE = replace(
    CHAT, name="recipe", path="/x/models/{model}:chat", read=read, error=lambda error: {"spilt": error["message"]}
)
"""


def with_added(folder: Path, registry: str, file: str, text: str, lines: dict[str, str]) -> Path:
    """Make a Spillway in a folder, to whose package `registry` a file is added, and lines each before what is there."""
    (folder / "proxy").mkdir()
    for each in SOURCE.iterdir():
        (folder / "proxy" / each.name).symlink_to(each)
    (folder / "proxy" / registry).unlink()
    shutil.copytree(SOURCE / registry, folder / "proxy" / registry)
    added, table = (folder / "proxy" / registry / name for name in (file, "__init__.py"))
    added.parent.mkdir(exist_ok=True)
    added.write_text(text)
    code = table.read_text()
    for before, line in lines.items():
        assert code.count(before) == 1
        code = code.replace(before, line + before)
    table.write_text(code)
    return folder


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spillway with one kind of backend more, which looks for backends where nobody else listens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPILLWAY_DISCOVER", HOST)
    lines = {"from proxy.backends.vllm import": "from proxy.backends.oven import Oven\n", "Generic())": "Oven(), "}
    return with_added(tmp_path, "backends", "oven.py", OVEN, lines)


def told(*arguments: str) -> str:
    """All that a command writes."""
    done = subprocess.run([*SPILLWAY, *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_kind_is_found_served_and_guarded(kitchen: Path) -> None:
    with GenericFake([FakeModel("loaf", 6144)], place=(HOST, 4321)):
        assert " oven " in told("check")
        with running([*SPILLWAY, "serve", "--port", "0"], kitchen / "log", TOLD) as server:
            assert f"Found The Oven at http://{HOST}:4321: loaf" in server.wait_for("Found")
            url = server.wait_for(LISTENING).rpartition(LISTENING)[2].strip()
            assert "loaf" in httpx.get(f"{url}/models", timeout=60).text
            assert httpx.post(f"{url}/melt", json={"model": "loaf"}, timeout=60).status_code == 403


def test_settings_and_texts_name_a_kind(kitchen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_DEMO", "0")
    assert "The Oven (4321)" in told("serve")
    monkeypatch.setenv("SPILLWAY_BACKENDS", json.dumps([{"url": f"http://{HOST}:1", "kind": "oven"}]))
    assert "reheat it" in told("check")
    (kitchen / "spillway.toml").write_text('[[backends]]\nurl = "http://h"\nkind = "kiln"\n')
    monkeypatch.delenv("SPILLWAY_BACKENDS")
    refused = told("check")
    assert "spillway.toml:3: SPILLWAY_BACKENDS__0__KIND='kiln': must be one of auto, " in refused
    assert "oven" in refused


def test_a_dialect_may_have_the_model_in_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = {
        "from proxy.dialects.responses import": "from proxy.dialects.recipe import RECIPE\n",
        "        CHAT,": "RECIPE,",
    }
    with_added(tmp_path, "dialects", "recipe/__init__.py", RECIPE, lines)
    models = [FakeModel("rye", 6144), FakeModel("loaf", 6144)]
    with (
        LlamaCppFake(models, scripted(["baked"])) as fake,
        running([*SPILLWAY, "serve", "--port", "0", "--backend", fake.url], tmp_path / "log", TOLD) as server,
        httpx.Client(base_url=server.wait_for(LISTENING).rpartition(LISTENING)[2].strip()[:-3], timeout=60) as client,
    ):
        body = {"messages": [{"role": "user", "content": "hello"}]}
        answer = client.post("/x/models/loaf:chat", json=body)
        assert "baked" in answer.text
        assert fake.chats()[-1].json["model"] == "loaf"
        wrong = client.post("/x/models/loaf:chat", json={"messages": "hello"})
        assert (wrong.status_code, *wrong.json()) == (400, "spilt")
        assert "/x/models/{model}:chat" in client.get("/openapi.json").json()["paths"]

"""A kind is one file and one line, a dialect one folder and one line, a reason to compact one condition: all else follows."""

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


def with_lines(folder: Path, registry: str, lines: dict[str, str], table: str = "__init__.py") -> Path:
    """Make a Spillway in a folder, in whose package `registry` a file has more lines, each before what is there."""
    (folder / "proxy").mkdir()
    for each in SOURCE.iterdir():
        (folder / "proxy" / each.name).symlink_to(each)
    (folder / "proxy" / registry).unlink()
    shutil.copytree(SOURCE / registry, folder / "proxy" / registry)
    changed = folder / "proxy" / registry / table
    code = changed.read_text()
    for before, line in lines.items():
        assert code.count(before) == 1
        code = code.replace(before, line + before)
    changed.write_text(code)
    return folder


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spillway with one kind of backend more, which looks for backends where nobody else listens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPILLWAY_DISCOVER", HOST)
    lines = {"from proxy.backends.vllm import": "from proxy.backends.oven import Oven\n", "Generic())": "Oven(), "}
    folder = with_lines(tmp_path, "backends", lines)
    (folder / "proxy" / "backends" / "oven.py").write_text(OVEN)
    return folder


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
    lines = {"from proxy.dialects.responses import": "from proxy.dialects.recipe import RECIPE\n", "        CHAT,": "RECIPE,"}
    with_lines(tmp_path, "dialects", lines)
    (tmp_path / "proxy" / "dialects" / "recipe.py").write_text(RECIPE)
    models = [FakeModel("rye", 6144), FakeModel("loaf", 6144)]
    told = {**TOLD, "SPILLWAY_MODELS": '{"rye": {"managed": false}}'}
    with (
        LlamaCppFake(models, scripted(["baked"])) as fake,
        running([*SPILLWAY, "serve", "--port", "0", "--backend", fake.url], tmp_path / "log", told) as server,
        httpx.Client(base_url=server.wait_for(LISTENING).rpartition(LISTENING)[2].strip()[:-3], timeout=60) as client,
    ):
        body = {"messages": [{"role": "user", "content": "hello"}]}
        answer = client.post("/x/models/loaf:chat", json=body)
        assert "baked" in answer.text
        assert fake.chats()[-1].json["model"] == "loaf"
        assert client.post("/x/models/rye:chat", json=body).status_code == 404  # the backend has no such path
        wrong = client.post("/x/models/loaf:chat", json={"messages": "hello"})
        assert (wrong.status_code, *wrong.json()) == (400, "spilt")
        assert "/x/models/{model}:chat" in client.get("/openapi.json").json()["paths"]


def test_a_reason_to_compact_may_be_the_number_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reason = "    if len(facts.history) > 20:\n        goal = facts.tokens // 2\n"
    with_lines(tmp_path, "compaction", {"    return Compact(goal, too_large) if": reason}, "decision.py")
    with (
        LlamaCppFake([FakeModel("m", 32_768)], scripted(["Noted."] * 4)) as fake,
        running([*SPILLWAY, "serve", "--port", "0", "--backend", fake.url], tmp_path / "log", TOLD) as server,
        httpx.Client(base_url=server.wait_for(LISTENING).rpartition(LISTENING)[2].strip(), timeout=60) as client,
    ):
        said = [f"{number}: I own {' '.join(f'thing-{number}-{n}' for n in range(30))}." for number in range(21)]
        talk = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
        actions = [client.post("/chat/completions", json={"messages": talk[:end]}).headers for end in (19, 21)]
        assert [each["x-spillway-action"] for each in actions] == ["forwarded", "compacted"]

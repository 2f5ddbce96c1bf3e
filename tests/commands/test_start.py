"""What a command imports: only what it needs, so that it starts quickly and stays small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx

from benchmarks.process import Running, running
from proxy.commands.running import LISTENING
from tests.fakes import FakeModel, LlamaCppFake

LATER = {
    "fastapi",
    "jsonschema",
    "opentelemetry",
    "proxy.api.own",
    "proxy.commands.check",
    "proxy.commands.terminal",
    "proxy.demo",
    "proxy.store.sqlite",
    "pygments",
    "redis",
    "rich",
    "snowballstemmer",
    "sqlite3",
    "tokenizers",
}
"""What takes long to import, or much memory, and only some requests or commands need."""
VOCABULARIES = "proxy.tokens.data"
"""The folder in which they lie is a package, imported when one is read."""
_IMPORTED = re.compile(r"^import time:.*\|\s*(\S+)$", re.MULTILINE)


def imported(server: Running) -> set[str]:
    """Modules imported so far: Python writes each on a line of its own (`-X importtime`)."""
    return set(_IMPORTED.findall(server.log.read_text(encoding="utf-8")))


def test_what_not_every_request_needs_is_imported_when_one_does(tmp_path: Path) -> None:
    serve = [sys.executable, "-X", "importtime", "-m", "proxy", "serve", "--port", "0", "--backend"]
    told = {"SPILLWAY_STORE": "memory://"}
    with (
        LlamaCppFake([FakeModel("m", 4096)]) as fake,
        running([*serve, fake.url], tmp_path / "log", told) as server,
    ):
        url = server.wait_for(LISTENING).rpartition(LISTENING)[2].strip()
        at_ready = imported(server)
        asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        assert httpx.post(f"{url}/chat/completions", json=asked, timeout=60).status_code == 200
        after_chat = imported(server)
        assert httpx.get(f"{url}/models", timeout=60).status_code == 200
        after_list = imported(server)
    assert "proxy.relay" in at_ready
    assert (LATER | {VOCABULARIES}) & at_ready == set()
    assert after_chat & (LATER | {VOCABULARIES}) == {VOCABULARIES}
    assert {"fastapi", "proxy.api.own"} <= after_list


def test_help_imports_nothing_but_the_parser() -> None:
    code = "import sys; from proxy.cli import main\ntry:\n main(['--help'])\nfinally:\n print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.strip().split("\n")[-1].split())
    assert "argparse" in modules
    assert (
        not {"asyncio", "httpx", "pydantic", "starlette", "uvicorn", "proxy.app", "proxy.settings"} & modules
    )

"""The packages of OpenAI, Anthropic, Vercel and Ollama for npm, installed once per machine into the temporary directory."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

from tests.e2e.clients.installing import Missing, once

__all__ = ["Missing", "installed", "run"]

HERE = Path(__file__).parent
FILES = ("package.json", "chat.mjs", "streams.mjs", "loop.mjs")
INSTALL = (
    *("install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--fetch-retries=1"),
    *("--fetch-retry-mintimeout=100", "--fetch-retry-maxtimeout=1000", "--loglevel=error"),
)


def installed() -> Path:
    """The folder with the scripts and their `node_modules`; several processes may ask at once.

    Raises:
        Missing: it can't be had on this machine now.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Missing("node and npm are not installed")

    def build(folder: Path) -> list[str]:
        for name in FILES:
            shutil.copy(HERE / name, folder / name)
        return [npm, *INSTALL]

    return once("npm", b"".join((HERE / name).read_bytes() for name in FILES), build)


def run(folder: Path, script: str = "chat.mjs", **job: Any) -> list[dict[str, Any]]:
    """Do a job of a script; a warning is as bad as an error."""
    node = shutil.which("node") or "node"
    command = [node, str(folder / script), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return cast("list[dict[str, Any]]", json.loads(done.stdout))

"""The openai package for npm, installed once per machine into the system's temporary directory."""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 60.0
FILES = ("package.json", "chat.mjs")


class Missing(Exception):
    """There is no node or npm here, or the registry does not answer; the text says which."""


def installed() -> Path:
    """The folder with `chat.mjs` and its `node_modules`; several processes may ask at once.

    Raises:
        Missing: it can't be had on this machine now.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Missing("node and npm are not installed")
    content = b"".join((HERE / name).read_bytes() for name in FILES)
    root = Path(tempfile.gettempdir()) / f"spillway-test-npm-{getpass.getuser()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / hashlib.sha256(content).hexdigest()[:24]
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(npm, folder)
    return folder


def _install(npm: str, folder: Path) -> None:
    fresh = folder.with_suffix(".installing")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for name in FILES:
        shutil.copy(HERE / name, fresh / name)
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--ignore-scripts",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=100",
        "--fetch-retry-maxtimeout=1000",
        "--loglevel=error",
    ]
    try:
        done = subprocess.run(
            command, cwd=fresh, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"npm install took longer than {SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise Missing(f"npm install failed: {' '.join(done.stderr.split())[:200]}")
    fresh.rename(folder)

"""Clients that can't share the project's environment, installed once per machine into the temporary directory."""

import fcntl
import getpass
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

SECONDS = 90.0
"""Longest time that an installation may take."""
RETRY = 600.0
"""Seconds after which what could not be installed is tried again."""


class Missing(Exception):
    """The client can't be had on this machine now; the text says why."""


def once(name: str, content: bytes, build: Callable[[Path], Sequence[str]]) -> Path:
    """The folder for this content, built if there is none yet; several processes may ask at once.

    `build` fills an empty folder as far as it can, and gives the command that installs the rest, to be run there.

    Raises:
        Missing: the command failed or took too long.
    """
    root = Path(tempfile.gettempdir()) / f"spillway-test-{name}-{getpass.getuser()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / hashlib.sha256(content).hexdigest()[:24]
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        given_up = folder.with_suffix(".missing")
        if given_up.is_file() and time.time() - given_up.stat().st_mtime < RETRY:  # noqa: TID251 - of files
            raise Missing(given_up.read_text())
        if not folder.is_dir():
            fresh = folder.with_suffix(".installing")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            try:
                _run(build(fresh), fresh)
            except Missing as missing:
                # Who waits for the lock must not wait as long again.
                given_up.write_text(str(missing))
                raise
            fresh.rename(folder)
    return folder


def _run(command: Sequence[str], folder: Path) -> None:
    what = " ".join(command[:4])
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"{what} took longer than {SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise Missing(f"{what} failed: {' '.join(done.stderr.split())[-200:]}")


def python_packages(*requirements: str) -> Path:
    """A folder for `PYTHONPATH` with these packages and all that they need.

    Raises:
        Missing: they can't be had.
    """

    def build(folder: Path) -> list[str]:
        uv = shutil.which("uv")
        if uv is not None:
            return [uv, "pip", "install", "--quiet", f"--python={sys.executable}", f"--target={folder}", *requirements]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        return [*pip, f"--target={folder}", *requirements]

    return once("python", repr((sys.version, requirements)).encode(), build)

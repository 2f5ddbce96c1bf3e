"""The proxy as a process of its own, in front of backends that go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from tests.faults.backend import Faulty
from tests.faults.stage import WINDOW

LISTENS = "Spillway listening on "


class Served:
    """A running proxy; what it logs goes to a file."""

    def __init__(self, backends: Sequence[Faulty], folder: Path, settings: Mapping[str, str]) -> None:
        self.log = folder / "proxy.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPILLWAY_")},  # noqa: TID251 - handed on
            "SPILLWAY_BACKENDS": orjson.dumps([{"url": fake.url, "name": fake.kind} for fake in backends]).decode(),
            "SPILLWAY_MODELS": orjson.dumps({"m-generic": {"window": WINDOW}}).decode(),
            "SPILLWAY_STORE": f"sqlite:///{folder}/store.sqlite3",
            "SPILLWAY_PORT": "0",
            **settings,
        }
        self._process: subprocess.Popen[bytes]
        self.url = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.faults.served"]
        pipe = subprocess.PIPE
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=self._environment)
        self.url = self._line(LISTENS).removesuffix("/v1")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def held(self) -> dict[str, int]:
        """What it holds; see `tests.faults.served`."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        told: dict[str, int] = orjson.loads(self._line("held "))
        return told

    def troubles(self) -> list[str]:
        """What the log tells of a mistake in the proxy itself: a line, or a trace with what is said in front of it."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        found = [line for line in lines if " failed: " in line and ": task " in line]
        return found + [_trace(lines, at) for at, line in enumerate(lines) if "Traceback" in line]

    def _line(self, beginning: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode().rstrip("\n")
            if text.startswith(beginning):
                return text.removeprefix(beginning)
        raise RuntimeError(f"the proxy ended:\n{self.log.read_text('utf-8', 'replace')[-4000:]}")


def _trace(lines: list[str], at: int) -> str:
    """A trace to its end, which is the first line after it that is not indented, and the line in front of it."""
    end = next((n for n in range(at + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    return "\n".join(lines[max(0, at - 1) : end + 1])

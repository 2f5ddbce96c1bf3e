"""Servers of others as processes: started on a free port, waited for, and ended with all that they started."""

import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.fakes import wait_until

START_SECONDS = 600.0
"""vLLM imports and compiles for minutes when the machine is busy."""
_ENDING = 20.0
_PORTS = range(20_000, 30_000)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: the root of its API, and its process, whose group has nothing else in it."""

    url: str
    pid: int
    log: Path

    def busy_seconds(self) -> float:
        """CPU time that it and its children have used so far, in seconds."""
        ticks = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and self._is_mine(fields := _stat(entry), int(entry.name)):
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _is_mine(self, fields: list[str], pid: int) -> bool:
        return bool(fields) and self.pid in {pid, int(fields[2])}


@contextmanager
def serving(command: Sequence[str | Path], *, port: int, ready: str, log: Path, env: Mapping[str, str]) -> Iterator[Server]:
    """Run `command`, which listens on `port`, until its path `ready` answers with 200.

    Raises:
        RuntimeError: it ended before it served; the text has the end of its log.
        AssertionError: it did not serve in time.
    """
    url = f"http://127.0.0.1:{port}"
    inherited = dict(os.environ)  # noqa: TID251 - handed to a child process, not read
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, env={**inherited, **env}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or _answers(url + ready), START_SECONDS)
        if process.poll() is not None:
            told = log.read_text("utf-8", "replace")[-3000:]
            raise RuntimeError(f"it ended with {process.returncode}:\n{told}")
        yield Server(url, process.pid, log)
    finally:
        _end(process)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on, and that no other program is given meanwhile.

    It is below those that systems hand out: an engine takes a minute until it listens.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("every port is taken")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_ENDING)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _stat(entry: Path) -> list[str]:
    """Fields of `/proc/PID/stat` behind the name: state, parent, group, …; none of a process that has gone."""
    try:
        return (entry / "stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return []

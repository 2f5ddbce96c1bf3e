"""Processes under measurement: start them, wait until they listen, read their CPU time and memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

STARTUP = 30.0
"""Seconds a process may take until it listens."""


class Running:
    """A started process and what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pids(self) -> list[int]:
        """The process and its children (nginx's worker)."""
        pid = self.process.pid
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
            return [pid, *(int(child) for child in children.split())]
        return [pid]

    def wait_for(self, marker: str) -> str:
        """The first line of output that contains `marker`.

        Raises:
            RuntimeError: the process ended, or did not say so in time; the text is its output.
        """
        deadline = time.monotonic() + STARTUP
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text(encoding="utf-8", errors="replace").split("\n"):
                if marker in line:
                    return line
            time.sleep(0.02)
        raise self._failed(f"did not say {marker!r}")

    def wait_until_listening(self, port: int, seconds: float = STARTUP) -> None:
        """Wait until something accepts connections on `port` of 127.0.0.1.

        Raises:
            RuntimeError: the process ended, or nothing did in time; the text is its output.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
            time.sleep(0.02)
        raise self._failed(f"does not listen on port {port}")

    def _failed(self, how: str) -> RuntimeError:
        output = self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
        return RuntimeError(f"{self.process.args!r} {how}:\n{output}")


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, foreign: bool = False
) -> Iterator[Running]:
    """Run `command` with its output in `log`; end it on exit. A `foreign` one is not told the user's environment."""
    inherited = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251 - handed on
        if (name in ("PATH", "LANG") if foreign else not name.startswith("SPILLWAY_"))
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**inherited, **(environment or {})}
        )
    try:
        yield Running(process, log)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def python(*arguments: str) -> list[str]:
    """A command line for this interpreter."""
    return [sys.executable, *arguments]


def free_port() -> int:
    """A port that was free a moment ago, for servers that can't pick one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time the processes have used, user and system, all threads, in seconds."""
    return sum(_cpu(pid) for pid in pids)


def _cpu(pid: int) -> float:
    # Linux: the CPU clock of another process, in nanoseconds (kernel: CPUCLOCK_SCHED of ~pid);
    # /proc counts in ticks of 10 ms.
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pids: Iterable[int]) -> float:
    """Resident memory of the processes, in MiB."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").split("\n"):
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total / 1024

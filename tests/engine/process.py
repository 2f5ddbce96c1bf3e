"""Server processes for tests: started, waited for by a line of their output, and always ended."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
"""The repository."""


class ServerProcess:
    """A running server. Everything it printed is in `log`, standard output and standard error together."""

    def __init__(self, arguments: Sequence[str], ready: str, log: Path, env: Mapping[str, str] | None) -> None:
        self.log = log
        self._ready = ready
        self._line = ""
        self._seen = threading.Event()
        # Standard input stays open as long as this process lives: a server started with `--stay-with-parent`
        # ends when it closes, also when the tests were killed.
        self._process = subprocess.Popen(
            [sys.executable, "-u", *arguments], cwd=ROOT, env=None if env is None else dict(env), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._pump = threading.Thread(target=self._copy, daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def wait_ready(self, seconds: float) -> str:
        """The rest of the line that begins with the ready word.

        Raises:
            RuntimeError: the server ended before, or took longer than `seconds`.
        """
        self._seen.wait(seconds)
        if not self._line:
            raise RuntimeError(f"server {self._failure(seconds)}:\n{self.text()}")
        return self._line.removeprefix(self._ready).strip()

    def stop(self, seconds: float = 10.0) -> int:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pump.join(seconds)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return self._process.returncode

    def _failure(self, seconds: float) -> str:
        if self._seen.is_set():  # its output has ended, so it is about to end
            return f"ended with {self._process.wait(seconds)}"
        return f"was not ready after {seconds} s"

    def _copy(self) -> None:
        output: IO[bytes] | None = self._process.stdout
        if output is None:
            return
        with self.log.open("wb", buffering=0) as log:
            for line in output:
                log.write(line)
                text = line.decode("utf-8", "replace")
                if not self._seen.is_set() and text.startswith(self._ready):
                    self._line = text
                    self._seen.set()
        self._seen.set()


@contextmanager
def running(
    arguments: Sequence[str], *, ready: str, log: Path, env: Mapping[str, str] | None = None, seconds: float = 60.0
) -> Iterator[tuple[ServerProcess, str]]:
    """Run `python arguments…`; gives the process and what followed `ready` on the line it printed."""
    process = ServerProcess(arguments, ready, log, env)
    try:
        yield process, process.wait_ready(seconds)
    finally:
        process.stop()

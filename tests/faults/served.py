"""`python -m tests.faults.served`: the proxy as it is served, telling what it holds when a line comes in."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from pathlib import Path

import orjson

from proxy.cli import main
from tests.faults.objects import all_of


def held() -> dict[str, int]:
    """What the process holds: tasks, threads, open files, and KiB of memory."""
    gc.collect()
    tasks = [task for task in all_of(asyncio.Task) if not task.done()]
    locks = [lock for lock in all_of(asyncio.Lock) if lock.locked()]
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines() if ":" in line
    )
    return {
        "tasks": len(tasks),
        "locks": len(locks),
        "threads": int(status["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names are all that is wanted
        "memory": int(status["VmRSS"].split()[0]),
    }


def _tell() -> None:
    for _ in sys.stdin:
        sys.stdout.buffer.write(b"held " + orjson.dumps(held()) + b"\n")
        sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)  # whoever started it is gone


if __name__ == "__main__":
    threading.Thread(target=_tell, daemon=True).start()
    sys.exit(main(["serve"]))

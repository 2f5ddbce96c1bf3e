"""How many at once: paced streams, idle connections and the memory of each, with one process and with two replicas.

`python -m benchmarks.scale [--streams 1000] [--idle 5000] [--layouts "bare,1 process"]`. Each layout stands in front of the same
upstream, one after the other. First as many idle connections are opened as are asked for, and each has one request answered. While all of them
stay open the streams run, each a conversation of its own; every one is read to its end and checked word by word. Then 200 streams
run with nobody else there, for CPU per chunk. Whatever is refused, broken off or wrong is an error.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from benchmarks.checking import fault, said
from benchmarks.client import Answer, Client, chat, until
from benchmarks.process import Running, cpu_seconds, free_port, python, rss_mib, running
from benchmarks.targets import NGINX, bare

CHUNKS, PAUSE_US = 120, 250_000
"""Of the many streams: four chunks a second, for half a minute, so that the first still run when the last have begun."""
FIRST = 4
"""One in so many of them is begun before the others. What these add is what a stream takes: what each process needs once, such as
its vocabulary, is there by then."""
PACED, PACED_CHUNKS, PACED_PAUSE_US = 200, 100, 50_000
"""Of those whose CPU is measured: the pace of a fast local model."""
ROUNDS = 20
"""Of few connections, to begin with: many at the same time are taken by one process."""
AT_ONCE = 100
"""Connections that are opened at the same time."""
QUIET = 0.05
"""Seconds of CPU in a second below which a process does not start any more."""
REDIS = shutil.which("redis-server") or "redis-server"
_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_GATEWAY = """
worker_processes 2; daemon off; pid {folder}/gateway.pid; error_log stderr warn; {user}
worker_rlimit_nofile 65536;
events {{ worker_connections 20000; }}
http {{
  access_log off; client_max_body_size 64m; keepalive_timeout 600s; keepalive_requests 100000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream replicas {{ {servers} keepalive 256; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host $host; proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 900s;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Layout:
    """What is measured: where it listens, and the processes whose CPU and memory count, by name."""

    port: int
    processes: Sequence[Running]

    @property
    def pids(self) -> list[int]:
        """All of them, those that serve for another one too."""
        return [pid for each in self.processes for pid in each.pids]


@dataclass(frozen=True)
class Figures:
    """What came out. Memory in kB (1,000 bytes) for each, CPU in microseconds."""

    idle_kb: float
    stream_kb: float
    first_ms: float
    errors: int
    resident_mib: float
    share: str
    cpu_us: float


# -- what is measured --------------------------------------------------------------------------------


@contextmanager
def _spillway(upstream: int, folder: Path, store: str, name: str = "") -> Iterator[Layout]:
    command = python("-m", "proxy", "serve", "--port", "0")
    command += ["--backend", f"http://127.0.0.1:{upstream}"]
    environment = {"SPILLWAY_STORE": store, "SPILLWAY_MAX_CONNECTIONS": "20000", "SPILLWAY_LOG_LEVEL": "warning"}
    with running(command, folder / f"spillway{name}.log", environment) as process:
        line = process.wait_for("Spillway listening on ")
        _wait_until_quiet(process)
        yield Layout(int(line.rsplit(":", 1)[1].split("/", 1)[0]), [process])


def _wait_until_quiet(process: Running) -> None:
    used = -1.0
    while cpu_seconds(process.pids) - used > QUIET:
        used = cpu_seconds(process.pids)
        time.sleep(1.0)


def _single(upstream: int, folder: Path) -> AbstractContextManager[Layout]:
    return _spillway(upstream, folder, f"sqlite:///{folder}/store.sqlite3")


@contextmanager
def _bare(upstream: int, folder: Path) -> Iterator[Layout]:
    with bare(upstream, folder) as target:
        assert target.running is not None
        yield Layout(target.port, [target.running])


@contextmanager
def gateway(port: int, behind: Sequence[int], folder: Path) -> Iterator[None]:
    """Run nginx on a port of loopback, which gives each of those behind it a request in turn."""
    user = "user root;" if folder.owner() == "root" else ""
    servers = " ".join(f"server 127.0.0.1:{each};" for each in behind)
    config = folder / "gateway.conf"
    config.write_text(_GATEWAY.format(folder=folder, user=user, port=port, servers=servers), encoding="utf-8")
    with running([NGINX, "-p", str(folder), "-c", str(config)], folder / "gateway.log") as process:
        process.wait_until_listening(port)
        yield


@contextmanager
def _replicas(upstream: int, folder: Path) -> Iterator[Layout]:
    """Two, with one Redis, behind nginx; its memory and CPU do not count."""
    redis, port = free_port(), free_port()
    command = [REDIS, "--port", str(redis), "--save", "", "--dir", str(folder)]
    with ExitStack() as stack:
        stack.enter_context(running(command, folder / "redis.log")).wait_until_listening(redis)
        store = f"redis://127.0.0.1:{redis}/0"
        one, two = (stack.enter_context(_spillway(upstream, folder, store, name=name)) for name in ("-one", "-two"))
        stack.enter_context(gateway(port, [one.port, two.port], folder))
        yield Layout(port, [*one.processes, *two.processes])


LAYOUTS: dict[str, Callable[[int, Path], AbstractContextManager[Layout]]] = {
    "bare": _bare,
    "1 process": _single,
    "2 replicas": _replicas,
}


# -- how it is measured ------------------------------------------------------------------------------


def asked(number: int, chunks: int, pause_us: int) -> bytes:
    """A conversation that is no other's."""
    texts = [("user", f"Conversation {number}"), ("assistant", "Yes?"), ("user", f"bench:{chunks}:{pause_us}")]
    return chat([{"role": role, "content": text} for role, text in texts], stream=True)


async def _connect(port: int, number: int) -> list[Client]:
    clients: list[Client] = []
    while len(clients) < number:
        some = min(AT_ONCE, number - len(clients))
        clients += await asyncio.gather(*(Client.connect(port) for _ in range(some)))
    return clients


async def _idle(port: int, number: int) -> tuple[list[Client], int]:
    """Connections that have had one answer each, and how many did not get it."""
    clients = await _connect(port, number)
    bad = 0
    for start in range(0, number, AT_ONCE):
        some = clients[start : start + AT_ONCE]
        answers = await asyncio.gather(*(each.send(_HEALTH) for each in some), return_exceptions=True)
        bad += sum(isinstance(answer, BaseException) for answer in answers)
    return clients, bad


async def _stream(port: int, pids: list[int], number: int, chunks: int, pause_us: int) -> tuple[float, ...]:
    """Kilobytes for each, milliseconds to the last first byte, errors, CPU in microseconds per chunk."""
    clients = await _connect(port, number)
    cpu = cpu_seconds(pids)
    answers: list[Answer] = []
    held = []
    for some in (clients[: number // FIRST], clients[number // FIRST :]):
        for client in some:
            answers.append(client.start(asked(len(answers), chunks, pause_us)))
            if not len(answers) % AT_ONCE:
                await asyncio.sleep(0.02)  # as with people: not all in the same millisecond
        await until(lambda: all(answer.body for answer in answers), 120.0)
        held.append(rss_mib(pids))
    ends = await asyncio.gather(*(client.finished() for client in clients), return_exceptions=True)
    used = cpu_seconds(pids) - cpu
    words = said(chunks)
    faults = [text for answer in answers if (text := fault(answer, words))]
    for text in faults[:3]:
        print(f"bad stream: {text}")
    broken = sum(isinstance(end, BaseException) for end in ends)
    for client in clients:
        client.close()
    kb = (held[1] - held[0]) * 1048.576 / (number - number // FIRST)
    first = max(answer.first for answer in answers) * 1e3
    return kb, first, float(max(len(faults), broken)), used / (number * chunks) * 1e6


async def measured(layout: Layout, streams: int, idle: int) -> Figures:
    """All of it."""
    port, pids = layout.port, layout.pids
    for _ in range(ROUNDS):  # what is made with the first requests is there, in each process
        for each in (await _idle(port, 4))[0]:
            each.close()
        await _stream(port, pids, 4, 5, 1000)
    start = rss_mib(pids)
    waiting, refused = await _idle(port, idle)
    idle_kb = (rss_mib(pids) - start) * 1048.576 / max(1, idle)
    before = {pid: cpu_seconds([pid]) for pid in pids}
    stream_kb, first_ms, bad, _ = await _stream(port, pids, streams, CHUNKS, PAUSE_US)
    used = {pid: cpu_seconds([pid]) - was for pid, was in before.items()}
    total = sum(used.values()) or 1.0
    share = " ".join(f"{part / total:.0%}" for part in used.values() if part / total > 0.05)
    resident = rss_mib(pids)
    left = await asyncio.gather(*(each.send(_HEALTH) for each in waiting), return_exceptions=True)
    lost = sum(isinstance(answer, BaseException) for answer in left)
    for each in waiting:
        each.close()
    cpu_us = (await _stream(port, pids, PACED, PACED_CHUNKS, PACED_PAUSE_US))[3]
    errors = refused + int(bad) + lost
    return Figures(idle_kb, stream_kb, first_ms, errors, resident, share, cpu_us)


def table(found: dict[str, Figures]) -> str:
    """The figures as a table."""
    rows = [
        "| | kB per idle connection | kB per stream | first byte, the last one, ms | errors | resident, MiB | CPU of each process | us per chunk of 200 streams |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {name} | {f.idle_kb:.1f} | {f.stream_kb:.1f} | {f.first_ms:.0f} | {f.errors} | {f.resident_mib:.0f} | {f.share} | {f.cpu_us:.1f} |"
        for name, f in found.items()
    ]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    args = parser.parse_args(arguments)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[str, Figures] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        with running(python("-m", "benchmarks.upstream"), folder / "upstream.log") as upstream:
            port = int(upstream.wait_for("listening on ").rsplit(" ", 1)[1])
            for layout in args.layouts.split(","):
                with LAYOUTS[layout](port, folder) as started:
                    found[layout] = uvloop.run(
                        # The bare one closes idle connections after five seconds.
                        measured(started, args.streams, args.idle if layout != "bare" else 0)
                    )
    print(table(found))


if __name__ == "__main__":
    main()

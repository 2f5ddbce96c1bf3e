"""What is measured: each target is a process in front of the same upstream."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.process import Running, free_port, python, running, wait_until_listening

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"

NGINX_CONF = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr warn; {user}
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 1m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream backend {{ server 127.0.0.1:{upstream}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 900s;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Target:
    """A running target: its port, and the process to measure (None: nothing stands in between)."""

    name: str
    port: int
    running: Running | None

    @property
    def pids(self) -> list[int]:
        """Processes whose CPU and memory count."""
        return self.running.pids if self.running is not None else []


Starter: TypeAlias = Callable[[int, Path], AbstractContextManager[Target]]


@contextmanager
def direct(upstream: int, folder: Path) -> Iterator[Target]:
    """No proxy at all."""
    del folder
    yield Target("direct", upstream, None)


@contextmanager
def nginx(upstream: int, folder: Path) -> Iterator[Target]:
    """Nginx with one worker, unbuffered, with kept connections to the upstream."""
    port = free_port()
    root = "user root;" if folder.owner() == "root" else ""
    config = folder / "nginx.conf"
    config.write_text(
        NGINX_CONF.format(folder=folder, upstream=upstream, port=port, user=root), encoding="utf-8"
    )
    with running([NGINX, "-p", str(folder), "-c", str(config)], folder / "nginx.log") as process:
        wait_until_listening(port)
        yield Target("nginx", port, process)


@contextmanager
def naive(upstream: int, folder: Path) -> Iterator[Target]:
    """FastAPI and httpx as everyone writes it, under uvicorn with uvloop and httptools."""
    port = free_port()
    command = python("-m", "uvicorn", "benchmarks.naive:app", "--port", str(port), "--log-level", "warning")
    environment = {"UPSTREAM": f"http://127.0.0.1:{upstream}"}
    with running(command, folder / "naive.log", environment) as process:
        wait_until_listening(port)
        yield Target("naive", port, process)


@contextmanager
def spillway(
    upstream: int, folder: Path, *, store: str = "memory://", name: str = "spillway"
) -> Iterator[Target]:
    """Spillway as it is started by a user, with the store named."""
    command = python("-m", "proxy", "serve", "--port", "0", "--backend", f"http://127.0.0.1:{upstream}")
    with running(command, folder / f"{name}.log", {"SPILLWAY_STORE": store}) as process:
        line = process.wait_for("Spillway listening on ")
        yield Target(name, int(line.rsplit(":", 1)[1].split("/", 1)[0]), process)


@contextmanager
def spillway_sqlite(upstream: int, folder: Path) -> Iterator[Target]:
    """Spillway with its default store."""
    store = f"sqlite:///{folder}/bench.sqlite3"
    with spillway(upstream, folder, store=store, name="spillway-sqlite") as target:
        yield target


TARGETS: dict[str, Starter] = {
    "direct": direct,
    "nginx": nginx,
    "naive": naive,
    "spillway": spillway,
    "spillway-sqlite": spillway_sqlite,
}


@contextmanager
def started(names: list[str], folder: Path) -> Iterator[list[Target]]:
    """Start the upstream and the named targets in front of it."""
    with ExitStack() as stack:
        upstream = stack.enter_context(running(python("-m", "benchmarks.upstream"), folder / "upstream.log"))
        port = int(upstream.wait_for("listening on ").rsplit(" ", 1)[1])
        yield [stack.enter_context(TARGETS[name](port, folder)) for name in names]

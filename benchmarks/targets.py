"""What is measured: each target is a process in front of the same upstream."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.canned import MODEL
from benchmarks.process import Running, free_port, python, running
from benchmarks.streams import SMALL, SMALL_WINDOW

HERE = Path(__file__).parents[1]
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
LITELLM = Path(__file__).parent / ".venv-litellm"
"""A virtual environment of its own, which `make bench` sets up."""
LITELLM_STARTUP = 180.0
"""Seconds."""

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


# What it looks up on the network otherwise, and what only people need; LiteLLM's documentation, "All settings",
# and `os.getenv` in litellm 1.106.2. Its telemetry was removed before that.
LITELLM_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # no key: the others check none either
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}


@dataclass(frozen=True)
class Target:
    """A running target: its port, and the process to measure (None: nothing stands in between)."""

    name: str
    port: int
    running: Running | None
    resumes: bool = False
    """Whether it goes on with an answer that fills the window of the model SMALL."""

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
    config.write_text(NGINX_CONF.format(folder=folder, upstream=upstream, port=port, user=root), encoding="utf-8")
    with running([NGINX, "-p", str(folder), "-c", str(config)], folder / "nginx.log") as process:
        process.wait_until_listening(port)
        yield Target("nginx", port, process)


@contextmanager
def naive(upstream: int, folder: Path) -> Iterator[Target]:
    """FastAPI and httpx as everyone writes it, under uvicorn with uvloop and httptools."""
    with _uvicorn("naive", upstream, folder) as target:
        yield target


@contextmanager
def bare(upstream: int, folder: Path) -> Iterator[Target]:
    """ASGI on the HTTP client that Spillway uses, under the server that Spillway uses."""
    with _uvicorn("bare", upstream, folder) as target:
        yield target


@contextmanager
def _uvicorn(name: str, upstream: int, folder: Path) -> Iterator[Target]:
    port = free_port()
    switches = ("--no-access-log", "--no-proxy-headers", "--no-server-header", "--no-date-header")
    command = python("-m", "uvicorn", f"benchmarks.{name}:app", "--port", str(port), *switches)
    environment = {"UPSTREAM": f"http://127.0.0.1:{upstream}"}
    with running(command, folder / f"{name}.log", environment) as process:
        process.wait_until_listening(port)
        yield Target(name, port, process)


@contextmanager
def litellm(upstream: int, folder: Path) -> Iterator[Target]:
    """LiteLLM's proxy with one worker and one model, without database, keys and network."""
    port = free_port()
    params = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
    config = folder / "litellm.yaml"  # JSON is YAML
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": params}]}), encoding="utf-8")
    command = [str(LITELLM / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1"]
    with running(command, folder / "litellm.log", LITELLM_ENVIRONMENT, foreign=True) as process:
        process.wait_until_listening(port, LITELLM_STARTUP)
        yield Target("litellm", port, process)


@contextmanager
def spillway(
    upstream: int, folder: Path, *, store: str = "memory://", name: str = "spillway", tree: Path = HERE
) -> Iterator[Target]:
    """Spillway as it is started by a user, with the store named; of the working tree `tree`."""
    command = python("-P", "-m", "proxy", "serve", "--port", "0", "--backend", f"http://127.0.0.1:{upstream}")
    models = json.dumps({SMALL: {"window": SMALL_WINDOW}})
    environment = {"SPILLWAY_STORE": store, "SPILLWAY_MODELS": models, "PYTHONPATH": str(tree)}
    with running(command, folder / f"{name}.log", environment) as process:
        line = process.wait_for("Spillway listening on ")
        yield Target(name, int(line.rsplit(":", 1)[1].split("/", 1)[0]), process, resumes=True)


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
    "bare": bare,
    "litellm": litellm,
    "spillway": spillway,
    "spillway-sqlite": spillway_sqlite,
}


def missing(name: str) -> str:
    """Why a target can't be started here; empty: it can."""
    if name == "nginx" and not Path(NGINX).exists():
        return "it is not installed (apt-get install nginx-light)"
    if name == "litellm" and not (LITELLM / ".ready").exists():
        return "it is not installed (make bench does that)"
    return ""


@contextmanager
def started(names: list[str], folder: Path) -> Iterator[list[Target]]:
    """Start the upstream and the named targets in front of it.

    LiteLLM is left out if it does not start: what it is made of is not pinned here.

    Raises:
        RuntimeError: another one did not start; the text is what it said.
    """
    targets: list[Target] = []
    with ExitStack() as stack:
        upstream = stack.enter_context(running(python("-m", "benchmarks.upstream"), folder / "upstream.log"))
        port = int(upstream.wait_for("listening on ").rsplit(" ", 1)[1])
        for name in names:
            try:
                targets.append(stack.enter_context(TARGETS[name](port, folder)))
            except RuntimeError as error:
                if name != "litellm":
                    raise
                print(f"litellm is left out: {error}")
        yield targets

"""The real Open WebUI, empty and without accounts, as a process of its own (0.12.4)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.engine.process import ROOT
from tests.fakes import wait_until

PROGRAM = ROOT / ".venv-openwebui" / "bin" / "open-webui"
START_SECONDS = 300.0
"""The very first start compiles everything that it imports."""
_ENDING = 15.0


@contextmanager
def open_webui(api: str, folder: Path) -> Iterator[str]:
    """Run it with one connection, to `api` (an URL that ends in `/v1`); gives its own URL.

    `folder` gets its data and its log. It loads no models and stays off the internet.

    Raises:
        RuntimeError: it ended before it served; the text has its log.
        AssertionError: it did not serve in time.
    """
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / "open-webui.log"
    with log.open("wb") as output:
        # A session of its own, so that whatever it starts can be ended with it.
        process = subprocess.Popen(
            [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env=_environment(api, folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or _healthy(url), START_SECONDS)
        if process.poll() is not None:
            raise RuntimeError(f"Open WebUI ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        _read_the_news(url)
        yield url
    finally:
        _end(process)


def _environment(api: str, folder: Path) -> dict[str, str]:
    inherited = dict(os.environ)  # noqa: TID251 - handed to a child process, not read
    return inherited | {
        "DATA_DIR": str(folder),
        "WEBUI_SECRET_KEY": "test",
        "WEBUI_AUTH": "False",
        "OPENAI_API_BASE_URL": api,
        "OPENAI_API_KEY": "any",
        "ENABLE_OLLAMA_API": "False",
        "ENABLE_PERSISTENT_CONFIG": "False",
        "OFFLINE_MODE": "True",
        "RAG_EMBEDDING_ENGINE": "openai",  # else it loads an embedding model
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "true",
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _read_the_news(url: str) -> None:
    """Say for the only user that the dialog with the news of this version was seen; it would cover the page."""
    with httpx.Client(base_url=f"{url}/api", timeout=30.0, trust_env=False) as client:
        user = client.post("/v1/auths/signin", json={"email": "", "password": ""}).raise_for_status().json()
        version = client.get("/version").raise_for_status().json()["version"]
        client.post(
            "/v1/users/user/settings/update",
            json={"ui": {"version": version}},
            headers={"authorization": f"Bearer {user['token']}"},
        ).raise_for_status()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

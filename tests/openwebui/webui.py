"""The real Open WebUI, empty and without accounts, as a process of its own (0.12.4)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.engine.process import ROOT
from tests.engines.serving import free_port, serving

PROGRAM = ROOT / ".venv-openwebui" / "bin" / "open-webui"


@contextmanager
def open_webui(api: str, folder: Path) -> Iterator[str]:
    """Run it with one connection, to `api` (an URL that ends in `/v1`); gives its own URL.

    `folder` gets its data and its log. It loads no models and stays off the internet.

    Raises:
        RuntimeError: it ended before it served; the text has its log.
        AssertionError: it did not serve in time.
    """
    port = free_port()
    command: list[str | Path] = [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "open-webui.log"
    with serving(command, port=port, ready="/health", log=log, env=_environment(api, folder)) as server:
        _read_the_news(server.url)
        yield server.url


def _environment(api: str, folder: Path) -> dict[str, str]:
    return {
        "DATA_DIR": str(folder),
        "WEBUI_SECRET_KEY": "test",
        "WEBUI_AUTH": "False",
        "OPENAI_API_BASE_URL": api,
        "OPENAI_API_KEY": "any",
        "ENABLE_OLLAMA_API": "False",
        "ENABLE_PERSISTENT_CONFIG": "False",
        "ENABLE_CONTEXT_COMPACTION": "True",  # from 80,000 tokens on by itself
        "OFFLINE_MODE": "True",
        "RAG_EMBEDDING_ENGINE": "openai",  # else it loads an embedding model
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "true",
    }


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

"""The Spillway that a program is to talk to: the one that runs, or one that is started for as long as the program does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import proxy
from proxy.config import environment, state_folder
from proxy.core.settings import Settings
from proxy.dialects.listing import CODEX_QUERY

LISTENING = "Spillway listening on "
"""How the line begins that tells where; who starts one waits for it."""
_STOP = 15.0
"""Seconds that one that was started gets to stop."""
_ANSWER = 60.0
"""Seconds within which the models are listed: backends are probed first."""


class NoServer(Exception):
    """There is no Spillway, and none could be started; the text says why."""


def url_of(settings: Settings) -> str:
    """Return the URL of Spillway by these settings, without `/v1`."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104 - where others listen
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def listens(url: str) -> bool | None:
    """Return whether Spillway answers there; None: nothing listens."""
    try:
        answer = httpx.get(f"{url}/healthz", timeout=5.0, trust_env=False)
        return bool(answer.json() == {"status": "ok"} and "x-request-id" in answer.headers)
    except httpx.ConnectError:
        return None
    except (httpx.HTTPError, ValueError):
        return False


@contextmanager
def spillway(settings: Settings, arguments: Sequence[str]) -> Iterator[str]:
    """The URL of a Spillway, without `/v1`; `arguments` are those of `spillway serve` that one needs which is started.

    Raises:
        NoServer: none could be.
    """
    url = url_of(settings)
    if settings.port and listens(url):
        yield url
        return
    with _started(settings, arguments) as url:
        yield url


def models_of(url: str, key: str | None) -> dict[str, Any]:
    """The models, as OpenAI lists them and in Codex's catalog.

    Raises:
        NoServer: they are not to be had.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        answer = httpx.get(
            f"{url}/v1/models", params={CODEX_QUERY: "0"}, headers=headers, timeout=_ANSWER, trust_env=False
        )
    except httpx.HTTPError as error:
        raise NoServer(f"the Spillway at {url} does not answer: {error}") from None
    if answer.status_code == 401:
        raise NoServer(f"the Spillway at {url} wants a key: set SPILLWAY_API_KEYS to the one it was started with")
    if answer.status_code != 200:
        raise NoServer(f"the Spillway at {url} lists no models: {answer.text[:200]}")
    listed: dict[str, Any] = answer.json()
    return listed


@contextmanager
def _started(settings: Settings, arguments: Sequence[str]) -> Iterator[str]:
    """One on a free port, with a store that lasts; it writes its log where that is."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    variables: dict[str, str] = {"SPILLWAY_DEMO": "0"}  # an agent has no use for scripted answers
    if "store" not in settings.model_fields_set:
        # The default is in the current folder, which is the user's project here.
        variables["SPILLWAY_STORE"] = f"sqlite:///{folder / 'spillway.sqlite3'}"
    command = [sys.executable, "-P", "-m", "proxy", "serve", "--host", "127.0.0.1", "--port", "0", *arguments]
    log = folder / "launch.log"
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(  # noqa: S603 - ourselves
            command,
            env=_environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # what ends the program by the keyboard leaves it alone
        ) as process,
    ):
        try:
            yield _address(process, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP)
            except subprocess.TimeoutExpired:
                process.kill()


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a Spillway that is this one, wherever it is started: `-P` keeps a `proxy` of the user's out."""
    known = environment()
    here = str(Path(proxy.__file__).parent.parent)
    path = ":".join(filter(None, (here, known.get("PYTHONPATH"))))
    return {**known, "PYTHONPATH": path, **variables}


def _address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(LISTENING):
            return line.removeprefix(LISTENING).strip().removesuffix("/v1")
    process.wait(_STOP)
    last = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1]
    raise NoServer(last.removeprefix("spillway: ") or f"Spillway ended with {process.returncode} as it was started")

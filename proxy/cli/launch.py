"""`spillway launch`: runs a coding agent on a local model, without changing any of the user's files.

To add a program: a function that prepares its start, and a row in `PROGRAMS`.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from platformdirs import user_state_path

from proxy.api.catalogs import CODEX_QUERY
from proxy.cli import CommandError, warn
from proxy.config import config_files, environment
from proxy.core.settings import Settings
from proxy.shaping.agent import SHORT
from proxy.store.sqlite import make_private

LISTENING = "Spillway listening on "
"""Beginning of the line with the address that a server prints at its start; `launch` waits for it."""
NOT_INSTALLED = 127
"""Exit status for a missing program, as in shells; for one ended by a signal it is 128 plus the signal's number."""
SMALL = 32_768
"""Largest window in tokens in which the system prompt and tools of agents take too large a share."""
ANSWER = 8_192
"""Limit of an answer in tokens, for programs that ask for one."""
_NO_CHAT = re.compile(r"embed|rerank|whisper|tts|ocr|guard|bge-|moderation", re.IGNORECASE)
"""Parts of names of models that are not for chats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The running Spillway, and the model that a program will use."""

    url: str
    """URL of Spillway, without `/v1`."""
    key: str | None
    """Key of a client of Spillway, or None if none is needed."""
    model: str
    window: int | None
    """Model's true window in tokens, or None if unknown."""
    virtual_window: int
    """Window in tokens reported to programs that would otherwise shorten the history themselves."""
    catalog: Sequence[Mapping[str, Any]]
    """All models in the form of Codex's catalog."""
    folder: Path
    """Folder for files that last as long as the program runs."""

    @property
    def small(self) -> bool:
        """Return whether the model's window is known to be small."""
        return self.window is not None and self.window <= SMALL

    def write(self, name: str, text: str) -> str:
        """Write a file, and return its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


Start = tuple[Sequence[str], Mapping[str, str | None]]
"""Arguments in front of the user's own, and environment variables; None removes one of the user's."""


def _codex(target: Target) -> Start:
    """Start Codex 0.169 with a provider and a model for this run (`-c`), and a catalog in a file.

    Without a catalog it warns, and assumes a window of 272,000 tokens for unknown models. With `-c` it also warns that it cannot
    use the background server shared by its sessions, unless told not to (`--no-daemon`).
    """
    provider = "model_providers.spillway"
    settings: dict[str, Any] = {
        "model": target.model,
        "model_provider": "spillway",
        "model_catalog_json": target.write("models.json", json.dumps({"models": target.catalog})),
        f"{provider}.name": "Spillway",
        f"{provider}.base_url": f"{target.url}/v1",
        f"{provider}.wire_api": "responses",
    }
    if target.key is not None:
        settings[f"{provider}.env_key"] = "CODEX_SPILLWAY_KEY"
    if target.small:  # these tools are a quarter of all definitions, and further agents would share the small model
        settings["features.multi_agent"] = False
    # `-c` takes TOML, in which a JSON string is valid.
    chosen = [part for name, value in settings.items() for part in ("-c", f"{name}={json.dumps(value)}")]
    return ("--no-daemon", *chosen), {"CODEX_SPILLWAY_KEY": target.key}


def _claude(target: Target) -> Start:
    """Start Claude Code 2.1, by its environment alone.

    It gets the virtual window. Without a window it warns that it assumes a million tokens for an unknown model; with the true one
    it refuses to send (`CLAUDE_CODE_MAX_CONTEXT_TOKENS` below 32k) or compacts by itself.
    """
    tiers = ("OPUS", "SONNET", "HAIKU", "FABLE")
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    unwanted = (
        *("ANTHROPIC_API_KEY", "CLAUDE_CODE_AUTO_COMPACT_WINDOW"),
        *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
    )
    return (), {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key or "none",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.virtual_window),
        **dict.fromkeys((*models, *(f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in tiers)), target.model),
        # Off: a line at the front of its prompts that changes, and a countdown that would show the virtual window.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **dict.fromkeys(unwanted, None),
    }


def _opencode(target: Target) -> Start:
    """Start opencode 1.18 with a provider in the environment, which it merges over the user's own configuration."""
    limit = {"context": target.virtual_window, "output": ANSWER}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Spillway",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.key or "none"},
        "models": {target.model: {"name": target.model, "limit": limit}},
    }
    model = f"spillway/{target.model}"
    compaction = {"auto": False, "prune": False}
    config = {"provider": {"spillway": provider}, "model": model, "small_model": model, "compaction": compaction}
    return (), {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


def _aider(target: Target) -> Start:
    """Start aider 0.86 by its environment and arguments, with the model's metadata in a file."""
    model = f"openai/{target.model}"
    metadata = {
        "max_input_tokens": target.virtual_window,
        "max_output_tokens": ANSWER,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    file = target.write("models.json", json.dumps({model: metadata}))
    variables = {"OPENAI_API_BASE": f"{target.url}/v1", "OPENAI_API_KEY": target.key or "none"}
    return ("--model", model, "--weak-model", model, "--model-metadata-file", file), variables


def _qwen(target: Target) -> Start:
    """Start Qwen Code 0.15 by its environment, in small windows with a short system prompt: its own takes most of 16k tokens."""
    prompt = target.write("system.md", SHORT.format(name="Qwen Code, ")) if target.small else None
    return ("--auth-type", "openai"), {
        "OPENAI_BASE_URL": f"{target.url}/v1",
        "OPENAI_API_KEY": target.key or "none",
        "OPENAI_MODEL": target.model,
        **({} if prompt is None else {"QWEN_SYSTEM_MD": prompt}),
    }


PROGRAMS: dict[str, tuple[Callable[[Target], Start], str]] = {
    "codex": (_codex, "npm install -g @openai/codex"),
    "claude": (_claude, "npm install -g @anthropic-ai/claude-code"),
    "opencode": (_opencode, "npm install -g opencode-ai"),
    "aider": (_aider, "python -m pip install aider-install && aider-install"),
    "qwen": (_qwen, "npm install -g @qwen-code/qwen-code"),
}
"""Function that prepares the start of each program, and the command that installs it, by the program's command."""


def run(settings: Settings, args: argparse.Namespace) -> int:
    """Run `args.program` with the user's arguments for it, `args.rest`, and return its exit status.

    Raises:
        CommandError: Spillway cannot be started or does not answer, or there is no such model.
    """
    (prepare, install), path = PROGRAMS[args.program], shutil.which(args.program)
    if path is None:
        warn(f"{args.program} is not installed; this installs it: {install}")
        return NOT_INSTALLED
    files = config_files(args.config, here=False)
    serving = [
        *(f"--config={file.absolute()}" for file in files),
        *(part for url in args.backends or () for part in ("--backend", url)),
    ]
    with _running_spillway(settings, serving) as url, tempfile.TemporaryDirectory(prefix="spillway-launch-") as folder:
        target = _target(url, next(iter(settings.api_keys), None), args.model, Path(folder))
        first, variables = prepare(target)
        window = "unknown" if target.window is None else f"{target.window:,} tokens"
        warn(f"{args.program} works with {target.model} (window: {window}) through {url}")
        chosen = {key: value for key, value in {**environment(), **variables}.items() if value is not None}
        return _run([path, *first, *args.rest], chosen)


def choose_model(models: Sequence[Mapping[str, Any]], wanted: str | None) -> Mapping[str, Any]:
    """Return the `wanted` model, or by default the one that suits an agent best: managed, with native tools and a large window.

    Raises:
        CommandError: there is no such model, or none at all; the text says what to do.
    """
    if not models:
        raise CommandError("no backend lists a model: load one, and see `spillway check`")
    if wanted is None:
        return max(models, key=_suitability)
    found = next((model for model in models if model["id"] in (wanted, f"{wanted}:latest")), None)
    if found is None:
        ids = ", ".join(model["id"] for model in models[:5])
        raise CommandError(f"no backend lists the model {wanted!r}; there are {ids}")
    return found


def _suitability(model: Mapping[str, Any]) -> tuple[bool, bool, bool, int]:
    facts = model["spillway"]
    chats = _NO_CHAT.search(model["id"]) is None
    return chats, bool(facts["managed"]), model.get("supports_tools") is True, facts["window"] or 0


def _target(url: str, key: str | None, model: str | None, folder: Path) -> Target:
    """Ask Spillway for its models, in OpenAI's form and as Codex's catalog, and choose one.

    Raises:
        CommandError: Spillway does not answer or lists no models, or there is no such model.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    path = f"{url}/v1/models?{CODEX_QUERY}=0"
    try:
        answer = httpx.get(path, headers=headers, timeout=60.0, trust_env=False)  # backends are probed first
    except httpx.HTTPError as error:
        raise CommandError(f"the Spillway at {url} does not answer: {error}") from None
    if answer.status_code != 200:
        key_needed = "; set SPILLWAY_API_KEYS to the one it was started with" if answer.status_code == 401 else ""
        raise CommandError(f"the Spillway at {url} lists no models: {answer.text[:200]}{key_needed}")
    chosen = choose_model(answer.json()["data"], model)
    return Target(
        url=url,
        key=key,
        model=chosen["id"],
        window=chosen["spillway"]["window"],
        virtual_window=chosen["spillway"]["virtual_window"] or 200_000,
        catalog=answer.json()["models"],
        folder=folder,
    )


def _run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program to its end. SIGINT is ignored here, since the terminal sends it to the program too; SIGTERM is passed on."""
    with subprocess.Popen(command, env=variables) as process:  # noqa: S603 - the user's own program
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number)),
        }
        try:
            status = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return status if status >= 0 else 128 - status


# Finding or starting Spillway


def url_of(settings: Settings) -> str:
    """Return Spillway's URL according to the settings, without `/v1`."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104 - where others listen
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _answers(url: str) -> bool:
    """Return whether Spillway answers there, rather than another server."""
    try:
        answer = httpx.get(f"{url}/healthz", timeout=5.0, trust_env=False)
        return bool(answer.json() == {"status": "ok"} and "x-request-id" in answer.headers)
    except (httpx.HTTPError, ValueError):
        return False


@contextmanager
def _running_spillway(settings: Settings, arguments: Sequence[str]) -> Iterator[str]:
    """Return the URL of the running Spillway, or of one started for as long as the program runs.

    The one started here has a free port, the usual store, which stays, and a log file beside it.

    Raises:
        CommandError: Spillway could not be started.
    """
    if settings.port and _answers(url_of(settings)):
        yield url_of(settings)
        return
    log = user_state_path("spillway") / "launch.log"
    make_private(log)
    variables = {**environment(), "SPILLWAY_DEMO": "0"}  # an agent has no use for scripted answers
    # `-P` keeps Python from importing a package `proxy` of the user's project.
    command = [sys.executable, "-P", "-m", "proxy", "serve", "--host", "127.0.0.1", "--port", "0", *arguments]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(  # noqa: S603 - ourselves
            command,
            env=variables,
            cwd=log.parent,  # not the project, whose spillway.toml may be somebody else's
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # so that Ctrl-C in the program does not end it
        ) as process,
    ):
        try:
            yield _address(process, log)
        finally:
            process.terminate()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """Wait for the line with the address.

    Raises:
        CommandError: the server ended without that line; the text is the last line of its log.
    """
    for line in process.stdout or ():
        if line.startswith(LISTENING):
            return line.removeprefix(LISTENING).strip().removesuffix("/v1")
    last = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1]
    raise CommandError(last.removeprefix("spillway: ") or "Spillway ended during its start")

"""How each agent is started: unchanged, in a home of its own, told nothing but where the model is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = "local-model"
TASK = "Count with the shell until you are told that it is enough, then say that you are finished."


@dataclass(frozen=True, slots=True)
class Start:
    """A command, and what has to be in its environment."""

    command: Sequence[str]
    environment: Mapping[str, str]


def claude(url: str, home: Path) -> Start:
    """Claude Code, printing its answer. As root it skips permissions only where it is told that it is in a sandbox."""
    del home
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }
    return Start(("claude", "-p", TASK, "--dangerously-skip-permissions"), environment)


def codex(url: str, home: Path) -> Start:
    """Codex, without its own sandbox."""
    provider = f'name = "spillway"\nbase_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "SPILLWAY_KEY"\n'
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "spillway"\n[model_providers.spillway]\n{provider}'
    )
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return Start(("codex", "exec", *options, TASK), {"SPILLWAY_KEY": "none"})


def opencode(url: str, home: Path) -> Start:
    """opencode, with a provider of its own making."""
    folder = home / ".config/opencode"
    folder.mkdir(parents=True)
    model = {"name": MODEL, "limit": {"context": 200_000, "output": 8_192}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {MODEL: model},
    }
    config = {
        "provider": {"spillway": provider},
        "model": f"spillway/{MODEL}",
        "permission": "allow",
        "autoupdate": False,
    }
    (folder / "opencode.json").write_text(json.dumps(config))
    return Start(("opencode", "run", TASK), {"XDG_CONFIG_HOME": str(home / ".config")})


def qwen(url: str, home: Path) -> Start:
    """Qwen Code, allowed everything."""
    del home
    environment = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
    return Start(("qwen", "--auth-type", "openai", "--yolo", "-p", TASK), environment)


PROGRAMS: Mapping[str, Callable[[str, Path], Start]] = {
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "qwen": qwen,
}

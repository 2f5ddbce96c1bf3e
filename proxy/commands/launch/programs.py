"""The programs that can be launched, and what each has to be told to talk to Spillway. A new one is an entry in `PROGRAMS`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SMALL = 32_768
"""Tokens of a window in which what agents say of themselves in front of every prompt takes too much."""
ANSWER = 8_192
"""Tokens of an answer that programs are told to ask for, where they have to be told."""
NO_KEY = "none"
"""For programs that want a key where none is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Address of Spillway, and the model to use."""

    url: str
    """Without `/v1`."""
    key: str | None
    """That Spillway wants of its clients; None: none."""
    model: str
    window: int | None
    """Tokens of the model's true window; None: not known."""
    virtual_window: int | None
    """Tokens of the window that programs are told, so that they leave the history to Spillway."""
    catalog: Mapping[str, object]
    """The models as Codex wants them told."""
    folder: Path
    """For files that last as long as the program runs."""

    @property
    def small(self) -> bool:
        """Return whether the model's window is small."""
        return self.window is not None and self.window <= SMALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start of a program: what stands in front of the user's own arguments, and in its environment."""

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()
    """Variables of the user's that would turn it away from Spillway, or into its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that can be launched."""

    name: str
    """Of its command, too."""
    install: str
    """A command that brings it."""
    start: Callable[[Place], Start]


_CODEX_KEY = "CODEX_SPILLWAY_KEY"
_PROVIDER = "spillway"


def _codex(place: Place) -> Start:
    """Start Codex 0.169 with a provider and a model for this run (`-c`), and a catalog in a file of its own.

    Without a catalog it warns, and takes the window of any model that it does not know for 272,000 tokens.
    """
    catalog = place.folder / "models.json"
    catalog.write_text(json.dumps(place.catalog), encoding="utf-8")
    provider = f"model_providers.{_PROVIDER}"
    settings = {
        "model": place.model,
        "model_provider": _PROVIDER,
        "model_catalog_json": str(catalog),
        f"{provider}.name": "Spillway",
        f"{provider}.base_url": f"{place.url}/v1",
        f"{provider}.wire_api": "responses",
    }
    if place.key is not None:
        settings[f"{provider}.env_key"] = _CODEX_KEY
    # A string in JSON is one in TOML.
    chosen = [each for name, value in settings.items() for each in ("-c", f"{name}={json.dumps(value)}")]
    if place.small:
        # A quarter of its tools' definitions, for agents that would share one small model.
        chosen += ["-c", "features.multi_agent=false"]
    return Start(arguments=chosen, environment={} if place.key is None else {_CODEX_KEY: place.key})


CODEX = Program(name="codex", install="npm install -g @openai/codex", start=_codex)


_CLAUDE_MODELS = (
    *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
    *("ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL"),
    *("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_FABLE_MODEL"),
)
"""All its tiers: there is one model."""


def _claude(place: Place) -> Start:
    """Start Claude Code 2.1, by its environment alone.

    Without a window it takes an unknown model for one of a million tokens; with the true one it refuses to send
    (`CLAUDE_CODE_MAX_CONTEXT_TOKENS` below 32k) or compacts by itself.
    """
    return Start(
        environment={
            "ANTHROPIC_BASE_URL": place.url,
            "ANTHROPIC_AUTH_TOKEN": place.key or NO_KEY,
            **dict.fromkeys(_CLAUDE_MODELS, place.model),
            # What changes at the front of its prompts, and a countdown of a window that is not the true one.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        without=(
            *("ANTHROPIC_API_KEY", "CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW"),
            *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
        ),
    )


CLAUDE = Program(name="claude", install="npm install -g @anthropic-ai/claude-code", start=_claude)


_USUAL_WINDOW = 200_000
"""Tokens of a window that is told where none is known."""


def _opencode(place: Place) -> Start:
    """Start opencode 1.18 with a provider in the environment, which it lays over the user's own configuration."""
    limit = {"context": place.virtual_window or _USUAL_WINDOW, "output": ANSWER}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Spillway",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": place.key or NO_KEY},
        "models": {place.model: {"name": place.model, "limit": limit}},
    }
    config = {
        "provider": {"spillway": provider},
        "model": f"spillway/{place.model}",
        "small_model": f"spillway/{place.model}",
        # The history is kept within the window behind it.
        "compaction": {"auto": False, "prune": False},
    }
    return Start(environment={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


OPENCODE = Program(name="opencode", install="npm install -g opencode-ai", start=_opencode)


def _aider(place: Place) -> Start:
    """Start aider 0.86 by its environment, with the model's metadata in a file."""
    model = f"openai/{place.model}"
    known = {
        "max_input_tokens": place.virtual_window,
        "max_output_tokens": ANSWER,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    metadata = place.folder / "models.json"
    metadata.write_text(json.dumps({model: known}), encoding="utf-8")
    return Start(
        arguments=("--model", model, "--weak-model", model, "--model-metadata-file", str(metadata)),
        environment={"OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": place.key or NO_KEY},
    )


AIDER = Program(name="aider", install="python -m pip install aider-install && aider-install", start=_aider)


def _qwen(place: Place) -> Start:
    """Start Qwen Code 0.15 by its environment, with the kind of interface as an argument."""
    environment = {
        "OPENAI_BASE_URL": f"{place.url}/v1",
        "OPENAI_API_KEY": place.key or NO_KEY,
        "OPENAI_MODEL": place.model,
    }
    if place.small:
        # Its own is 38,000 characters: most of a window of 16k.
        prompt = place.folder / "system.md"
        from proxy.shaping.agent import SHORT  # noqa: PLC0415 - pydantic, for which `spillway --help` would wait

        prompt.write_text(SHORT.format(name="Qwen Code"), encoding="utf-8")
        environment["QWEN_SYSTEM_MD"] = str(prompt)
    return Start(arguments=("--auth-type", "openai"), environment=environment)


QWEN = Program(name="qwen", install="npm install -g @qwen-code/qwen-code", start=_qwen)


PROGRAMS: dict[str, Program] = {program.name: program for program in (CODEX, CLAUDE, OPENCODE, AIDER, QWEN)}
"""Programs by name."""

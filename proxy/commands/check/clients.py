"""Windows that clients on this machine believe in, read from their own files; only of those that go by Spillway."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.commands.check.judging import Belief

_ATTRIBUTE = "model_context_window"


def beliefs(home: Path, url: str) -> tuple[Belief, ...]:
    """Read the files of the user whose folder this is, for clients that were pointed at `url` (without `/v1`)."""
    place = url.partition("://")[2]
    return (
        *_of_codex(home / ".codex/config.toml", place),
        *_of_opencode(home / ".config/opencode/opencode.json", place),
    )


def _of_codex(file: Path, place: str) -> Iterator[Belief]:
    """`model_context_window`, in the file or in a profile, where the provider's `base_url` is Spillway's (Codex 0.169)."""
    config = _read(file)
    providers = _table(config.get("model_providers"))
    here = {name for name, each in providers.items() if place in str(_table(each).get("base_url"))}
    for part in (config, *map(_table, _table(config.get("profiles")).values())):
        tokens = part.get(_ATTRIBUTE)
        if part.get("model_provider", config.get("model_provider")) in here and isinstance(tokens, int):
            yield Belief("Codex", str(file), _ATTRIBUTE, tokens, str(part.get("model") or ""))


def _of_opencode(file: Path, place: str) -> Iterator[Belief]:
    """Read `limit.context` of a provider's models (opencode 1.18)."""
    for provider in map(_table, _table(_read(file).get("provider")).values()):
        if place not in str(_table(provider.get("options")).get("baseURL")):
            continue
        for model, entry in _table(provider.get("models")).items():
            tokens = _table(_table(entry).get("limit")).get("context")
            if isinstance(tokens, int):
                yield Belief("opencode", str(file), "limit.context", tokens, model)


def _read(file: Path) -> dict[str, Any]:
    """A file that is not there, or not what it should be, tells nothing."""
    try:
        text = file.read_text(encoding="utf-8")
        return _table(tomllib.loads(text) if file.suffix == ".toml" else json.loads(text))
    except (OSError, ValueError):
        return {}


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""Codex 0.169: a provider and a model for this run (`-c`), and a catalog in a file of its own.

Without a catalog it warns, and takes the window of any model that it does not know for 272,000 tokens.
"""

from __future__ import annotations

import json

from proxy.commands.launch.programs.base import Place, Program, Start

_KEY = "CODEX_SPILLWAY_KEY"
_NAME = "spillway"


def _start(place: Place) -> Start:
    catalog = place.folder / "models.json"
    catalog.write_text(json.dumps(place.catalog), encoding="utf-8")
    provider = f"model_providers.{_NAME}"
    settings = {
        "model": place.model,
        "model_provider": _NAME,
        "model_catalog_json": str(catalog),
        f"{provider}.name": "Spillway",
        f"{provider}.base_url": f"{place.url}/v1",
        f"{provider}.wire_api": "responses",
    }
    if place.key is not None:
        settings[f"{provider}.env_key"] = _KEY
    # A string in JSON is one in TOML.
    chosen = [each for name, value in settings.items() for each in ("-c", f"{name}={json.dumps(value)}")]
    if place.small:
        # A quarter of its tools' definitions, for agents that would share one small model.
        chosen += ["-c", "features.multi_agent=false"]
    return Start(arguments=chosen, environment={} if place.key is None else {_KEY: place.key})


CODEX = Program(name="codex", install="npm install -g @openai/codex", start=_start)

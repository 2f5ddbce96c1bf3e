"""opencode 1.18: a provider by configuration in the environment, which it lays over the user's own."""

from __future__ import annotations

import json

from proxy.commands.launch.programs.base import ANSWER, NO_KEY, Place, Program, Start

_USUAL = 200_000
"""Tokens of a window that is told where none is known."""


def _start(place: Place) -> Start:
    limit = {"context": place.virtual_window or _USUAL, "output": ANSWER}
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


OPENCODE = Program(name="opencode", install="npm install -g opencode-ai", start=_start)

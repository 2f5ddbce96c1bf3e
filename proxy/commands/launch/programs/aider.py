"""aider 0.86: by its environment, and what it wants to know of a model in a file."""

from __future__ import annotations

import json

from proxy.commands.launch.programs.base import ANSWER, NO_KEY, Place, Program, Start


def _start(place: Place) -> Start:
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


AIDER = Program(name="aider", install="python -m pip install aider-install && aider-install", start=_start)

"""Qwen Code 0.15: by its environment, and the kind of interface by an argument."""

from __future__ import annotations

from proxy.commands.launch.programs.base import NO_KEY, Place, Program, Start
from proxy.shaping.agent import SHORT


def _start(place: Place) -> Start:
    environment = {
        "OPENAI_BASE_URL": f"{place.url}/v1",
        "OPENAI_API_KEY": place.key or NO_KEY,
        "OPENAI_MODEL": place.model,
    }
    if place.small:
        # Its own is 38,000 characters: most of a window of 16k.
        prompt = place.folder / "system.md"
        prompt.write_text(SHORT.format(name="Qwen Code"), encoding="utf-8")
        environment["QWEN_SYSTEM_MD"] = str(prompt)
    return Start(arguments=("--auth-type", "openai"), environment=environment)


QWEN = Program(name="qwen", install="npm install -g @qwen-code/qwen-code", start=_start)

"""The catalog in which Codex looks models up: in a file (`model_catalog_json`), or at `GET /models?client_version=…`.

Fields: what Codex 0.169 refuses to start without, by trial, and what `codex debug models` shows of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.neutral.offered import Offered

VERSION = "client_version"
"""The query by which Codex asks for its catalog, and nobody for anything else."""
_USUAL = 272_000
"""Tokens that Codex takes any model's window for that it does not know."""
_OUTPUT = (1_000, 10_000)
"""Tokens of a tool's output that it passes on: the least, and the most, which is what it does by itself."""
_OUTPUT_SHARE = 1 / 8
"""Of the true window."""
INSTRUCTIONS = """\
You are Codex, a coding agent that works in the user's terminal and workspace.

- Do the task with the tools you are offered, and go on until it is done; ask only where you cannot find out yourself.
- Before you change a file, read what it says now. Make the smallest change that is right, in the style of what is there, \
and leave what does not belong to the task alone.
- Prefer `rg` to find things, and read parts of large files, not all of them.
- Check your work: run the tests, or what comes nearest to them, and mend what fails.
- Never undo changes that are not yours. Do not commit unless you are told to.
- Obey `AGENTS.md` files: each holds for the folder it is in and all below.
- End with a short account of what you did, what you checked, and what is left. Name files by their paths."""
"""Codex's own are 4,000 tokens: a quarter of a small window."""


def catalog(offered: Sequence[Offered]) -> dict[str, Any]:
    """All models, the first of the list first."""
    return {"models": [_entry(each, place) for place, each in enumerate(offered)]}


def _entry(offered: Offered, place: int) -> dict[str, Any]:
    window = offered.virtual_window or _USUAL
    least, most = _OUTPUT
    output = most if offered.window is None else max(least, min(most, int(offered.window * _OUTPUT_SHARE)))
    return {
        "slug": offered.id,
        "display_name": offered.id,
        "description": None,
        "base_instructions": INSTRUCTIONS,
        "context_window": window,
        "max_context_window": window,
        "effective_context_window_percent": 95,
        "truncation_policy": {"mode": "tokens", "limit": output},
        "shell_type": "unified_exec",
        "apply_patch_tool_type": None,
        "supported_reasoning_levels": [],
        "default_reasoning_summary": "none",
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "supports_parallel_tool_calls": True,
        "input_modalities": ["text", "image"] if offered.vision else ["text"],
        "experimental_supported_tools": [],
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
    }

"""Lists of models in Anthropic's form, and the catalog in which Codex looks models up (`model_catalog_json`, or `GET /models`).

Fields: PyPI `anthropic` 2.12.0, `types/model_info.py`, `types/model_capabilities.py`; for Codex 0.169, those without which it refuses
to start, found by trial, and its own as `codex debug models` shows them. Both are made from the list in OpenAI's form
(`proxy.api.models`).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from proxy.dialects.messages.request import EDITS
from proxy.shaping.agent import SHORT

# Only these two get it. Clients that trust the figure (Cline, Ollama's clients, scripts that split texts) would send
# more than fits. With it, Claude Code ran 270 steps (215,000 tokens) in a window of 16k without compacting.
VIRTUAL_WINDOW = 200_000
"""Window in tokens reported to Codex and Claude Code if the true one is smaller, because they refuse to run in a small one."""
_ANSWER = 32_000
"""Most tokens of an answer that are reported; Claude Code (2.1) asks for as many from a model it does not know."""
_ANSWER_SHARE = 1 / 4
"""Most of the reported window that is reported for answers, because clients subtract it from the room for prompts."""
_YEAR_3000 = 32_503_680_000
"""Seconds since the epoch; later times are not plausible and are ignored."""
CODEX_QUERY = "client_version"
"""Query parameter with which Codex asks for its catalog, and which no other client sends."""
# Told the true window of 16k, Codex 0.169 compacted after every turn, 1,088 times in 90 s.
_CODEX_WINDOW = 272_000
"""Window in tokens that Codex assumes for unknown models."""
_TOOL_OUTPUT = (1_000, 10_000)
"""Tokens of a tool's output that Codex sends to the model: the least, and the most, which is its default."""
_TOOL_OUTPUT_SHARE = 1 / 8
"""Share of the true window for a tool's output, within these bounds."""
_INSTRUCTIONS = f"""{SHORT.format(name="Codex, ")}
- Prefer `rg` to find things. Obey `AGENTS.md` files: each holds for the folder it is in and all below."""
"""Instructions for Codex; its own take 4,000 tokens, a quarter of a small window."""


def anthropic_model(listed: Mapping[str, Any], *, virtual: bool) -> dict[str, Any]:
    """Return one model's object, with its virtual window if `virtual`, else the true one."""
    window, created = listed["spillway"]["virtual_window" if virtual else "window"], listed.get("created")
    created = created if isinstance(created, int) and 0 < created < _YEAR_3000 else 0
    return {
        "type": "model",
        "id": listed["id"],
        "display_name": listed["id"],
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": window,
        "max_tokens": None if window is None else min(_ANSWER, int(window * _ANSWER_SHARE)),
        "capabilities": _capabilities(listed),
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
    }


def anthropic_page(models: Sequence[Mapping[str, Any]], *, virtual: bool) -> dict[str, Any]:
    """Return all models as a single page, whatever page a client asks for; `virtual` as in `anthropic_model`."""
    return {
        "data": [anthropic_model(each, virtual=virtual) for each in models],
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }


def _capabilities(listed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's capabilities with all of Anthropic's keys; those that Spillway provides are true for every model.

    Thinking and effort are among them: they are passed to every backend with a field for them, and ignored by models that do
    not think.
    """
    no, yes = {"supported": False}, {"supported": True}
    efforts = ("low", "medium", "high", "xhigh", "max")
    return {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "compaction": {**yes, "summarize": yes},
        "context_management": {**yes, **dict.fromkeys(EDITS, yes)},
        "effort": {**yes, **dict.fromkeys(efforts, yes)},
        "image_input": {"supported": bool(listed["spillway"]["vision"])},
        "pdf_input": no,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": yes,
        "thinking": {**yes, "types": {"adaptive": yes, "between_tools": no, "disabled": yes, "enabled": yes}},
    }


def codex_catalog(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return Codex's catalog of all models, in the order of the list."""
    return {"models": [_codex_entry(each, place) for place, each in enumerate(models)]}


def _codex_entry(listed: Mapping[str, Any], place: int) -> dict[str, Any]:
    known = listed["spillway"]
    window, true_window = known["virtual_window"] or _CODEX_WINDOW, known["window"]
    least, most = _TOOL_OUTPUT
    output = most if true_window is None else max(least, min(most, int(true_window * _TOOL_OUTPUT_SHARE)))
    return {
        "slug": listed["id"],
        "display_name": listed["id"],
        "description": None,
        "base_instructions": _INSTRUCTIONS,
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
        "input_modalities": ["text", "image"] if known["vision"] else ["text"],
        "experimental_supported_tools": [],
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
    }

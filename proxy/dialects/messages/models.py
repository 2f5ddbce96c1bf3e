"""Anthropic's list of models.

Fields: PyPI `anthropic` 2.12.0, `types/model_info.py`, `types/model_capabilities.py`, `resources/models.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from proxy.dialects.messages.managing import EDITS
from proxy.neutral.offered import Offered

_ANSWER = 32_000
"""Tokens of the longest answer that clients are told to ask for: as many as Claude Code (2.1) asks for of a model it does not know."""
_ANSWER_SHARE = 1 / 4
"""Of the window that is told: clients take what answers may need off what they put into a prompt."""


def model(offered: Offered, *, virtual: bool) -> dict[str, Any]:
    """One model's object, with its `virtual` window or the true one."""
    window = offered.virtual_window if virtual else offered.window
    return {
        "type": "model",
        "id": offered.id,
        "display_name": offered.id,
        "created_at": datetime.fromtimestamp(offered.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": window,
        "max_tokens": None if window is None else min(_ANSWER, int(window * _ANSWER_SHARE)),
        "capabilities": _capabilities(offered),
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
    }


def models_page(offered: Sequence[Offered], *, virtual: bool) -> dict[str, Any]:
    """All models as the only page there is, whatever page a client asks for; `virtual` as for `model`."""
    return {
        "data": [model(each, virtual=virtual) for each in offered],
        "has_more": False,
        "first_id": offered[0].id if offered else None,
        "last_id": offered[-1].id if offered else None,
    }


def _capabilities(offered: Offered) -> dict[str, Any]:
    """All keys that there are, as Anthropic has them; what is true is what Spillway does for every model.

    How much is to be thought is told to every backend that has words for it; models that do not think pass it over.
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
        "image_input": {"supported": offered.vision},
        "pdf_input": no,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": yes,
        "thinking": {
            **yes,
            "types": {"adaptive": yes, "between_tools": no, "disabled": yes, "enabled": yes},
        },
    }

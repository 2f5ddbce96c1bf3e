"""Which of the models that Spillway has a program is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

_NO_CHAT = re.compile(r"embed|rerank|whisper|tts|ocr|guard|bge-|moderation", re.IGNORECASE)
"""Names of models that do not chat."""


def choose_model(models: Sequence[Mapping[str, Any]], wanted: str | None) -> Mapping[str, Any]:
    """The model that is `wanted`, else the one that suits an agent best: managed, with tools of its own, a large window.

    Of those that are alike the first.

    Raises:
        LookupError: there is no such model, or none at all; its text says what to do.
    """
    if wanted is not None:
        found = next((model for model in models if model["id"] in (wanted, f"{wanted}:latest")), None)
        if found is None:
            ids = [model["id"] for model in models]
            near = get_close_matches(wanted, ids, n=3, cutoff=0.3) or ids[:3]
            raise LookupError(f"no backend lists the model {wanted!r}; there are {', '.join(near) or 'none'}")
        return found
    if not models:
        raise LookupError("no backend lists a model: load one, and see `spillway check`")
    return max(models, key=_suits)


def _suits(model: Mapping[str, Any]) -> tuple[bool, bool, bool, int]:
    told = model["spillway"]
    chats = _NO_CHAT.search(model["id"]) is None
    return chats, bool(told["managed"]), model.get("supports_tools") is True, told["window"] or 0

"""Reasoning effort: how much a model is to think before it answers, in any dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""The least first (OpenAI's `reasoning.effort`, Anthropic's `output_config.effort`, Ollama's `think`)."""
NONE = "none"
"""The word of OpenAI for a model that is not to think."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Reasoning options of a client; each backend gets them in its own fields."""

    on: bool | None = None
    """Whether it is to think at all; None: the model's default."""
    effort: str = ""
    """One of `EFFORTS`; empty: the model's default."""
    budget: int | None = None
    """The most tokens of it; None: no bound but the answer's."""
    openai: str = ""
    """OpenAI's own value, where the client used that; empty: it did not."""

    def nearest(self, known: tuple[str, ...]) -> str:
        """Find the nearest effort that a backend knows; empty if the client set none.

        `known` in the order of `EFFORTS`.
        """
        if not self.effort:
            return ""
        least, *_ = known
        return max((each for each in known if _rank(each) <= _rank(self.effort)), key=_rank, default=least)


def in_openais_word(word: str) -> Thinking | None:
    """Parse OpenAI's `reasoning_effort`; None if it is empty."""
    if not word:
        return None
    if word == NONE:
        return Thinking(on=False, openai=word)
    return Thinking(effort=word if word in EFFORTS else "", openai=word)


def effort_in(fields: Mapping[str, Any], name: str) -> str:
    """Read an effort from a field; empty where it is none."""
    text = fields.get(name)
    return text if text in EFFORTS else ""


def _rank(effort: str) -> int:
    return EFFORTS.index(effort)

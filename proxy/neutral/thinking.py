"""How much a model is to think before it answers, as clients of any dialect may wish it."""

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
    """A client's wish; backends are told it in the words that each of them has for it."""

    on: bool | None = None
    """Whether it is to think at all; None: as it does by itself."""
    effort: str = ""
    """One of `EFFORTS`; empty: as much as it does by itself."""
    budget: int | None = None
    """The most tokens of it; None: no bound but the answer's."""
    openai: str = ""
    """The same in OpenAI's own word, where the client used that; empty: it did not."""

    def nearest(self, known: tuple[str, ...]) -> str:
        """The effort, or the nearest of those that are known to a backend; empty if there is none wished.

        `known` in the order of `EFFORTS`.
        """
        if not self.effort:
            return ""
        least, *_ = known
        return max((each for each in known if _rank(each) <= _rank(self.effort)), key=_rank, default=least)


def in_openais_word(word: str) -> Thinking | None:
    """A wish that is one word; None if it is empty."""
    if not word:
        return None
    if word == NONE:
        return Thinking(on=False, openai=word)
    return Thinking(effort=word if word in EFFORTS else "", openai=word)


def effort_in(fields: Mapping[str, Any], name: str) -> str:
    """An effort in a field; empty where it is none."""
    text = fields.get(name)
    return text if text in EFFORTS else ""


def _rank(effort: str) -> int:
    return EFFORTS.index(effort)

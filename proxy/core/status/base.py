"""A notice, and how its text is recognised when a client sends it back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from proxy.core.stream.answer import Identity


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. `done` closes the one before it; token figures where they are known."""

    done: bool
    before: int | None = None
    after: int | None = None
    failed: bool = False
    cut: bool = False
    """The backend was found to have cut the prompt in silence; told beside the answer, never in its text."""

    @property
    def text(self) -> str:
        """One line of plain text."""
        if self.cut:
            return "⚠️ The backend cut the beginning of this conversation; it is compacted on the next turn"
        if not self.done:
            return "⚙️ Compacting conversation history…"
        if self.failed:
            return "⚠️ Compacting did not help, continuing as it is"
        if self.before is None or self.after is None:
            return "✅ Context compacted, continuing…"
        return f"✅ Context compacted, continuing… ({_short(self.before)} → {_short(self.after)} tokens)"


Form: TypeAlias = Callable[[Notice, Identity], bytes]
"""Makes the frame that carries a notice."""

# Clients trim the ends of a text, and some drop the selector that makes a sign an emoji.
_LINES = re.compile(
    r"\n{0,2}> \*(?:⚙\ufe0f? Compacting conversation history…"
    r"|⚠\ufe0f? Compacting did not help, continuing as it is"
    r"|✅ Context compacted, continuing…(?: \([\d.]+k? → [\d.]+k? tokens\))?)\*\n{0,2}"
)


def quoted(notice: Notice) -> str:
    """The notice as it stands in content or reasoning."""
    return f"\n\n> *{notice.text}*\n\n"


def strip_status(text: str) -> str:
    """The text without notices that an earlier answer carried."""
    return _LINES.sub("", text) if "> *" in text else text


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"

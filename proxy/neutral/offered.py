"""A model as clients are told of it, in whichever form they ask."""

from __future__ import annotations

from dataclasses import dataclass

VIRTUAL_WINDOW = 200_000
"""Tokens of the window that Codex and Claude Code get where the true one is smaller: they refuse to run in a small one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """One model of the list."""

    id: str
    window: int | None
    """Tokens of its true window; None: nobody tells."""
    virtual_window: int | None
    """Tokens of the window in which Codex and Claude Code run; None: not known."""
    created: int = 0
    """Seconds since the epoch; 0: nobody tells."""
    vision: bool = False
    """Whether it is known to take pictures."""

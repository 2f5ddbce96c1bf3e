"""What a coding agent has to be told, so that it talks to Spillway, and nothing of its user's own is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SMALL = 32_768
"""Tokens of a window in which what agents say of themselves in front of every prompt takes too much."""
ANSWER = 8_192
"""Tokens of an answer that programs are told to ask for, where they have to be told."""
NO_KEY = "none"
"""For programs that want a key where none is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where Spillway is, and what model it has."""

    url: str
    """Without `/v1`."""
    key: str | None
    """That Spillway wants of its clients; None: none."""
    model: str
    window: int | None
    """Tokens of the model's true window; None: not known."""
    virtual_window: int | None
    """Tokens of the window that programs are told, so that they leave the history to Spillway."""
    catalog: Mapping[str, object]
    """The models as Codex wants them told."""
    folder: Path
    """For files that last as long as the program runs."""

    @property
    def small(self) -> bool:
        """Whether the model's window is."""
        return self.window is not None and self.window <= SMALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a program is started: what stands in front of the user's own arguments, and in its environment."""

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()
    """Variables of the user's that would turn it away from Spillway, or into its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that can be launched."""

    name: str
    """Of its command, too."""
    install: str
    """A command that brings it."""
    start: Callable[[Place], Start]

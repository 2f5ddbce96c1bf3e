"""What was learned of a backend's models, in a form in which other processes can be told of it."""

from __future__ import annotations

from typing import Any

from proxy.net.refusals import LearnedRefusals
from proxy.net.windows import WINDOW, LearnedWindows

LESSON_TTL = 3600.0
"""Seconds a lesson is believed."""


class Teaching:
    """The lessons of one backend: windows and refusals."""

    def __init__(self, windows: LearnedWindows, refusals: LearnedRefusals) -> None:
        self._windows = windows
        self._refusals = refusals

    def taught(self) -> dict[tuple[str, str], list[Any]]:
        """All that holds, by model and name of the lesson, as JSON."""
        return self._windows.taught() | self._refusals.taught()

    def adopt(self, model: str, name: str, taught: list[Any] | None, seconds: float) -> None:
        """Believe for so long what another process has learned; None: that it has given up what it believed.

        Raises:
            ValueError, TypeError: it is nothing that `taught` gives.
        """
        if name == WINDOW:
            self._windows.adopt(model, taught, seconds)
        else:
            self._refusals.adopt(model, name, taught, seconds)

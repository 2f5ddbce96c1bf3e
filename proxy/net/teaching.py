"""What was learned of a backend's models, in a form in which other processes can be told of it."""

from __future__ import annotations

from typing import Any

from proxy.net.lessons import Lessons
from proxy.net.windows import WINDOW, LearnedWindows


class Teaching:
    """The lessons of one backend."""

    def __init__(self, windows: LearnedWindows, lessons: Lessons) -> None:
        self._windows = windows
        self._lessons = lessons

    def taught(self) -> dict[tuple[str, str], list[Any]]:
        """All that holds, by model and name of the lesson, as JSON."""
        return self._windows.taught() | self._lessons.taught()

    def adopt(self, model: str, name: str, taught: list[Any] | None, seconds: float) -> None:
        """Believe for so long what another process has learned; None: that it has given up what it believed.

        Raises:
            ValueError, TypeError: it is nothing that `taught` gives.
        """
        if name == WINDOW:
            self._windows.adopt(model, taught, seconds)
        else:
            self._lessons.adopt(model, name, taught, seconds)

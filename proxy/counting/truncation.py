"""What a silently cut prompt tells of the window.

Ollama (0.30) cuts in two ways: it drops the oldest messages until the rest fits, or, if even that is too long,
keeps half of the window and two tokens more.
"""

from __future__ import annotations

_USUAL: tuple[int, ...] = tuple(1 << n for n in range(11, 21))
"""Windows that people and programs choose, in tokens."""
_SLACK = 8


def window_behind_cut(reported: int, known: int | None) -> int | None:
    """The window in tokens behind a cut that left `reported` prompt tokens, if that can be told.

    `known` is what was believed; None is answered when the report does not contradict it.
    """
    for window in _USUAL:
        if abs(reported - (window // 2 + 2)) <= _SLACK:
            return window if known is None or window < known else None
    least = next((window for window in _USUAL if window >= reported), None)
    if least is None or (known is not None and least >= known):
        return None
    return least

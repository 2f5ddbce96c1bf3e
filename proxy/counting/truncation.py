"""What silently cut prompts tell of the window.

Ollama (0.30) cuts in two ways: it drops the oldest messages until the rest fits, or, if even that is too long,
keeps half of the window and two tokens more.
"""

from __future__ import annotations

from dataclasses import dataclass

_USUAL: tuple[int, ...] = tuple(1 << n for n in range(11, 21))
"""Windows that people and programs choose, in tokens."""
_SLACK = 8
_LONGER = 1.25
"""How many times as long another prompt must be, by the estimate, to be another length."""
_AS_MUCH = 1.1
"""How many times as much may be left of it, if the same window cut both."""


def window_behind_cut(reported: int) -> int | None:
    """The window in tokens behind a cut that left `reported` prompt tokens, if that can be told."""
    half = _halved(reported)
    return half if half is not None else next((window for window in _USUAL if window >= reported), None)


@dataclass(frozen=True, slots=True)
class CutSeen:
    """A prompt that seems to have been cut, of `estimated` tokens by the estimate and `reported` by the backend.

    `conversation` is a digest of the one that it belongs to.
    """

    estimated: int
    reported: int
    conversation: bytes

    def bears_out(self, other: CutSeen) -> bool:
        """Whether both together show a window, and not a counter that is off.

        Where a counter is off, what is reported grows with the prompt; what a cut leaves does not. Two conversations
        of which exactly half of the same window is left show one too, however long they are.
        """
        short, long = sorted((self, other), key=lambda seen: seen.estimated)
        if long.estimated >= _LONGER * short.estimated:
            return long.reported <= _AS_MUCH * short.reported
        half = _halved(self.reported)
        return (
            half is not None and half == _halved(other.reported) and self.conversation != other.conversation
        )


def _halved(reported: int) -> int | None:
    return next((window for window in _USUAL if abs(reported - (window // 2 + 2)) <= _SLACK), None)

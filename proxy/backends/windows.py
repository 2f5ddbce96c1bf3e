"""Evidence for a window that no backend reports: prompts that were cut in silence.

Ollama (0.30) cuts in two ways: it drops the oldest messages until the rest fits, or, if even that is too long, leaves half
of the window and two tokens more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_ROUND = (64, 100)
"""A bound that a server sets is a multiple of one of these."""
_ROOMIER = 4
"""Times as much as an answer that a bound ended may have fitted; a prompt that does not fit is refused, and that tells."""
_USUAL: tuple[int, ...] = tuple(1 << n for n in range(11, 21))
"""Windows that people and programs choose, in tokens."""
_HALF_SLACK = 8
_LONGER = 1.25
"""How many times as long another prompt must be, by the estimate, to be another length."""
_AS_MUCH = 1.1
"""How many times as much may remain of it, if the same window cut both."""


def room_assumed(prompt: int, completion: int) -> int:
    """Tokens to reckon with where an answer ended for its length, and nothing tells the window: so much fits for sure.

    After a round number of tokens it was most likely a bound to answers: then the window has room for more.
    """
    bound = any(completion % unit == 0 for unit in _ROUND)
    return (prompt + completion) * (_ROOMIER if bound else 1)


@dataclass(frozen=True, slots=True)
class CutSeen:
    """A prompt that seems to have been cut, of `estimated` tokens by the estimate and `reported` by the backend.

    `conversation` is a digest of the one that it belongs to.
    """

    estimated: int
    reported: int
    conversation: bytes

    def bears_out(self, other: Self) -> bool:
        """Say whether both together show a window, and not a counter that is off.

        Where a counter is off, what is reported grows with the prompt; what a cut leaves does not. Two conversations
        of which exactly half of the same window remains show one too, however long they are.
        """
        short, long = sorted((self, other), key=lambda seen: seen.estimated)
        if long.estimated >= _LONGER * short.estimated:
            return long.reported <= _AS_MUCH * short.reported
        half = _halved(self.reported)
        return half is not None and half == _halved(other.reported) and self.conversation != other.conversation


def window_cut(seen: CutSeen, before: Iterable[CutSeen], *, loaded: int | None) -> int | None:
    """The window in tokens that cut this prompt, if a `loaded` instance reports one or a prompt `before` bears it out."""
    window = window_behind_cut(seen.reported)
    if loaded is not None:
        return loaded if window is not None and window >= loaded else None
    borne_out = [window_behind_cut(other.reported) or 0 for other in before if seen.bears_out(other)]
    # A cut leaves less than the window: of several figures the largest is nearest to it.
    return max(window, *borne_out) if window is not None and borne_out else None


def window_behind_cut(reported: int) -> int | None:
    """The window in tokens behind a cut that left `reported` prompt tokens, if that can be told."""
    half = _halved(reported)
    return half if half is not None else next((window for window in _USUAL if window >= reported), None)


def _halved(reported: int) -> int | None:
    return next((window for window in _USUAL if abs(reported - (window // 2 + 2)) <= _HALF_SLACK), None)

"""Evidence for a window that no backend reports: prompts that were cut in silence, and answers that ended for want of room.

Ollama (0.30) cuts in two ways: it drops the oldest messages until the rest fits, or, if even that is too long, leaves half
of the window and two tokens more. An answer that ended for its length though nobody bounded it has filled the window, or
has reached a bound that the server sets to every answer: a window stays the same when prompts differ, a bound in every answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SMALLEST_WINDOW = 512
"""Tokens; an answer that ends sooner has not filled any."""
_UNIT = 1024
"""Windows are multiples of it, all but a few."""
_ROUND = (64, 100)
"""A bound that a server sets is a multiple of one of these."""
_SLACK = 2
"""Tokens by which servers stop short of the window."""
_ROOMIER = 4
"""Times as much as an answer that a bound ended may have fitted; a prompt that does not fit is refused, and that tells."""
_DIFFERENT = 16
"""Tokens by which prompts differ, if they are to tell a window from a bound."""
_USUAL: tuple[int, ...] = tuple(1 << n for n in range(11, 21))
"""Windows that people and programs choose, in tokens."""
_HALF_SLACK = 8
_LONGER = 1.25
"""How many times as long another prompt must be, by the estimate, to be another length."""
_AS_MUCH = 1.1
"""How many times as much may remain of it, if the same window cut both."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Tokens of a prompt and of the unbounded answer to it that ended for its length, by the backend's report."""

    prompt: int
    completion: int

    @property
    def total(self) -> int:
        """Tokens of both."""
        return self.prompt + self.completion

    def same_window(self, other: Filled) -> bool:
        """Say whether both fill the same, with different prompts."""
        return abs(self.total - other.total) <= _SLACK and abs(self.prompt - other.prompt) >= _DIFFERENT


def window_filled(seen: Filled, before: Iterable[Filled]) -> int | None:
    """The window in tokens, if this answer and one `before` it from the same model fill the same, with different prompts.

    One alone tells nothing: a bound on answers ends some of them near a multiple of 1,024 by chance.
    """
    same = [other.total for other in before if seen.same_window(other)]
    if seen.total < SMALLEST_WINDOW or not same:
        return None
    multiple = round(seen.total / _UNIT) * _UNIT
    return max(multiple if abs(seen.total - multiple) <= _SLACK else 0, seen.total, *same)


def room_assumed(seen: Filled) -> int:
    """Tokens to reckon with where an answer ended for its length, and nothing tells the window: so much fits for sure.

    After a round number of tokens it was most likely a bound to answers: then the window has room for more.
    """
    bound = any(seen.completion % unit == 0 for unit in _ROUND)
    return seen.total * (_ROOMIER if bound else 1)


@dataclass(frozen=True, slots=True)
class CutSeen:
    """A prompt that seems to have been cut, of `estimated` tokens by the estimate and `reported` by the backend.

    `conversation` is a digest of the one that it belongs to.
    """

    estimated: int
    reported: int
    conversation: bytes

    def bears_out(self, other: CutSeen) -> bool:
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

"""What an answer that ended for its length, though nobody bounded it, tells of the window.

Its prompt and itself have filled the window, or it has reached a bound that the server sets to every answer. A window
is what stays the same when prompts differ; a bound stays the same in every answer, and is a round number.
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
_APART = 16
"""Tokens by which prompts differ, if they are to tell a window from a bound."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Tokens of a prompt and of the unbounded answer to it that ended for its length, by the backend's report."""

    prompt: int
    completion: int

    @property
    def total(self) -> int:
        """Tokens of both."""
        return self.prompt + self.completion


def window_filled(seen: Filled, before: Iterable[Filled]) -> int | None:
    """The window in tokens, if this answer and one `before` it from the same model fill the same, with different prompts.

    One alone tells nothing: a bound on answers ends some of them near a multiple of 1,024 by chance.
    """
    if seen.total < SMALLEST_WINDOW:
        return None
    same = [other.total for other in before if _same_window(seen, other)]
    if not same:
        return None
    whole = round(seen.total / _UNIT) * _UNIT
    usual = abs(seen.total - whole) <= _SLACK
    return max(whole if usual else 0, seen.total, *same)


def room_assumed(seen: Filled) -> int:
    """Tokens to reckon with where an answer ended for its length, and nothing tells the window: so much fits for sure.

    After a round number of tokens it was most likely a bound to answers: then the window has room for more.
    """
    round_ = any(seen.completion % unit == 0 for unit in _ROUND)
    return seen.total * (_ROOMIER if round_ else 1)


def _same_window(one: Filled, other: Filled) -> bool:
    return abs(one.total - other.total) <= _SLACK and abs(one.prompt - other.prompt) >= _APART

"""Evidence for a window that the backend does not report: prompts that were silently cut.

Ollama (0.30) cuts in two ways: it drops the oldest messages until the rest fits, or, if even that is too long, keeps half
of the window plus two tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_ROUND = (64, 100)
"""Units of the bounds that servers set on answers."""
_ROOMIER = 4
"""Factor for the assumed room if a bound ended an answer. If it is too high, a prompt is refused, which is learned from."""
_USUAL: tuple[int, ...] = tuple(1 << n for n in range(11, 21))
"""Windows that people and programs choose, in tokens."""
_HALF_SLACK = 8
_LONGER = 1.25
"""Ratio of estimates from which two prompts count as different in length."""
_AS_MUCH = 1.1
"""Maximum ratio of the reported tokens of two such prompts if the same window cut both."""


def room_assumed(prompt: int, completion: int) -> int:
    """Return the room to assume, in tokens, after an answer ended for its length while the window is unknown.

    Prompt and answer certainly fitted. If the answer ended after a round number of tokens, a bound on answers most likely
    ended it, and the window has room for more.
    """
    # Two answers that end at the same total teach no window; the first refusal that names one does.
    bound = any(completion % unit == 0 for unit in _ROUND)
    return (prompt + completion) * (_ROOMIER if bound else 1)


@dataclass(frozen=True, slots=True)
class CutSeen:
    """A prompt that seems to have been cut: its tokens as estimated here and as reported by the backend.

    `conversation` is a digest of the conversation that it belongs to.
    """

    estimated: int
    reported: int
    conversation: bytes

    def bears_out(self, other: Self) -> bool:
        """Return whether two observations together show a window rather than a wrong token count.

        If the count is wrong, the reported tokens grow with the prompt; the remainder of a cut does not. Two different
        conversations cut to exactly half of the same window also show one, however long they are.
        """
        short, long = sorted((self, other), key=lambda seen: seen.estimated)
        if long.estimated >= _LONGER * short.estimated:
            return long.reported <= _AS_MUCH * short.reported
        half = _halved(self.reported)
        return half is not None and half == _halved(other.reported) and self.conversation != other.conversation


def window_cut(seen: CutSeen, before: Iterable[CutSeen], *, loaded: int | None) -> int | None:
    """Return the window in tokens that cut this prompt, if a `loaded` instance reports it or an earlier prompt confirms it."""
    # A second prompt is required because a single one misled: a bound of the answer that happened to end near a
    # multiple of 1,024 made a window of 2,048 out of one of 32,768.
    window = window_behind_cut(seen.reported)
    if loaded is not None:
        return loaded if window is not None and window >= loaded else None
    borne_out = [window_behind_cut(other.reported) or 0 for other in before if seen.bears_out(other)]
    # A cut leaves less than the window, so of several figures the largest is nearest to it.
    return max(window, *borne_out) if window is not None and borne_out else None


def window_behind_cut(reported: int) -> int | None:
    """Infer the window in tokens from a cut that left `reported` prompt tokens; None if that is not possible."""
    half = _halved(reported)
    return half if half is not None else next((window for window in _USUAL if window >= reported), None)


def _halved(reported: int) -> int | None:
    return next((window for window in _USUAL if abs(reported - (window // 2 + 2)) <= _HALF_SLACK), None)

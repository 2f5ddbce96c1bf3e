"""Limits that a stream is watched for, and the judgements whether an answer is to be paused or was cut by the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core.piece import Piece
from proxy.stream.answer import Answer, Attempt
from proxy.stream.events import Room

_FULL_SLACK = 8
"""Tokens by which a report may miss the window although it is full (llama.cpp reports it exactly)."""
_BOUND_MARGIN = 24
"""Tokens before a bound of Spillway's own at which an attempt is paused, rather than cut inside a word."""
_PATIENCE = 32
"""A pause waits for the end of a word for this part of the window at most."""
_GAIN_SHARE = 16
"""A resumed attempt that said less than this part of the window gained no room."""
_DANGER = 4096
_DANGER_SHARE = 4
"""A tool call that begins within so many tokens, or such a part of the window, of the pause point is withheld."""
_CALL_SLACK = 64
"""A withheld call is given up when less than this part of the window is left."""
_SILENT = 3
"""Attempts that are refused inside the stream before they said a word, until the answer is ended."""
_EMPTY_FILL = 0.9
"""Fill from which an answer without a single delta is taken for a refused prompt (LM Studio 0.4)."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """Limits in tokens; `window` 0 means unknown: nothing is paused at a pause point."""

    window: int = 0
    pause_point: int = 0
    max_tokens: int | None = None
    strip_usage: bool = False
    """The usage chunk was Spillway's wish: take it out again."""
    told: Callable[[], Mapping[str, Any] | None] = lambda: None
    """What the usage tells of the whole request besides; None: nothing."""
    remarks: Callable[[], Sequence[Piece]] = tuple
    """What is told beside the answer, in front of its end mark."""
    show_usage: bool = False
    """The client wants usage, so a joined answer ends with a usage chunk."""
    cancels: bool = True
    """Whether an attempt may be left before its end; False: it is paid for to the end, so a bound has to stop it."""
    holds_calls: bool = False
    """Whether tool calls come whole, because they are read from text."""
    resumable: bool = False
    unknown: bool = False
    """Whether nobody has told the window, so that any end for its length may be its doing, or that of another bound."""
    vain_resumes: int = 3
    """Attempts in a row that may gain nothing until the answer is ended; 0: it is never gone on with."""
    search: str = ""
    """Name of Spillway's own tool, whose calls the client never sees; empty: the model has none."""
    ceiling: int = 2**62
    """Completion tokens over all attempts from which on an answer without a bound is not gone on with."""

    def settle(self, room: Room | None) -> None:
        """Watch for what is known now (None: nothing new); an answer of an unknown window can be paused from then on."""
        if room is None:
            return
        self.window, self.pause_point, self.ceiling = room.window, room.pause_point, room.ceiling
        self.resumable |= self.unknown
        self.unknown = room.assumed

    def noted(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The usage as the client is told it; the same object where there is nothing besides."""
        told = self.told() if self.show_usage else None
        return usage if told is None else {**usage, "spillway": told}

    def pause_due(self, answer: Answer) -> bool:
        """Return whether the running attempt has reached the pause point and would outgrow the window."""
        attempt = answer.attempts[-1]
        used = attempt.used
        near_bound = attempt.bound is not None and attempt.completion_tokens >= attempt.bound - _BOUND_MARGIN
        if not (near_bound or used >= self.pause_point) or attempt.finish or not self.may_go_on(answer):
            return False
        if attempt.withheld or attempt.unseen:
            return used >= self.window - max(_FULL_SLACK, self.window // _CALL_SLACK)
        left = self.remaining_tokens(answer)
        if near_bound and left is not None and left > _BOUND_MARGIN:
            return True
        return left is None or used + left > self.window - _FULL_SLACK

    def far(self, answer: Answer, tokens: int) -> bool:
        """Return whether so many more tokens are sure not to reach the pause point."""
        attempt = answer.attempts[-1]
        if self.unknown or attempt.bound is not None:
            return False
        # No less than `attempt.used`, without a call: this runs for every chunk.
        most = attempt.prompt_tokens + attempt.completion_tokens + attempt.unseen + tokens
        return most < self.pause_point or not self.resumable

    def overdue(self, answer: Answer) -> bool:
        """Return whether no word ended for so long after the pause point that the pause can't wait for one."""
        attempt = answer.attempts[-1]
        return attempt.withheld or attempt.unseen > 0 or attempt.used >= self.pause_point + self.window // _PATIENCE

    def endangers(self, answer: Answer) -> bool:
        """Return whether a tool call that begins now might not fit, or is no client's: then it is withheld until it is whole."""
        attempt = answer.attempts[-1]
        if attempt.searching and not attempt.withheld:
            return True
        reserve = max(_DANGER, self.window // _DANGER_SHARE)
        managed = self.resumable and self.window > 0 and not self.holds_calls
        return managed and not attempt.calling and attempt.used >= self.pause_point - reserve

    def called_enough(self, answer: Answer) -> bool:
        """Return whether whole calls were made and the window is nearly full of what the model says after them."""
        attempt = answer.attempts[-1]
        made = self.holds_calls and attempt.calling and self.resumable and self.window > 0
        return made and not attempt.searching and not attempt.finish and attempt.used >= self.pause_point

    def cut_after_calls(self, answer: Answer) -> bool:
        """Return whether the window ended an answer that has made whole calls."""
        attempt = answer.attempts[-1]
        made = self.holds_calls and attempt.calling and attempt.finish == "length"
        return made and self.remaining_tokens(answer) != 0

    def may_be_full(self, answer: Answer) -> bool:
        """Return whether an end for its length may have been the window's doing: usage may tell later."""
        left = self.remaining_tokens(answer)
        untold = self.unknown and not self.window and self.vain_resumes > 0
        may = self._between_words(answer) if untold else self.may_go_on(answer)
        return may and (left is None or left > 0)

    def _cut_by_unknown(self, answer: Answer) -> bool:
        """Return whether it was not the client's bound that ended it, by the backend's own count."""
        return self.unknown and (self.max_tokens is None or answer.attempt.usage is not None)

    def is_full(self, answer: Answer) -> bool:
        """Return whether an attempt that ended for its length is to be gone on with."""
        if not self.may_be_full(answer):
            return False
        # A bound that ended it was Spillway's, not the client's.
        return answer.attempt.bound is not None or self.outgrown(answer) or self._cut_by_unknown(answer)

    def outgrown(self, answer: Answer) -> bool:
        """Return whether the running attempt has filled the window, as far as was counted."""
        attempt = answer.attempts[-1]
        slack = _FULL_SLACK if attempt.usage else self.window // 16
        full = attempt.prompt_tokens + attempt.completion_tokens >= self.window - slack
        return self.window > 0 and attempt.spoke and full

    def ended_short(self, answer: Answer) -> bool:
        """Return whether the answer as a whole ended for want of room: not by the client's bound, and not gone on with."""
        attempt = answer.attempt
        full = self.window > 0 and attempt.used >= self.window - self.window // 16
        return attempt.finish == "length" and full and self.remaining_tokens(answer) != 0

    def suspiciously_empty(self, answer: Answer) -> bool:
        """Return whether an answer that said nothing at all is a refusal of the prompt."""
        attempt = answer.attempt
        empty = not answer.begun and not attempt.finish and not attempt.errored
        return empty and self.window > 0 and attempt.prompt_tokens >= _EMPTY_FILL * self.window

    def remaining_tokens(self, answer: Answer) -> int | None:
        """Completion tokens that the client still allows."""
        return None if self.max_tokens is None else max(0, self.max_tokens - answer.delivered_tokens)

    def may_go_on(self, answer: Answer) -> bool:
        """Return whether the answer can be resumed where it stands: between words, and with room gained so far."""
        return self._between_words(answer) and self._resumes(answer)

    def may_ask_again(self, answer: Answer) -> bool:
        """Return whether an attempt that was refused inside the stream, before it said a word, may be made once more."""
        return not answer.attempt.spoke and sum(not each.spoke for each in answer.attempts) < _SILENT

    def _between_words(self, answer: Answer) -> bool:
        attempt = answer.attempts[-1]
        if attempt.calling and not attempt.withheld:
            return False
        return answer.has_text or answer.thinking or attempt.withheld or attempt.unseen > 0

    def only_copied(self, attempt: Attempt) -> bool:
        """Return whether an attempt told the answer again to its end, word for word, and had hardly any room left to go on."""
        return attempt.copied and attempt.gained < self.window // _GAIN_SHARE

    def spent(self, answer: Answer) -> bool:
        """Return whether an answer that was gone on with has filled the window again, and is not gone on with any more.

        Where a window shifts, nothing else ends it.
        """
        attempt = answer.attempts[-1]
        if len(answer.attempts) == 1 or not self.resumable or attempt.used < self.window - _FULL_SLACK:
            return False
        half_a_call = attempt.calling and not attempt.withheld
        return not half_a_call and self.remaining_tokens(answer) != 0 and not self._resumes(answer)

    def _resumes(self, answer: Answer) -> bool:
        """Return whether there may be one more attempt after the running one."""
        if not self.resumable or not self.window:
            return False
        if answer.vain(self.window // _GAIN_SHARE) >= self.vain_resumes:
            return False
        return self.max_tokens is not None or answer.completion_tokens < self.ceiling

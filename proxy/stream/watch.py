"""Limits that a stream is watched for, and the judgements whether an answer is to be paused or was cut by the window."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.core.piece import CallPart, Piece
from proxy.stream.answer import Answer, Attempt

_FULL_SLACK = 8
"""Tokens by which a report may miss the window although it is full (llama.cpp reports it exactly)."""
_BOUND_MARGIN = 24
"""Tokens before a bound of Spillway's own at which an attempt is paused, rather than cut inside a word."""
_PATIENCE = 32
"""A pause waits for the end of a word for this part of the window at most."""
GAIN_SHARE = 16
"""A resumed attempt that added less than this part of the window gained no room."""
_DANGER = 4096
_DANGER_SHARE = 4
"""A tool call that begins within so many tokens, or such a part of the window, of the pause point is withheld."""
_CALL_SLACK = 64
"""A withheld call is given up when less than this part of the window is left."""
UNBOUND = 2**62
"""A bound in tokens that is none."""
_SILENT = 3
"""Attempts that are refused inside the stream before their first word, until the answer is ended."""
_ENDS = (None, "stop", "length", "tool_calls")
_EMPTY_FILL, _SMALL = 0.9, 2048
"""Fill from which an answer without a single delta is taken for a refused prompt (LM Studio 0.4), and a window where none is known."""
_TAIL, _PROBE, _LOOP, _TIMES = 4_000, 40, 1_500, 4
"""Characters of an answer's end that are looked at, of the piece that is looked for, and of a loop, which goes round so often."""
_LETTERS, _PROSE = 8, 0.6
"""Different letters that a sentence has, and their share of it: rows of a table, zeros and rules have fewer."""
_CHECKED = 500
_WORD = re.compile(r"[^\W\d_]+")


def repeats_itself(text: str, request: str = "") -> bool:
    """Return whether a text ends in the same sentences over and over: no code, and nothing that the request has the words of."""
    tail = text[-_TAIL:]
    period = len(tail) - _PROBE - tail.rfind(tail[-_PROBE:], 0, len(tail) - 1)
    needed = max(_LOOP, _TIMES * period)
    if needed > len(tail) or tail[-needed:-period] != tail[-needed + period :]:
        return False
    unit = tail[-period:].lower()
    letters = [letter for letter in unit if letter.isalpha()]
    prose = len({*letters}) >= _LETTERS and len(letters) >= _PROSE * len(unit)
    # The first word may be cut, and so may the last.
    named = {*_WORD.findall(request.lower())}.issuperset(_WORD.findall(unit * 2)[1:-1])
    return prose and not named and text.count("```") % 2 == 0


@dataclass(slots=True, kw_only=True)
class Watch:
    """Limits in tokens; `window` 0 means unknown: nothing is paused at a pause point."""

    window: int = 0
    pause_point: int = 0
    growth: int = 0
    """Completion tokens that an attempt has to come to before a pause gains any room."""
    max_tokens: int | None = None
    strip_usage: bool = False
    """The usage chunk was Spillway's wish: take it out again."""
    usage_details: Callable[[], Mapping[str, Any] | None] = lambda: None
    """What the usage says of the whole request besides; None: nothing."""
    remarks: Callable[[], Sequence[Piece]] = tuple
    """What is shown beside the answer, in front of its end mark."""
    show_usage: bool = False
    """The client wants usage, so a joined answer ends with a usage chunk."""
    cancels: bool = True
    """Whether an attempt may be left before its end; False: it is paid for to the end, so a bound has to stop it."""
    tools: bool = False
    """Whether the request offers any."""
    hidden: bool = False
    """Whether nobody sees the answer before its end, so that its last word can be taken back."""
    complete_calls: bool = False
    """Whether each tool call comes in one piece, because it is read from text."""
    resumable: bool = False
    unknown: bool = False
    """Whether nobody has reported the window, so that any end for its length may be its doing, or that of another bound."""
    vain_resumes: int = 3
    """Attempts in a row that may gain nothing until the answer is ended; 0: it is never resumed."""
    request: str | None = None
    """What the user asked for, where an answer that repeats itself is ended; None: it is not."""
    checked: int = 0
    """Characters up to which it was looked for that."""
    builtin: Mapping[str, Callable[[CallPart], CallPart | None]] = field(default_factory=dict)
    """Tools that Spillway answers: each returns a complete call as the client gets it; None: it never sees that."""
    thinking_bound: int = UNBOUND
    """Completion tokens from which on a model that has not begun its answer is made to."""
    conclusions: int = 0
    """Times that it may still be; an answer that ended without a word takes them all."""
    ceiling: int = UNBOUND
    """Completion tokens over all attempts from which on an answer without a bound is not resumed."""

    def passed(self, call: CallPart) -> CallPart | None:
        """Return a complete call as the client gets it; None: it is one that Spillway answers."""
        check = self.builtin.get(call.name)
        return call if check is None else check(call)

    def with_details(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The usage as the client gets it; the same object where there is nothing to add."""
        details = self.usage_details() if self.show_usage else None
        return usage if details is None else {**usage, "spillway": details}

    def far(self, answer: Answer, tokens: int) -> bool:
        """Return whether so many more tokens are sure not to reach the pause point."""
        attempt = answer.attempts[-1]
        if self.unknown or attempt.bound is not None or attempt.completion_tokens + tokens >= self.thinking_bound:
            return False
        # No less than `attempt.used`, without a call: this runs for every chunk.
        most = attempt.prompt_tokens + attempt.completion_tokens + attempt.unseen + tokens
        near = most >= self.pause_point and attempt.completion_tokens + tokens >= self.growth
        return not (near and self.resumable)

    def loops(self, answer: Answer) -> bool:
        """Return whether the answer goes round in circles, as far as it is time to look for that again."""
        attempt = answer.attempts[-1]
        if self.request is None or answer.size < self.checked + _CHECKED or attempt.calling or attempt.finish:
            return False
        self.checked = answer.size
        return repeats_itself(answer.text if answer.has_text else answer.reasoning, self.request)

    def pause_due(self, answer: Answer) -> bool:
        """Return whether the running attempt has reached the pause point and would outgrow the window."""
        attempt = answer.attempts[-1]
        used = attempt.used
        near_bound = attempt.bound is not None and attempt.completion_tokens >= attempt.bound - _BOUND_MARGIN
        if not (near_bound or used >= self.pause_point) or attempt.finish or not self.may_resume(answer):
            return False
        # Of a call that is withheld nothing would be left.
        if not near_bound and (attempt.completion_tokens if answer.mark is None else answer.mark[2]) < self.growth:
            return False
        if attempt.withheld or attempt.unseen:
            return used >= self.window - max(_FULL_SLACK, self.window // _CALL_SLACK)
        remaining = self.remaining_tokens(answer)
        if near_bound and remaining is not None and remaining > _BOUND_MARGIN:
            return True
        return remaining is None or used + remaining > self.window - _FULL_SLACK

    def thought_enough(self, answer: Answer) -> bool:
        """Return whether the model has used up what it may think, and is still thinking."""
        attempt = answer.attempts[-1]
        if answer.completion_tokens < self.thinking_bound or attempt.finish or attempt.unseen:
            return False
        if not answer.in_thought:
            self.thinking_bound = UNBOUND  # it answers
        return self.thinking_bound < UNBOUND

    def ended_in_thought(self, answer: Answer) -> bool:
        """Return whether an answer ended behind a thought, so that it is asked for once more."""
        return self.conclusions > 0 and answer.attempts[-1].finish in ("stop", "length") and answer.only_thought

    def overdue(self, answer: Answer) -> bool:
        """Return whether no word ended for so long after the pause point that the pause can't wait for one."""
        attempt = answer.attempts[-1]
        over = attempt.used - self.pause_point
        if self.growth:
            over = min(over, attempt.completion_tokens - self.growth)
        return attempt.withheld or attempt.unseen > 0 or over >= self.window // _PATIENCE

    def endangers(self, answer: Answer) -> bool:
        """Return whether a tool call that begins now might not fit, or is no client's: then it is withheld until it is complete."""
        attempt = answer.attempts[-1]
        if attempt.searching:
            return not attempt.withheld
        reserve = max(_DANGER, self.window // _DANGER_SHARE)
        managed = self.resumable and self.window > 0 and not self.complete_calls
        return managed and not attempt.calling and attempt.used >= self.pause_point - reserve

    def cut_after_calls(self, answer: Answer) -> bool:
        """Return whether the window ended an answer that has made complete calls."""
        attempt = answer.attempts[-1]
        called = self.complete_calls and attempt.calling and attempt.finish == "length"
        return called and self.remaining_tokens(answer) != 0

    def may_be_full(self, answer: Answer) -> bool:
        """Return whether an end for its length may have been the window's doing: usage may tell later."""
        untold = self.unknown and not self.window and self.vain_resumes > 0
        may = self._between_words(answer) if untold else self.may_resume(answer)
        return may and self.remaining_tokens(answer) != 0

    def is_full(self, answer: Answer) -> bool:
        """Return whether an attempt that ended for its length is to be resumed: its bound was the window, or Spillway's own."""
        if not self.may_be_full(answer):
            return False
        # Where nobody knows the window it was not the client's bound, by the backend's own count.
        unknown = self.unknown and (self.max_tokens is None or answer.attempt.usage is not None)
        return unknown or answer.attempt.bound is not None or self.outgrown(answer)

    def outgrown(self, answer: Answer) -> bool:
        """Return whether the running attempt has filled the window, as far as was counted."""
        attempt = answer.attempts[-1]
        slack = _FULL_SLACK if attempt.usage else self.window // 16
        full = attempt.prompt_tokens + attempt.completion_tokens >= self.window - slack
        return self.window > 0 and attempt.spoke and full

    def ended_short(self, answer: Answer) -> bool:
        """Return whether the answer ended for want of room: not by the client's bound, and not resumed."""
        attempt = answer.attempt
        full = self.window > 0 and attempt.used >= self.window - self.window // 16
        return attempt.finish == "length" and full and self.remaining_tokens(answer) != 0

    def suspiciously_empty(self, answer: Answer) -> bool:
        """Return whether nothing at all was generated, so that the prompt may not fit: by the window, or by the backend's own count.

        A model that has nothing to say generates a token that says so.
        """
        attempt = answer.attempt
        if answer.has_output or attempt.errored or attempt.finish not in _ENDS or self.remaining_tokens(answer) == 0:
            return False
        counted = attempt.finish is not None and attempt.usage is not None and "completion_tokens" in attempt.usage
        full = self.window > 0 and self.may_not_fit(answer)
        return len(answer.attempts) == 1 and (counted or full or (self.tools and attempt.finish is not None))

    def may_not_fit(self, answer: Answer) -> bool:
        """Return whether the prompt may be longer than the window; where that is not known, than the smallest in use."""
        return answer.attempt.prompt_tokens >= _EMPTY_FILL * (self.window or _SMALL)

    def swallowed(self, answer: Answer) -> bool:
        """Return whether an answer with tools was generated, and nothing of it sent: the backend could not read a call in it."""
        attempt = answer.attempt
        silent = answer.is_empty and not (attempt.calling or attempt.errored)
        return silent and attempt.finish in ("stop", "tool_calls") and attempt.completion_tokens > 1

    def remaining_tokens(self, answer: Answer) -> int | None:
        """Completion tokens that the client still allows."""
        return None if self.max_tokens is None else max(0, self.max_tokens - answer.delivered_tokens)

    def may_resume(self, answer: Answer) -> bool:
        """Return whether the answer can be resumed where it stands: between words, and with room gained so far."""
        return self._between_words(answer) and self._may_resume_again(answer)

    def may_retry(self, answer: Answer) -> bool:
        """Return whether an attempt that was refused inside the stream, before its first word, may be made once more."""
        return not answer.attempt.spoke and sum(not each.spoke for each in answer.attempts) < _SILENT

    def only_copied(self, attempt: Attempt) -> bool:
        """Return whether an attempt repeated the answer to its end, word for word, and had hardly any room left to go on."""
        return attempt.copied and attempt.gained < self.window // GAIN_SHARE

    def spent(self, answer: Answer) -> bool:
        """Return whether an answer that was resumed has filled the window again, and is not resumed any more.

        Where a window shifts, nothing else ends it.
        """
        attempt = answer.attempts[-1]
        if len(answer.attempts) == 1 or not self.resumable or attempt.used < self.window - _FULL_SLACK:
            return False
        half_a_call = attempt.calling and not attempt.withheld
        return not half_a_call and self.remaining_tokens(answer) != 0 and not self._may_resume_again(answer)

    def _between_words(self, answer: Answer) -> bool:
        attempt = answer.attempts[-1]
        if attempt.calling and not attempt.withheld:
            return False
        return answer.has_text or answer.thinking or attempt.withheld or attempt.unseen > 0

    def _may_resume_again(self, answer: Answer) -> bool:
        """Return whether there may be one more attempt after the running one."""
        if not self.resumable or not self.window:
            return False
        if answer.attempts_in_vain(self.window // GAIN_SHARE) >= self.vain_resumes:
            return False
        return not self.at_ceiling(answer)

    def at_ceiling(self, answer: Answer) -> bool:
        """Return whether an answer without a bound is as long as Spillway lets it get."""
        return self.max_tokens is None and answer.completion_tokens >= self.ceiling

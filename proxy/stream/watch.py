"""Limits of an attempt, and the judgements whether it should be paused or was cut by the window.

Limits never change, and no judgement changes anything: what was learned between two attempts makes the next one's `Watch`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.core.piece import CallPart, Piece
from proxy.stream.answer import Answer, Attempt

_FULL_SLACK = 8
"""Tokens by which reported usage may fall short of a window that is full (llama.cpp reports it exactly)."""
_BOUND_MARGIN = 24
"""Tokens before Spillway's own bound at which an attempt is paused, so that it is not cut inside a word."""
_PATIENCE = 32
"""Divisor of the window: how far past the pause point a pause waits for the end of a word."""
GAIN_SHARE = 16
"""Divisor of the window: a resumed attempt that adds less gained no room."""
_DANGER = 4096
_DANGER_SHARE = 4
"""A tool call is withheld if it begins within `_DANGER` tokens of the pause point, or within the window divided by this."""
_CALL_SLACK = 64
"""Divisor of the window: a withheld call is given up when less is left."""
UNBOUND = 2**62
"""Tokens that stand for "no bound"."""
_SILENT = 3
"""Attempts refused inside the stream, before their first word, after which the answer is ended."""
_ENDS = (None, "stop", "length", "tool_calls")
_EMPTY_FILL, _SMALL = 0.9, 2048
"""Share of the window from which an empty answer is taken for a refused prompt (LM Studio 0.4); and the window assumed if unknown."""
_TAIL, _PROBE, _LOOP, _TIMES = 4_000, 40, 1_500, 4
"""Characters of the end that is examined, of the probe searched in it, and of the shortest loop; and rounds of a loop."""
_LETTERS, _PROSE = 8, 0.6
"""Fewest different letters of a sentence, and the smallest share of letters in it: table rows, zeros and rules have fewer."""
CHECKED = 500
"""Characters of an answer between two checks whether it repeats itself."""
_WORD = re.compile(r"[^\W\d_]+")


def repeats_itself(text: str, request: str = "") -> bool:
    """Return whether a text ends in sentences repeated over and over, unless they are code or made of the request's own words."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Limits of an attempt, in tokens. A `window` of 0 means that it is unknown: then there is no pause point."""

    window: int = 0
    pause_point: int = 0
    growth: int = 0
    """Completion tokens that an attempt has to reach before a pause gains any room."""
    max_tokens: int | None = None
    strip_usage: bool = False
    """Whether to remove the usage chunk, because Spillway asked for it and the client did not."""
    usage_details: Callable[[], Mapping[str, Any] | None] = lambda: None
    """Returns Spillway's own figures for the usage, or None for none."""
    remarks: Callable[[], Sequence[Piece]] = tuple
    """Returns pieces to show beside the answer, before its end mark."""
    show_usage: bool = False
    """Whether the client wants usage, so that a joined answer ends with a usage chunk."""
    cancels: bool = True
    """Whether leaving an attempt stops it. If not, it is paid for to its end, so only a `max_tokens` bound can pause it."""
    tools: bool = False
    """Whether the request offers tools."""
    hidden: bool = False
    """Whether the client sees nothing before the answer's end, so that its last word can be taken back."""
    complete_calls: bool = False
    """Whether each tool call comes in one piece, because it is read from text."""
    resumable: bool = False
    unknown: bool = False
    """Whether the window was never reported, so that a finish reason of `length` may come from it or from another bound."""
    vain_resumes: int = 3
    """Attempts in a row without gain after which the answer is ended; 0 if it is never resumed."""
    request: str | None = None
    """The user's request if an answer that repeats itself should be ended, else None."""
    builtin: Mapping[str, Callable[[CallPart], CallPart | None]] = field(default_factory=dict)
    """Tools that Spillway answers itself. Each turns a complete call into what the client gets, or None if it gets nothing."""
    thinking_bound: int = UNBOUND
    """Completion tokens at which a model that is still thinking is made to answer."""
    conclusions: int = 0
    """Times that the model may be made to answer."""
    ceiling: int = UNBOUND
    """Completion tokens over all attempts at which an answer without a bound is not resumed any more."""

    def passed(self, call: CallPart) -> CallPart | None:
        """Return a complete call as the client gets it, or None if Spillway answers it."""
        check = self.builtin.get(call.name)
        return call if check is None else check(call)

    def with_details(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the usage as the client gets it; the same object if there is nothing to add."""
        details = self.usage_details() if self.show_usage else None
        return usage if details is None else {**usage, "spillway": details}

    def far(self, answer: Answer, tokens: int) -> bool:
        """Return whether `tokens` more certainly stay below the pause point."""
        attempt = answer.attempts[-1]
        if self.unknown or attempt.bound is not None:
            return False
        # An upper bound of `attempt.used`, written out because this runs for every chunk and a call would cost time.
        most = attempt.prompt_tokens + attempt.completion_tokens + attempt.unseen + tokens
        return not self.resumable or most < self.pause_point

    def loops(self, answer: Answer) -> bool:
        """Return whether the answer repeats itself."""
        attempt = answer.attempts[-1]
        if self.request is None or attempt.calling or attempt.finish:
            return False
        return repeats_itself(answer.text if answer.has_text else answer.reasoning, self.request)

    def pause_due(self, answer: Answer) -> bool:
        """Return whether the running attempt has reached the pause point and would outgrow the window."""
        attempt = answer.attempts[-1]
        used = attempt.used
        near_bound = attempt.bound is not None and attempt.completion_tokens >= attempt.bound - _BOUND_MARGIN
        if not (near_bound or used >= self.pause_point) or attempt.finish or not self.may_resume(answer):
            return False
        # A pause would drop a withheld call, so only the tokens before its mark count as growth.
        if not near_bound and (attempt.completion_tokens if answer.mark is None else answer.mark[2]) < self.growth:
            return False
        if attempt.withheld or attempt.unseen:
            return used >= self.window - max(_FULL_SLACK, self.window // _CALL_SLACK)
        remaining = self.remaining_tokens(answer)
        if near_bound and remaining is not None and remaining > _BOUND_MARGIN:
            return True
        return remaining is None or used + remaining > self.window - _FULL_SLACK

    def ended_in_thought(self, answer: Answer) -> bool:
        """Return whether the model stopped while it had only been thinking, so that Spillway asks again."""
        return self.conclusions > 0 and answer.attempts[-1].finish in ("stop", "length") and answer.only_thought

    def overdue(self, answer: Answer) -> bool:
        """Return whether the pause can't wait any longer for the end of a word."""
        attempt = answer.attempts[-1]
        over = attempt.used - self.pause_point
        if self.growth:
            over = min(over, attempt.completion_tokens - self.growth)
        return attempt.withheld or attempt.unseen > 0 or over >= self.window // _PATIENCE

    def endangers(self, answer: Answer) -> bool:
        """Return whether to withhold a call that begins now until it is complete: it might not fit, or Spillway may answer it."""
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
        """Return whether a finish reason of `length` may come from the window; a later usage chunk may decide it."""
        untold = self.unknown and not self.window and self.vain_resumes > 0
        may = self._between_words(answer) if untold else self.may_resume(answer)
        return may and self.remaining_tokens(answer) != 0

    def is_full(self, answer: Answer) -> bool:
        """Return whether to resume an attempt that ended with `length`: its bound was the window or Spillway's own."""
        if not self.may_be_full(answer):
            return False
        # With an unknown window, the backend's own count has to show that it was not the client's bound.
        unknown = self.unknown and (self.max_tokens is None or answer.attempt.usage is not None)
        return unknown or answer.attempt.bound is not None or self.outgrown(answer)

    def outgrown(self, answer: Answer) -> bool:
        """Return whether the running attempt has filled the window, going by the counts so far."""
        attempt = answer.attempts[-1]
        slack = _FULL_SLACK if attempt.usage else self.window // 16
        full = attempt.prompt_tokens + attempt.completion_tokens >= self.window - slack
        return self.window > 0 and attempt.spoke and full

    def inferred_finish(self, answer: Answer, *, marked: bool) -> str | None:
        """Return the finish reason that the backend left out, or None if it can't be inferred; `marked`: there was an end mark."""
        attempt = answer.attempt
        if self.outgrown(answer):
            return "length"
        if marked and attempt.spoke and (not attempt.calling or answer.calls_are_complete):
            return "tool_calls" if attempt.calling else "stop"
        return None

    def ended_short(self, answer: Answer) -> bool:
        """Return whether the answer ended for lack of room rather than by the client's bound."""
        attempt = answer.attempt
        full = self.window > 0 and attempt.used >= self.window - self.window // 16
        return attempt.finish == "length" and full and self.remaining_tokens(answer) != 0

    def suspiciously_empty(self, answer: Answer) -> bool:
        """Return whether nothing was generated and the prompt may not fit, by the window or by the backend's own count.

        Even a model that has nothing to say generates an end token.
        """
        attempt = answer.attempt
        if answer.has_output or attempt.errored or attempt.finish not in _ENDS or self.remaining_tokens(answer) == 0:
            return False
        counted = attempt.finish is not None and attempt.usage is not None and "completion_tokens" in attempt.usage
        full = self.window > 0 and self.may_not_fit(answer)
        return len(answer.attempts) == 1 and (counted or full or (self.tools and attempt.finish is not None))

    def may_not_fit(self, answer: Answer) -> bool:
        """Return whether the prompt may be longer than the window (2,048 tokens if unknown)."""
        return answer.attempt.prompt_tokens >= _EMPTY_FILL * (self.window or _SMALL)

    def swallowed(self, answer: Answer) -> bool:
        """Return whether an answer was generated but not sent, most likely because the backend could not parse a tool call."""
        attempt = answer.attempt
        silent = answer.is_empty and not (attempt.calling or attempt.errored)
        return silent and attempt.finish in ("stop", "tool_calls") and attempt.completion_tokens > 1

    def remaining_tokens(self, answer: Answer) -> int | None:
        """Return the completion tokens that the client still allows, or None without a bound."""
        return None if self.max_tokens is None else max(0, self.max_tokens - answer.delivered_tokens)

    def may_resume(self, answer: Answer) -> bool:
        """Return whether the answer can be resumed at this point: it is not in the middle of a call, and resuming gains room."""
        return self._between_words(answer) and self._may_resume_again(answer)

    def may_retry(self, answer: Answer) -> bool:
        """Return whether an attempt that was refused inside the stream, before its first word, may be repeated."""
        return not answer.attempt.spoke and sum(not each.spoke for each in answer.attempts) < _SILENT

    def only_copied(self, attempt: Attempt) -> bool:
        """Return whether an attempt spent its room on repeating the answer verbatim, with hardly any left to go on."""
        return attempt.copied and attempt.gained < self.window // GAIN_SHARE

    def spent(self, answer: Answer) -> bool:
        """Return whether a resumed answer has filled the window again and may not be resumed once more.

        On a backend that shifts its window, nothing else would end it.
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

"""The one record of a request's whole life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from proxy.backends.profile import ModelKey
from proxy.telemetry import events as e

Activity: TypeAlias = Literal["idle", "reading", "compacting", "waiting", "answering", "paused"]
CLIENT_LEFT = 499
"""Status of a request whose client left before it was answered (nginx's word for it)."""
FORWARDED = "forwarded"
PASSED = "passed"
"""What was done to a request that is not managed."""
COMPACTING = "compacting"
REPEATED = "repeated"
"""A client's own compaction that a model had written before."""
BACKEND = "backend"
"""Why less was reused than repeated: it keeps no prompts, or needed the room."""
_NEARLY = 0.8
"""Fraction of what was repeated that is all of it, as estimates go."""
_MOST_MALFORMED = 16
_BLOCKS = 32
"""Tokens that are read again because caches keep whole blocks (vLLM: 16), and the answer begins another one."""
_NOTHING: Mapping[str, int] = MappingProxyType({})

MOST_TOLD = 16
"""Compactions of one request of which is told what they came to."""


@lru_cache(maxsize=1024)
def owner(credential: str) -> str:
    """Eight digits that stand for whose something is, and lead nowhere; `credential` is a digest already."""
    return blake2b(credential.encode(), digest_size=4, person=b"spillway-owner").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What one compaction came to. Tokens are those of the history, or of the text that is gone on with."""

    kind: str
    results_cleaned: int
    """Tool results that no longer stand in it as they did."""
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    ratio: float
    """Tokens after it as a fraction of those before."""
    seconds: float

    @classmethod
    def of(cls, event: e.Compacted) -> Reduced:
        """What this one did."""
        before, after = event.messages
        return cls(
            kind=event.kind,
            results_cleaned=event.cleaned,
            messages_before=before,
            messages_after=after,
            tokens_before=event.before,
            tokens_after=event.after,
            ratio=round(event.ratio, 4),
            seconds=round(event.seconds, 3),
        )


class Outcome:
    """What became of one request. Only its journal writes it; it is complete when the request has ended.

    Counts are over the whole request. `first_byte` and `seconds` are since it was received. What has not happened
    stands in the class: each request makes one.
    """

    dialect = ""
    ahead = False
    """Whether it is no request, but what is done before the next one."""
    backend = ""
    model = ""
    credential = ""
    """A digest."""
    conversation = ""
    """A digest of what the client names it by; empty: it does not."""
    status = 0
    doing: Activity = "reading"
    """What is being done, while it runs."""
    action = PASSED
    kind = ""
    """Of the newest reduction that its history went through; empty: none."""
    tools = ""
    """`emulated`, or nothing."""
    shaped: Mapping[str, int] = _NOTHING
    """Tokens that the policy saved on parts of the prompt as it was read, see `Shaped`."""
    window: int | None = None
    tokens_before: int | None = None
    """Prompt tokens as they were when the request had been read, by the best estimate."""
    tokens_after: int | None = None
    """The same as they were sent last."""
    attempts = 0
    rungs: tuple[str, ...] = ()
    """Of the ladder, those that took something out, in this order."""
    compactions = 0
    reduced: tuple[Reduced, ...] = ()
    """What each of them came to, the newest last; of more than `MOST_TOLD` the newest."""
    compaction_seconds = 0.0
    summaries = 0
    """Requests for them."""
    unfit = 0
    """How many of them were not fit to be used."""
    summary = ""
    """What stands for the covered part since its newest reduction that told of it: `written` by a model, an `extract` by code; empty: neither."""
    extracts = 0
    """Compactions whose summary was an extract made by code."""
    recalled = 0
    """Passages of the covered history that were put back into the prompt, and their tokens."""
    recalled_tokens = 0
    left_out = 0
    """Tokens from the middle of the newest user message that were not sent, and those of all of it; 0: none had to be."""
    left_out_of = 0
    cut_earlier: tuple[int, int] = (0, 0)
    """The same of earlier user messages, as far as this request's compactions cut them."""
    repeated: int | None = None
    """Tokens that the prompt before it in the conversation began with, by the best estimate; None: nothing was sent."""
    reused: int | None = None
    """Tokens of the prompt that the backend had read before; None: it does not tell."""
    unlike = ""
    """Why no more were repeated, see `Repeated`, or reused (`backend`); empty: there was no more of it."""
    malformed_calls: tuple[e.MalformedCall, ...] = ()
    """Tool calls that could not be made, or were only shown; the first of them."""
    leaked_calls = 0
    """Tool calls that were read back from the text of a model with tools of its own."""
    repeated_calls = 0
    """Tool calls that were left out, because the answer had made them before."""
    searches = 0
    """Searches of the conversation that the model made."""
    refusals = 0
    pauses = 0
    resumes = 0
    unfinished = False
    """It ended for want of room, with more to say."""
    stopped = False
    """Somebody who looked at it had it end."""
    first_byte: float | None = None
    seconds = 0.0
    usage: Mapping[str, Any] | None = None
    """Tokens of the whole answer, as the client was or would have been told."""
    error: str | None = None
    """Code of the error that the client got; None: none."""

    def __init__(self, request_id: str, since: float) -> None:
        """`since` it was received, on the clock of the journals."""
        self.id = request_id
        self.since = since
        self.story: list[tuple[float, e.Event]] = []
        """What happened, and when on the same clock, as far as that is kept (`Journals.keeping`)."""

    @property
    def key(self) -> ModelKey:
        """Backend and model."""
        return self.backend, self.model

    @property
    def fill(self) -> float | None:
        """Prompt tokens as a fraction of the window."""
        if self.window is None or self.tokens_after is None:
            return None
        return self.tokens_after / self.window

    @property
    def handled(self) -> bool:
        """Whether more was done than to forward it."""
        return bool(self.compactions or self.pauses or self.attempts > 1)

    @property
    def mended_calls(self) -> bool:
        """Whether anything is to be told of its tool calls."""
        return bool(self.malformed_calls or self.leaked_calls or self.repeated_calls)

    def told_of_calls(self) -> dict[str, Any]:
        """That, for the client."""
        malformed = [{"reason": call.reason, "tool": call.tool} for call in self.malformed_calls]
        told = {"malformed": malformed, "leaked": self.leaked_calls, "repeated": self.repeated_calls}
        return {name: value for name, value in told.items() if value}

    @property
    def plain(self) -> bool:
        """Whether it was forwarded, or passed on, and answered, and nothing else happened."""
        odd = self.unfinished or self.stopped
        eventful = self.handled or self.refusals or odd or self.recalled or self.left_out or self.mended_calls
        return not eventful and self.error is None and self.status < 400


def _received(outcome: Outcome, event: e.Received, _: float) -> None:
    outcome.dialect, outcome.credential = event.dialect, event.credential


def _named(outcome: Outcome, event: e.Named, _: float) -> None:
    outcome.conversation = event.conversation


def _routed(outcome: Outcome, event: e.Routed, _: float) -> None:
    outcome.backend, outcome.model = event.backend, event.model


def _measured(outcome: Outcome, event: e.Measured, _: float) -> None:
    outcome.window, outcome.tokens_after, outcome.tools = event.window, event.tokens, event.tools
    if outcome.tokens_before is None:
        outcome.tokens_before, outcome.action = event.tokens, FORWARDED


def _shaped(outcome: Outcome, event: e.Shaped, _: float) -> None:
    outcome.shaped = dict(event.saved)


def _compacting(outcome: Outcome, _: e.Compacting, __: float) -> None:
    outcome.action, outcome.doing = COMPACTING, "compacting"


def _compacted(outcome: Outcome, event: e.Compacted, _: float) -> None:
    if event.gained:
        # What an earlier one told stays in the history when a later one does without.
        outcome.kind, outcome.summary = event.kind, event.summary or outcome.summary
        outcome.extracts += event.summary == "extract"
        outcome.compactions += 1
        outcome.cut_earlier = event.cut if event.cut[0] else outcome.cut_earlier
        outcome.reduced = (*outcome.reduced, Reduced.of(event))[-MOST_TOLD:]
        outcome.rungs = tuple(dict.fromkeys((*outcome.rungs, *event.rungs)))
    outcome.action, outcome.doing = outcome.kind or FORWARDED, "waiting"
    outcome.compaction_seconds += event.seconds


def _recalled(outcome: Outcome, event: e.Recalled, _: float) -> None:
    outcome.recalled, outcome.recalled_tokens = event.passages, event.tokens


def _message_cut(outcome: Outcome, event: e.MessageCut, _: float) -> None:
    outcome.left_out, outcome.left_out_of = event.tokens, event.whole


def _handed_over(outcome: Outcome, _: e.HandedOver, __: float) -> None:
    outcome.action = REPEATED


def _searched(outcome: Outcome, _: e.Searched, __: float) -> None:
    outcome.searches += 1


def _out_of_room(outcome: Outcome, _: e.OutOfRoom, __: float) -> None:
    outcome.unfinished = True


def _stopped(outcome: Outcome, _: e.Stopped, __: float) -> None:
    outcome.stopped = True


def _first_byte(outcome: Outcome, _: e.FirstByte, now: float) -> None:
    outcome.doing = "answering"
    if outcome.first_byte is None:
        outcome.first_byte = now - outcome.since


def _sent(outcome: Outcome, _: e.Sent, __: float) -> None:
    outcome.attempts += 1
    outcome.doing = "waiting"


def _repeated(outcome: Outcome, event: e.Repeated, _: float) -> None:
    outcome.repeated, outcome.unlike = event.tokens, event.why


def _reused(outcome: Outcome, event: e.Reused, _: float) -> None:
    outcome.reused = event.tokens
    if not outcome.unlike and event.tokens < (outcome.repeated or 0) * _NEARLY - _BLOCKS:
        outcome.unlike = BACKEND


def _summarised(outcome: Outcome, event: e.Summarised, _: float) -> None:
    outcome.summaries += 1
    outcome.unfit += not event.used


def _refused(outcome: Outcome, _: e.Refused, __: float) -> None:
    outcome.refusals += 1


def _malformed_call(outcome: Outcome, event: e.MalformedCall, _: float) -> None:
    outcome.malformed_calls = (*outcome.malformed_calls, event)[:_MOST_MALFORMED]


def _calls_mended(outcome: Outcome, event: e.CallsMended, _: float) -> None:
    if event.what == "leaked":
        outcome.leaked_calls += event.number
    else:
        outcome.repeated_calls += event.number


def _paused(outcome: Outcome, _: e.Paused, __: float) -> None:
    outcome.pauses += 1
    outcome.doing = "paused"


def _resumed(outcome: Outcome, _: e.Resumed, __: float) -> None:
    outcome.resumes += 1
    outcome.doing = "answering"


Noted: TypeAlias = Callable[[Outcome, Any, float], None]
NOTED: dict[type, Noted] = {
    e.Received: _received,
    e.Named: _named,
    e.Routed: _routed,
    e.Measured: _measured,
    e.Shaped: _shaped,
    e.Compacting: _compacting,
    e.Compacted: _compacted,
    e.Recalled: _recalled,
    e.MessageCut: _message_cut,
    e.HandedOver: _handed_over,
    e.Searched: _searched,
    e.OutOfRoom: _out_of_room,
    e.Stopped: _stopped,
    e.FirstByte: _first_byte,
    e.Sent: _sent,
    e.Summarised: _summarised,
    e.Repeated: _repeated,
    e.Reused: _reused,
    e.Refused: _refused,
    e.MalformedCall: _malformed_call,
    e.CallsMended: _calls_mended,
    e.Paused: _paused,
    e.Resumed: _resumed,
}
"""How an outcome takes in an event that is told at this time, on the clock of the journals."""

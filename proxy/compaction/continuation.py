"""Asking a backend to go on with a partial answer, and shortening a partial answer that has grown too long."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from proxy.backends.profile import Continuation
from proxy.compaction import summary
from proxy.compaction.asking import Sliced, Summariser, SummaryAsk
from proxy.compaction.results import Cost
from proxy.compaction.shorten import cut_middle, fit
from proxy.compaction.source import of_text
from proxy.core.history.marks import CONTINUED, SHORTENED
from proxy.core.request import Message, Request, text_of
from proxy.stream.thinking import open_thought

_QUOTED = 300
_GO_ON = (
    "Your answer was cut off. It ended with:\n{opening}{tail}{closing}\n"
    "Go on from exactly there. Do not repeat anything and do not comment on this."
)
_NOTES = "[My thoughts so far, cut off at the end:]\n{}"
_THINK_ON = (
    "You were interrupted while you were thinking. Think on from there, only as far as it is still needed, and then "
    "give your answer to my last message. Do not comment on the interruption."
)
CONCLUDE = (
    "You were interrupted because you have thought long enough. Give your answer to my last message now, from these "
    "thoughts and without any further ones. Do not comment on the interruption."
)
_FLAGS = {"continue_final_message": True, "add_generation_prompt": False}
_TAG = re.compile(r"\A\s*<\w+>")
_LOST = " […]"
_SUMMARISED = f"{SHORTENED}\n{{}}\n{CONTINUED}\n\n"


@dataclass(frozen=True, slots=True)
class ContinuationRequest:
    """Messages and fields to ask with. The backend may repeat all of `echo`, and the model may repeat `quote`."""

    messages: list[Message]
    fields: dict[str, Any]
    echo: str = ""
    quote: str = ""
    exact: bool = False
    """Whether the backend is known to go on with the very next character."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Partial answer: its text, and its reasoning if it has no text yet."""

    text: str = ""
    thought: str = ""

    @property
    def in_thought(self) -> bool:
        """Return whether it was interrupted while the model was thinking."""
        return (bool(self.thought) and not self.text) or open_thought(self.text) is not None


def with_resume_flags(request: Request, how: Continuation) -> Request:
    """Add the flags with which a backend continues an answer that the client began, unless the client set them itself.

    Without them, llama.cpp repeats the beginning in answers that are sent whole, and vLLM begins another message.
    """
    messages = request.messages
    prefilled = request.continues and bool(messages) and messages[-1].get("role") == "assistant"
    if not prefilled or how is not Continuation.FLAGS or not _FLAGS.keys().isdisjoint(request.body):
        return request
    return request.changed(**_FLAGS) if text_of(messages[-1]) else request


def continuation(
    history: Sequence[Message], partial: Partial, how: Continuation | None, *, thoughts: bool = False
) -> ContinuationRequest:
    """Ask for the rest of an answer in the way this backend understands, or for a new answer if there is nothing to continue.

    `thoughts`: the backend can also continue reasoning if asked by flags (llama.cpp).
    """
    if history and history[-1].get("role") == "assistant" and (partial.text or partial.thought):
        # The client began the answer itself: the partial answer continues its text.
        prefix = text_of(history[-1])
        history = history[:-1]
        partial = Partial(prefix + partial.text, partial.thought)
    if not partial.text and not partial.thought:
        return ContinuationRequest(list(history), {}, exact=True)  # there was only a tool call that did not fit
    flags = how is Continuation.FLAGS and (bool(partial.text) or thoughts)
    if flags:
        # Streams do not repeat the text in this form (llama.cpp from May 2026, vLLM).
        answer: Message = {"role": "assistant", "content": partial.text}
        if not partial.text:
            # Left out, llama.cpp would continue after an empty block of thinking.
            answer["reasoning_content"] = partial.thought
        return ContinuationRequest([*history, answer], dict(_FLAGS), exact=True)
    if not partial.text or (partial.in_thought and how is Continuation.QUOTE):
        return from_notes(history, partial.text or partial.thought)
    answer = {"role": "assistant", "content": partial.text}
    tail = partial.text[-_QUOTED:]
    if how is Continuation.TRAILING:
        return ContinuationRequest([*history, answer], {}, echo=partial.text, quote=tail)
    ask: Message = {"role": "user", "content": _go_on(tail)}
    return ContinuationRequest([*history, answer, ask], {}, quote=tail)


def closed(history: Sequence[Message], thought: str, *, tagged: bool) -> ContinuationRequest:
    """Have a backend write the answer that follows finished reasoning; `tagged`: that is in the text, between its tags."""
    if tagged:
        answer: Message = {"role": "assistant", "content": f"{thought}\n\n"}
        return ContinuationRequest([*history, answer], dict(_FLAGS), exact=True)
    # With the value "content", llama.cpp writes the reasoning and its end mark before a text that is still empty (seen on b11549).
    answer = {"role": "assistant", "content": "", "reasoning_content": thought}
    return ContinuationRequest([*history, answer], {**_FLAGS, "continue_final_message": "content"}, exact=True)


def _go_on(tail: str) -> str:
    """Return the user turn that quotes the end of an answer verbatim, between marks that do not occur in it."""
    size = 1
    while "»" * size in tail:
        size += 1
    return _GO_ON.format(opening="«" * size, tail=tail, closing="»" * size)


def from_notes(
    history: Sequence[Message], thought: str, instruction: str = _THINK_ON, fields: Mapping[str, Any] | None = None
) -> ContinuationRequest:
    """Give the model its reasoning as notes, from which it thinks on by default: a new turn cannot continue reasoning itself."""
    notes: Message = {"role": "assistant", "content": _NOTES.format(_TAG.sub("", thought, count=1).strip())}
    ask: Message = {"role": "user", "content": instruction}
    return ContinuationRequest([*history, notes, ask], dict(fields or {}), quote=thought[-_QUOTED:])


@dataclass(slots=True)
class SummarisedStart:
    """Summary of the first `upto` characters of an answer, whose end stays verbatim."""

    upto: int = 0
    summary: str = ""
    written: bool = False
    """Whether a model wrote the summary. Otherwise it is the answer's own text, cut short."""


def shorten_partial(
    text: str, start_summary: SummarisedStart, *, room: float, by: Summariser, cost: Cost
) -> Sliced[str]:
    """Bring a partial answer down to about `room` tokens: its end verbatim, its beginning summarised.

    Only the text added since the last time is read. `start_summary` is updated in place.
    """
    total = _tokens(text, cost)
    if total <= room:
        return text
    keep = max(_QUOTED, int(len(text) * room * 0.6 / total))
    start = _word_start(text, len(text) - keep) if keep < len(text) else 0
    if not start:
        return text
    new = text[start_summary.upto : start]
    if new:
        budget = max(48, int(room * 0.4))
        known = start_summary.summary or text[:200].strip()
        answer, lost = "", f"{known.removesuffix(_LOST)}{_LOST}"
        if by.available:
            read = summary.unlabelled(_fitting(new, by, cost))
            ask = summary.fenced(read, tokens=budget, before=start_summary.summary)
            answer = yield SummaryAsk([ask], append=False, max_tokens=budget, source=of_text(new))
        else:
            lost = cut_middle(text[:start], 3 * budget)
        start_summary.summary, start_summary.upto = summary.plain(answer or lost), start
        start_summary.written = bool(answer)
    tag = open_thought(text)
    return (f"<{tag}>" if tag else "") + _SUMMARISED.format(start_summary.summary) + text[start:]


def _fitting(text: str, by: Summariser, cost: Cost) -> str:
    """Cut the middle out of a text that is too long for the summariser."""
    room, make = by.window * 0.7 - by.tokens, partial(cut_middle, text)
    return fit(text, len(text), room, make=make, count=lambda some: _tokens(some, cost))[0]


def _tokens(text: str, cost: Cost) -> float:
    return sum(cost([{"role": "assistant", "content": text}]))


def _word_start(text: str, at: int) -> int:
    """Return the next beginning of a line or word within 200 characters after `at`, or `at` itself."""
    for mark in ("\n", " "):
        found = text.find(mark, at, at + 200)
        if found >= 0:
            return found + 1
    return at

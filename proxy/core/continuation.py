"""Asking a backend to go on with a partial answer, and shortening what was said so far."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.core import summary
from proxy.core.compaction import Summariser, SummaryAsk
from proxy.core.ladder import Cost
from proxy.core.profile import Continuation
from proxy.core.request import Message

_QUOTED = 300
_GO_ON = (
    "Your answer was cut off. It ended with:\n«{tail}»\n"
    "Go on from exactly there. Do not repeat anything and do not comment on this."
)
_LOST = " […]"
_LEFT_OUT = "[The beginning of this answer, shortened:]\n{}\n[It goes on:]\n\n"


@dataclass(frozen=True, slots=True)
class ContinuationRequest:
    """Messages and fields to ask with. `echo` may be repeated whole by the backend, `quote` by the model."""

    messages: list[Message]
    fields: dict[str, Any]
    echo: str = ""
    quote: str = ""
    exact: bool = False
    """The backend is known to go on with the very next character."""


def continuation(history: Sequence[Message], partial: str, how: Continuation) -> ContinuationRequest:
    """Ask for the rest of `partial` in the way this backend understands."""
    said: Message = {"role": "assistant", "content": partial}
    match how:
        case Continuation.FLAGS:
            # Streams do not repeat the text in this form (llama.cpp from May 2026, vLLM).
            flags = {"continue_final_message": True, "add_generation_prompt": False}
            return ContinuationRequest([*history, said], flags, exact=True)
        case Continuation.TRAILING:
            return ContinuationRequest([*history, said], {}, echo=partial)
        case Continuation.QUOTE:
            tail = partial[-_QUOTED:]
            ask: Message = {"role": "user", "content": _GO_ON.format(tail=tail)}
            return ContinuationRequest([*history, said, ask], {}, quote=tail)


@dataclass(slots=True)
class Said:
    """What an answer said before its kept end: a summary of its first `upto` characters."""

    upto: int = 0
    summary: str = ""
    asks: int = field(default=0)


def shorten_said(
    text: str, said: Said, *, room: float, by: Summariser, cost: Cost
) -> Generator[SummaryAsk, str, str]:
    """Bring a partial answer down to about `room` tokens: its end verbatim, its beginning summarised.

    Only what is new since the last time is read again. `said` is brought up to date.
    """
    total = _tokens(text, cost)
    if total <= room:
        return text
    keep = max(_QUOTED, int(len(text) * room * 0.6 / total))
    start = _word_start(text, len(text) - keep) if keep < len(text) else 0
    if not start:
        return text
    new = text[said.upto : start]
    if new:
        said.asks += 1
        budget = max(48, int(room * 0.4))
        ask = summary.fenced(_fitting(new, by, cost), tokens=budget, before=said.summary)
        answer = yield SummaryAsk([ask], append=False, max_tokens=budget)
        known = said.summary or text[:200].strip()
        digest = answer.strip() if summary.acceptable(answer) else f"{known.removesuffix(_LOST)}{_LOST}"
        said.summary, said.upto = digest, start
    return _LEFT_OUT.format(said.summary) + text[start:]


def _fitting(text: str, by: Summariser, cost: Cost) -> str:
    """The text, its middle left out if the summariser could not read it whole."""
    tokens = _tokens(text, cost)
    room = by.window * 0.7 - by.tokens
    if tokens <= room:
        return text
    half = int(len(text) * room / tokens / 2)
    return f"{text[:half]}\n[…]\n{text[-half:]}"


def _tokens(text: str, cost: Cost) -> float:
    return sum(cost([{"role": "assistant", "content": text}]))


def _word_start(text: str, at: int) -> int:
    """The next beginning of a line or word from `at` on, not far away."""
    for mark in ("\n", " "):
        found = text.find(mark, at, at + 200)
        if found >= 0:
            return found + 1
    return at

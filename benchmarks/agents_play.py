"""One recorded agent session through the real proxy, step by step, and what of it reaches the backend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from benchmarks.agents_data import TOOLS, Session
from benchmarks.survival_model import asks_summary
from proxy.core.history.turns import cut_points
from proxy.core.request import Message, text_of
from tests.fakes import FakeModel, FakeTokenizer, LlamaCppFake, Question, Reply, ToolCall, check_history
from tests.prefix import common
from tests.proxying import Proxy, read_stream, running_proxy

LETTERS = 12
"""Letters of a word that make a token: with it the texts weigh what they do in vocabularies of today, within a tenth."""
SMALL = 0.4
"""Share of the window up to which a result has to be forwarded whole."""
DEEP = 0.65
"""Fill above which a reduction did not go deep enough."""
_COUNT = FakeTokenizer(LETTERS).count
_REDUCED = ("pruned", "compacted", "trimmed")
_FIRST = 8
"""Words of each line that the scripted summary takes."""
_FULL = 0.97
_ROOM = 0.1
"""Share of the window that what is forced leaves to a summary and the step before."""


@dataclass(slots=True)
class Replayed:
    """What came of one session in one window. Tokens are the backend's."""

    steps: int = 0
    overflows: int = 0
    """Requests that the backend refused, or the client was refused."""
    invalid: int = 0
    """Prompts with a flaw that the client's history has not."""
    summaries: int = 0
    reductions: int = 0
    vain: int = 0
    """Steps on which the user was told of a compaction that did not help."""
    shallow: int = 0
    """Reductions after which more than `DEEP` was filled, though system prompt, tools and newest messages do not force it."""
    deepest: list[float] = field(default_factory=list)
    """The fill after each reduction."""
    kept: int = 0
    shown: int = 0
    """Bytes of the prompts before, and how many of them the next prompt begins with."""
    newest: float = 0.0
    of_newest: float = 0.0
    """Tokens of the newest results that take at most `SMALL` of the window: forwarded, and there were."""
    large: float = 0.0
    of_large: float = 0.0
    """The same of those that take more."""


class _Script:
    """Says what the recorded agent said, and summarises by the first words of each line."""

    def __init__(self) -> None:
        self.next: Message = {}
        self.summaries = 0

    def brain(self, question: Question) -> Reply:
        """The next answer."""
        if asks_summary(question.messages):
            self.summaries += 1
            lines = [line for message in question.messages for line in text_of(message).split("\n")]
            said = [" ".join(line.split()[:_FIRST])[:60] for line in lines if line.strip()]
            return Reply(text="\n".join(dict.fromkeys(said)))
        calls = [
            ToolCall(call["function"]["name"], call["function"]["arguments"], call["id"])
            for call in self.next.get("tool_calls") or ()
        ]
        return Reply(text=text_of(self.next) or "Well.", tool_calls=calls)


def replay(session: Session, window: int, **settings: Any) -> Replayed:
    """Play a session step by step; `settings` are Spillway's."""
    logging.getLogger("spillway").addHandler(logging.NullHandler())
    script, played = _Script(), Replayed()
    fake = LlamaCppFake([FakeModel("m", window, letters=LETTERS)], script.brain, tokens_per_chunk=64)
    with fake, running_proxy(fake, **settings) as proxy:
        before = b""
        for at, message in enumerate(session.messages):
            if message["role"] in ("user", "tool"):
                script.next = next(iter(session.messages[at + 1 :]), {})
                before = _step(played, fake, proxy, session.messages[: at + 1], before)
    played.summaries = script.summaries
    played.overflows += fake.overflows + fake.cuts
    return played


def _step(played: Replayed, fake: LlamaCppFake, proxy: Proxy, messages: Sequence[Message], before: bytes) -> bytes:
    body = {"model": "m", "messages": list(messages), "tools": TOOLS, "stream": True}
    answer = proxy.chat(body)
    played.steps += 1
    asked = [request.json for request in fake.chats() if not asks_summary(request.json["messages"])]
    fake.requests.clear()
    if answer.status_code != 200 or not asked:
        played.overflows += 1
        return before
    played.vain += any("did not help" in str(event) for event in read_stream(answer.content).events)
    sent = asked[0]  # what comes after it goes on with an answer that was paused
    window = fake.models[0].window
    played.invalid += _flawed(sent["messages"]) and not _flawed(messages)
    forced = fake.count({**sent, "messages": _least(messages)}) / window
    if forced < _FULL - _ROOM:
        _newest(played, messages[-1], sent["messages"], window)
    if answer.headers.get("x-spillway-action") in _REDUCED or "Context compacted" in answer.text:
        _reduced(played, fake.count(sent) / window, forced)
    prompt = b"".join(map(orjson.dumps, sent["messages"]))
    _compare(played, before, prompt)
    return prompt


def _flawed(messages: Sequence[Message]) -> bool:
    return any(flaw.severity == "error" for flaw in check_history(messages))


def _reduced(played: Replayed, fill: float, forced: float) -> None:
    played.reductions += 1
    played.deepest.append(fill)
    played.shallow += fill > max(DEEP, forced + _ROOM)


def _least(messages: Sequence[Message]) -> list[Message]:
    """What no reduction touches: the system prompt, the newest user message, and the newest results with their calls."""
    asked = next(at for at in reversed(range(len(messages))) if messages[at]["role"] == "user")
    step = max(at for at in cut_points(messages) if at < len(messages))
    return [messages[0], messages[asked], *messages[max(step, asked + 1) :]]


def _newest(played: Replayed, newest: Message, sent: Sequence[Message], window: int) -> None:
    if newest["role"] != "tool":
        return
    whole = _COUNT(text_of(newest))
    shown = whole if sent[-1] == newest else min(whole, _COUNT(text_of(sent[-1])))
    if whole <= SMALL * window:
        played.newest, played.of_newest = played.newest + shown, played.of_newest + whole
    else:
        played.large, played.of_large = played.large + shown, played.of_large + whole


def _compare(played: Replayed, before: bytes, prompt: bytes) -> None:
    played.shown += len(before)
    played.kept += common(before, prompt)


def newest_turns(session: Session, window: int) -> Replayed:
    """The same session with the system prompt and as many of the newest turns as fit, and nothing else."""
    played, before = Replayed(), b""
    lead, *rest = session.messages
    room = _FULL * window - _tokens(lead)
    costs = [_tokens(message) for message in rest]
    for at, message in enumerate(rest, 1):
        if message["role"] not in ("user", "tool"):
            continue
        history = rest[:at]
        start = next((start for start in cut_points(history)[:-1] if sum(costs[start:at]) <= room), None)
        played.steps += 1
        if start is None:
            played.overflows += 1
            continue
        sent = [lead, *history[start:]]
        _newest(played, message, sent, window)
        prompt = b"".join(map(orjson.dumps, sent))
        _compare(played, before, prompt)
        before = prompt
    return played


def _tokens(message: Message) -> int:
    calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls") or ())
    return 6 + _COUNT(text_of(message)) + _COUNT(calls)

"""What is counted in one session: at the backends, and at the client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import orjson

from benchmarks.survival_model import asks_summary
from proxy.core.history.marks import RECALLED, RECALLED_END
from proxy.core.request import text_of
from tests.fakes import FakeBackend, Recorded, check_history, facts
from tests.fakes.model import Message
from tests.prefix import common

SYSTEM = ("system", "developer")
CANARY = "canary-{}"
ENOUGH = 0.1
"""Share of the window up to which the newest tool results must reach the model, at least by half."""
MOST = 5000
"""Characters of a tool result above which the standard policy may cap it."""


@dataclass(slots=True)
class Tally:
    """Counts of one session. Byte figures are of prompts as sent, in JSON."""

    turns: int = 0
    overflows: int = 0
    cuts: int = 0
    """Prompts that the backend shortened, and answers for which it dropped the beginning, without a word."""
    invalid: int = 0
    """Histories that break a chat template, or in which roles stopped to alternate."""
    errors: list[str] = field(default_factory=list)
    """What a client saw go wrong."""
    notes: list[str] = field(default_factory=list)
    """What else went wrong, in words."""
    leaks: int = 0
    unpinned: int = 0
    """Prompts whose system or newest user message is not the client's."""
    blind: int = 0
    """Prompts in which the newest tool results were left out, so that the model will call again."""
    summaries: int = 0
    wasted: int = 0
    """Summaries of which nothing reached the prompt."""
    floor: float = 0.0
    """Compactions that the growth of the history makes necessary, from the target to the trigger each time."""
    shown: int = 0
    """Bytes of the prompts that could have been kept, in turns before which nothing was compacted."""
    kept: int = 0
    shown_overall: int = 0
    kept_overall: int = 0
    asked: int = 0
    right: int = 0
    lost_kept: int = 0
    """Wrong answers although a summary had kept the fact, or the messages still told it."""
    lost_unkept: int = 0
    """Wrong answers after the summariser was shown the fact and did not keep it."""
    lost_unseen: int = 0
    """Wrong answers about facts that were dropped without the summariser having seen them."""
    actions: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass(slots=True)
class Sight:
    """What was seen of one tenant."""

    previous: dict[str, bytes] = field(default_factory=dict)
    """The prompt that was sent last, by model."""
    summarised: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Facts that stood in a request for a summary, and whether the newest of those summaries kept them."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One turn of a client: its request, and what the backends got because of it."""

    tenant: int
    model: str
    messages: Sequence[Message]
    grown: bool
    """Whether the history only grew since this client last spoke to this model."""
    action: str
    asked: str
    answer: str
    got: Sequence[Recorded]


class Watcher:
    """Looks at what reaches the backends."""

    def __init__(self, tenants: Sequence[str], window: int, *, clock: bool) -> None:
        """`tenants` are their credentials; with `clock` the system prompt is left out of the comparison."""
        self.tally = Tally()
        self._credentials = {f"Bearer {name}": number for number, name in enumerate(tenants)}
        self._sights = [Sight() for _ in tenants]
        self._window = window
        self._clock = clock

    def turn(self, sent: Sent) -> list[dict[str, Any]]:
        """Take in one turn; returns the bodies that were forwarded for it, without those for summaries."""
        tally, sight = self.tally, self._sights[sent.tenant]
        tally.turns += 1
        tally.actions[sent.action] += 1
        forwarded: list[dict[str, Any]] = []
        for request in sent.got:
            body = request.json
            self._look(request, body["messages"])
            if asks_summary(body["messages"]):
                tally.summaries += 1
                tally.wasted += sent.action in {"forwarded", "pruned"}
                kept = facts([{"content": _said(request)}]).items()
                sight.summarised |= {fact: fact in kept for fact in facts(body["messages"]).items()}
            else:
                forwarded.append(body)
        if forwarded:
            self._compare(sent, sight, forwarded)
            self._pinned(sent.messages, forwarded[0]["messages"])
        if sent.asked:
            self._judge(sent, sight, forwarded)
        return forwarded

    def backends(self, fakes: Sequence[FakeBackend]) -> None:
        """Read the counters of the backends at the end."""
        for fake in fakes:
            self.tally.overflows += fake.overflows
            self.tally.cuts += fake.cuts + getattr(fake, "shifts", 0)

    def _look(self, request: Recorded, messages: Sequence[Message]) -> None:
        owner = self._credentials.get(request.header("authorization") or "")
        others = [CANARY.format(n).encode() for n in range(len(self._sights)) if n != owner]
        if any(canary in request.content for canary in others):
            self.tally.leaks += 1
            self._note(f"a request of tenant {owner} holds what is another's")
        if flaws := check_history(messages):
            self.tally.invalid += 1
            own = " (asking for a summary)" if asks_summary(messages) else ""
            self._note(f"{'; '.join(flaw.text for flaw in flaws)}{own}")

    def _compare(self, sent: Sent, sight: Sight, forwarded: Sequence[dict[str, Any]]) -> None:
        """How much of the prompt before is still there; a client that changed its history is left out."""
        prompt = _prompt(forwarded[0], system=not self._clock)
        before = sight.previous.get(sent.model)
        if before is not None and sent.grown:
            same = common(before, prompt)
            self.tally.shown_overall += len(before)
            self.tally.kept_overall += same
            # What was recalled for the turn before is taken out again: that is a choice, and counts in the whole only.
            if sent.action == "forwarded" and RECALLED.encode() not in before:
                self.tally.shown += len(before)
                self.tally.kept += same
        sight.previous[sent.model] = _prompt(forwarded[-1], system=not self._clock)

    def _pinned(self, client: Sequence[Message], backend: Sequence[Message]) -> None:
        newest = next((text_of(m) for m in reversed(client) if m.get("role") == "user"), "")
        users = [text_of(m) for m in backend if m.get("role") == "user"]
        there = next((text for text in reversed(users) if _without_block(text) == newest), None)
        if there is None or _lead(client) != _lead(backend):
            self.tally.unpinned += 1
            self._note("the system message or the newest user message is not the client's")
        new, left = _characters(_newest_results(client)), _characters(_newest_results(backend))
        if new and left < min(new, MOST, self._window * 3 * ENOUGH) / 2:
            self.tally.blind += 1
            self._note(f"of {new} characters of new tool results {left} are left")

    def _judge(self, sent: Sent, sight: Sight, forwarded: Sequence[dict[str, Any]]) -> None:
        code = facts([m for m in sent.messages if m.get("role") == "user"]).get(sent.asked)
        if code is None:
            return  # the edited history does not tell it any more
        tally, fact = self.tally, (sent.asked, code)
        tally.asked += 1
        if code in sent.answer:
            tally.right += 1
        elif any(fact in facts(body["messages"]).items() for body in forwarded) or sight.summarised.get(fact):
            tally.lost_kept += 1
            self._note(f"{fact} was kept, and yet the answer is {sent.answer[:40]!r}")
        elif fact in sight.summarised:
            tally.lost_unkept += 1
        else:
            tally.lost_unseen += 1
            self._note(f"{fact} was dropped without being shown to the summariser")

    def _note(self, text: str) -> None:
        self.tally.notes.append(f"turn {self.tally.turns}: {text}")


def _prompt(body: Mapping[str, Any], *, system: bool) -> bytes:
    """A prompt in the order in which chat templates write it."""
    shown = [message for message in body["messages"] if system or message.get("role") not in SYSTEM]
    return b"".join(map(orjson.dumps, [body.get("tools"), *shown]))


def _without_block(text: str) -> str:
    """What the user said, without what was recalled in front of it."""
    return text.split(f"{RECALLED_END}\n\n", 1)[-1] if text.startswith(RECALLED) else text


def _lead(messages: Sequence[Message]) -> list[Message]:
    return list(takewhile(lambda message: message.get("role") in SYSTEM, messages))


def _newest_results(messages: Sequence[Message]) -> list[Message]:
    return list(takewhile(lambda message: message.get("role") == "tool", reversed(messages)))


def _characters(messages: Sequence[Message]) -> int:
    return sum(len(text_of(message)) for message in messages)


def _said(request: Recorded) -> str:
    """The text of a summary, which is streamed."""
    lines = (line for line in request.response.split(b"\n") if line.startswith(b"data: {"))
    choices = [choice for line in lines for choice in orjson.loads(line[6:]).get("choices", ())]
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)

"""How the context window is divided, when a request is due to be compacted, and when the next turn will be. Figures in tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from proxy.core.jsontext import dumps, loads
from proxy.core.piece import CallPart, Piece
from proxy.core.request import CompactionRequest, Message, text_of
from proxy.core.settings import DEFAULT_TARGET, DEFAULT_TRIGGER, Settings
from proxy.stream.watch import GAIN_SHARE, UNBOUND

_SAFE = 0.97
"""Share of the window that the upper bound of a prompt may fill: a prompt of exactly the window is refused
(llama.cpp b11549 accepts n_ctx - 1), and an answer needs room."""


_FIXED = 2 / 3
"""Share of the target that what can't be shortened may take before the other figures follow what is left."""
_ENOUGH = 0.45
"""How far from the target to the trigger a prompt may be left by what costs no model's time."""
_CLOSEST = 0.95
"""Share of the trigger that a target may be at most: a compaction has to gain something."""
_DEEP = 1 / 4
"""Share of what is left that a compaction comes down to then."""

_LEAST = 1 / 5
"""The same where a turn adds much."""
_BESIDE = 300
"""Tokens that are to be left beside the newest turn: of a summary, and of how the conversation began."""

ANSWER_SHARE = 0.15
"""Share of the window that an answer so far may take in the prompt that it is resumed with."""

USUAL_ANSWER = 0.25
"""Share of the window to leave to an answer that can't be paused and has no bound."""

NEXT = "…"
"""Stands for what the client will say next."""
_RECENT = 4
"""Turns by which the next one is judged."""
TURNS = 4.5
"""Turns that are to pass from one compaction to the next, and a little more: what they add is estimated."""
_MOST = 1 / 8
"""Share of the window that is expected of a client or an answer at most, however much came before."""
_MORE = 1.2
"""Times the most of its latest turns that a turn may add: a little more is still nothing new, and its cost is estimated."""
_NEAR = 1 / 2
"""Share of the trigger below which no next turn can be due, but for one that is like none before."""
_WORTH = 1 / 2
"""Of the way from target to trigger, from which it is worth compacting before the trigger is reached."""
_FEWEST, _PAUSES = 2, 3
"""Latest pauses of a conversation by which the next one is judged."""
_SURE = 1.5
"""Times the seconds that a summary is expected to take that have to be left for it."""
_MOST_VAIN = 2
"""Summaries that may be broken off by the next turn, before one waits for a longer pause."""
_THINKING = ("<think>", "</think>")


@dataclass(frozen=True)
class ContextBudget:
    """One model's window in tokens and the fractions of it at which Spillway acts. Many requests share one.

    `fixed` are tokens of what no compaction touches: system prompt, tools, the template. Where they take most of the
    target, trigger and target move up into what they leave: a compaction would else be due again at once. `within` are the
    tokens of a smaller window, in which prompts are to stay; None: they may use all of it. `answer` are tokens to leave to an
    answer that can't be paused; 0: it can.
    """

    window: int
    trigger: float = 0.8
    target: float = 0.5
    pause: float = 0.9
    fixed: int = 0
    within: int | None = None
    answer: int = 0

    @cached_property
    def zone(self) -> int:
        """Tokens of the window in which prompts are to stay: twice what can't be shortened, if they are to stay in less."""
        most = self.window if self.within is None else max(self.within, 2 * self.fixed)
        return min(self.window, most, int((self.window - self.answer) / self.trigger))

    @cached_property
    def is_tight(self) -> bool:
        """Whether what can't be shortened takes so much that the rest is managed within what it leaves."""
        return self.fixed > self.zone * self.target * _FIXED

    @cached_property
    def goal(self) -> int:
        """Prompt tokens to come down to when compacting."""
        aimed = self.zone * self.target
        return int(max(aimed, self.fixed + (self.zone - self.fixed) * _DEEP) if self.is_tight else aimed)

    @property
    def enough(self) -> int:
        """Prompt tokens at which no model has to be asked: far enough below the trigger for several steps."""
        between = self.target + (self.trigger - self.target) * _ENOUGH
        return max(self.goal, int(self.zone * between))

    @cached_property
    def due(self) -> float:
        """Prompt tokens at which a compaction is due."""
        base = self.zone * self.trigger
        remaining = self.fixed + (self.zone - self.fixed) * self.trigger
        return min(self.most, max(base, min(self.ceiling, remaining)) if self.is_tight else base)

    @cached_property
    def limit(self) -> int:
        """Prompt tokens that surely fit."""
        return int(self.window * _SAFE)

    @property
    def most(self) -> int:
        """Prompt tokens that a compaction may leave: what surely fits, and has room for its answer."""
        return min(self.limit, self.window - self.answer)

    @cached_property
    def pause_point(self) -> int:
        """Prompt and completion tokens together at which a running answer is paused."""
        return int(self.window * self.pause)

    @property
    def brim(self) -> int:
        """Prompt tokens up to which a prompt may be filled for one turn: an answer has as much room as it has without that."""
        return int(self.due)

    @cached_property
    def ceiling(self) -> int:
        """Prompt tokens up to which a prompt that was filled for one turn may grow in it."""
        return int(self.zone * (self.trigger + self.pause) / 2)

    def goal_for(self, grown: "Growth", opening: float) -> int:
        """Prompt tokens to come down to for some turns to pass before the next compaction, where that leaves enough.

        What a user has begun with is not cut for that: `opening` are its tokens.
        """
        # A program's files and a user's papers stay rather than make room: only answers let a conversation grow so.
        turn = grown.answered + min(grown.requested, grown.answered)
        last = min(self.due, self.pause_point - grown.answered)
        least = max((self.zone - self.fixed) * _LEAST, opening + grown.requested + grown.answered + _BESIDE)
        return min(self.goal, int(max(self.fixed + least, last - TURNS * turn)))

    def growth_needed(self, tokens: int, spare: int, delivered: int) -> int:
        """Return the tokens that an attempt has to generate before a pause gains room; `UNBOUND`: none ever does.

        What a pause takes out is `spare` of the `tokens` that the prompt has without the answer, and of the answer what is
        beyond its share: it has to be a part of the window, and as much has to be free then. `delivered` came before.
        """
        gain, share = self.window // GAIN_SHARE, int(self.zone * ANSWER_SHARE)
        needed = max(0, gain - spare)
        needed += max(0, share - delivered) if needed else 0
        left = tokens - spare + min(share, delivered + max(needed, self.pause_point - tokens))
        return needed if left + gain <= self.window else UNBOUND

    def fill(self, tokens: float) -> float:
        """Tokens as a fraction of the window."""
        return tokens / self.window

    def needs_compaction(self, tokens: int, upper: int, *, passing: int = 0, cramped: bool = False) -> bool:
        """Return whether a prompt has to be shortened before it is sent: it is due, or might not fit.

        Args:
            tokens: of the prompt, by the best estimate.
            upper: the same by its upper bound.
            passing: those of `tokens` that are there for this turn alone.
            cramped: nothing of what this turn needs of the covered history has room, and a compaction makes some.
        """
        if tokens - passing >= (self.enough if cramped else self.due):
            return True
        return upper > self.limit or (passing > 0 and tokens > self.ceiling)

    def refuses(self, tokens: int, upper: int, *, counted: bool, cuts: bool) -> bool:
        """Return whether a shortened prompt is not even sent: it is too long by the backend's own count (`counted`).

        An honest backend decides all other cases itself. To one that `cuts` in silence nothing is sent that is too long by
        the lowest reading of the estimate.
        """
        return tokens >= self.window if counted else cuts and 2 * tokens - upper >= self.window

    def requested_goal(self, tokens: int, wanted: CompactionRequest | None) -> int | None:
        """Return the prompt tokens to compact a prompt of `tokens` to on the client's request; None: not, or not yet."""
        if wanted is None:
            return None
        if wanted.now:
            return min(self.goal, int(tokens * self.target))
        if wanted.trigger is None or tokens < wanted.trigger:
            return None
        return min(self.goal, int(wanted.trigger * self.target))


_shared = lru_cache(maxsize=256)(ContextBudget)


def budget_for(settings: Settings, window: int, fixed: int = 0, answer: int = 0) -> ContextBudget:
    """Return the budget for a window of so many tokens, of which `fixed` can't be shortened.

    An `answer` that can't be paused has at most half of the rest: clients set bounds that no answer comes near.

    A trigger or target in tokens counts where it is less than the usual share. A target that is a share keeps its distance
    from a trigger in tokens. The three stay in order, whatever several globs for a model come to.
    """
    within, trigger = None, min(settings.trigger, settings.pause)
    if settings.trigger > 1:
        trigger = min(DEFAULT_TRIGGER, settings.pause)
        if settings.trigger < window * trigger:
            within = max(1, int(settings.trigger / trigger))
    target = settings.target
    if target > 1:
        target = min(min(target, window * DEFAULT_TARGET) / (within or window), trigger * _CLOSEST)
    elif target >= trigger:
        target = trigger * _CLOSEST
    answer = max(0, min(answer, (window - fixed) // 2))
    return _shared(window, trigger, target, settings.pause, fixed, within, answer)


@dataclass(frozen=True, slots=True)
class Growth:
    """Tokens by which a conversation grows with a turn: what the client says, and what is answered."""

    requested: int
    answered: int


def growth(messages: Sequence[Message], costs: Sequence[float], window: int) -> Growth:
    """The most of its latest turns, within reason; the message that opens it is like no other. `costs` are tokens of each."""
    requests, answered = [0.0], [0.0]
    before = ""
    for index in range(len(messages) - 1, 0, -1):
        side = "assistant" if messages[index].get("role") == "assistant" else "client"
        sums = answered if side == "assistant" else requests
        if side != before:
            if len(sums) > _RECENT:
                break
            sums.append(0.0)
        sums[-1] += costs[index]
        before = side
    most = window * _MOST
    return Growth(int(min(max(requests), most)), int(min(max(answered), most)))


def may_be_due(budget: ContextBudget, used: int) -> bool:
    """Return whether the next turn may be due, by nothing but the tokens of the prompt and its answer: the cheap question."""
    return used >= budget.due * _NEAR


def is_due_next(
    budget: ContextBudget, tokens: int, upper: int, grown: Growth, *, recalled: int = 0, passing: int = 0
) -> bool:
    """Return whether the next turn would be due.

    Args:
        budget: the model's.
        tokens: of the history with its newest answer, by the best estimate.
        upper: the same by its upper bound.
        grown: what a turn of this conversation adds.
        recalled: tokens that were brought back for its latest turn, and may be for the next one.
        passing: those of `tokens` that are there for this turn alone, which goes on.
    """
    request = int(grown.requested * _MORE)
    following = tokens + request
    if budget.needs_compaction(following, upper + request, passing=passing):
        return True
    # It would be compacted in its answer, or for want of room for what is to be recalled.
    soon = following + grown.answered >= budget.pause_point or following - passing + recalled / 2 > budget.brim
    return soon and tokens >= budget.goal + (budget.brim - budget.goal) * _WORTH


class Pauses(NamedTuple):
    """How long a conversation's user was away after the latest answers, and what was made of it. In seconds."""

    latest: tuple[float, ...] = ()
    vain: int = 0
    """Summaries that were broken off by the conversation's next turn."""

    def followed_by(self, pause: float) -> "Pauses":
        """Return them with one more."""
        return self._replace(latest=(*self.latest, pause)[-_PAUSES:])

    def patience(self, passed: float, needed: float) -> float | None:
        """Return for how long the user has to stay away before a summary is asked for.

        0 where one surely ends before the user is back, as the latest pauses were; else longer than any of them; None where too
        little is known. `passed` since the answer; `needed`: what a summary takes, 0 if nobody knows.
        """
        if len(self.latest) < _FEWEST:
            return None
        if self.vain >= _MOST_VAIN or needed * _SURE > min(self.latest) - passed:
            return max(self.latest)
        return 0.0 if needed else None


def history_next(messages: Sequence[Message], reply: Piece, *, parsed: bool) -> tuple[list[Message], list[Message]]:
    """The history as the client will send it next, in two parts: what can be compacted already, and what comes after it.

    In place of what is not known yet something stands that is about nothing. What was called for is not compacted, nor is
    anything for the sake of a result that has not come.

    Args:
        messages: as the client sent them.
        reply: the whole answer.
        parsed: whether clients of this dialect get the arguments of calls as objects, and send them back so.
    """
    answer: Message = {"role": "assistant", "content": _resent(messages, reply.text) or None}
    if reply.thought and any(message.get("reasoning_content") for message in messages):
        answer["reasoning_content"] = reply.thought
    if not reply.calls:
        return [*messages, answer, {"role": "user", "content": NEXT}], []
    calls = [_call(call, parsed=parsed) for call in reply.calls]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": NEXT} for call in calls]
    return list(messages), [{**answer, "tool_calls": calls}, *results]


def _resent(messages: Sequence[Message], text: str) -> str:
    """The text as the client sends it back: without the thoughts in it, if it took them out of earlier answers."""
    opening, closing = _THINKING
    if not text.lstrip().startswith(opening):
        return text
    _, _, rest = text.partition(closing)
    earlier = [text_of(message) for message in messages if message.get("role") == "assistant"]
    drops = earlier and not any(opening in each for each in earlier)
    return rest.lstrip() if drops and rest else text


def _call(call: CallPart, *, parsed: bool) -> dict[str, object]:
    arguments = call.arguments
    if parsed:
        try:
            arguments = dumps(loads(arguments)).decode()
        except ValueError:
            arguments = "{}"
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}

"""Division of the context window into the points at which Spillway acts, and what the next turn adds. Figures in tokens.

    0      fixed      goal      enough      due     ceiling   pause_point   limit   window
    ├────────┼─────────┼──────────┼──────────┼─────────┼───────────┼──────────┼───────┤
                       └ a compaction comes down to here,
                                  └ or only to here, where it needs no model for that
                                             └ from here on a prompt is compacted,
                                                       └ or from here, if it is passages of this turn that fill it
                                                                   └ a running answer is paused
                                                                              └ an upper bound up to here surely fits

All but the last two are shares of the `zone`: the window, or the smaller one in which the user wants prompts to stay. Where the
fixed part would take most of that, they are shares of what it leaves. `proxy.compaction.decision` decides by these points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from proxy.core.jsontext import dumps
from proxy.core.piece import CallPart, Piece, arguments_of
from proxy.core.request import Message, text_of
from proxy.core.settings import DEFAULT_TARGET, DEFAULT_TRIGGER, Settings
from proxy.stream.watch import GAIN_SHARE, UNBOUND

_SAFE = 0.97
"""Share of the window that the upper bound of a prompt may fill: a prompt of exactly the window is refused
(llama.cpp b11549 accepts n_ctx - 1), and an answer needs room."""
_FIXED = 2 / 3
"""Share of the target that the fixed part may take before trigger and target are based on what it leaves."""
_ENOUGH = 0.45
"""How far up from target to trigger a prompt may be left by steps that cost no model's time, as a share of the distance."""
_CLOSEST = 0.95
"""Largest share of the trigger that a target may be: a compaction has to gain something."""
_DEEP = 1 / 4
"""Share of the room beside the fixed part that a compaction comes down to in a tight window."""

_LEAST = 1 / 5
"""The same if turns are large: the lowest goal that growth may require."""
_BESIDE = 300
"""Tokens to leave beside the newest turn, for a summary and for the beginning of the conversation."""

ANSWER_SHARE = 0.15
"""Share of the window that a partial answer may take in the prompt that resumes it."""

# Without this room, an answer in a fixed format had 400 of 2,048 tokens left where its client had asked for more.
USUAL_ANSWER = 0.25
"""Share of the window to leave for an answer that can't be paused and has no bound."""

NEXT = "…"
"""Placeholder for what the client will say next."""
_RECENT = 4
"""Latest turns from which the next one is predicted."""
# With answers of 500 tokens, a window of 4,096 was compacted on 31 of 100 turns at a fixed goal, on 20 with a goal from
# growth.
TURNS = 4.5
"""Turns that should pass between two compactions. Not a whole number because the growth is an estimate: half a turn is margin."""
_MOST = 1 / 8
"""Largest share of the window expected of a client's turn or of an answer, however large earlier ones were."""
_FEWEST, _PAUSES = 2, 3
"""Fewest and most of a conversation's latest pauses from which the next one is predicted."""
_SURE = 1.5
"""Margin on the seconds that a summary is expected to take: so much of the pause has to be left."""
_MOST_VAIN = 2
"""Summaries that other requests may interrupt before the next summary waits for a longer pause."""
_THINKING = ("<think>", "</think>")


@dataclass(frozen=True)
class ContextBudget:
    """One model's window in tokens and the fractions of it at which Spillway acts. Many requests share one.

    `fixed` is the part that no compaction touches: system prompt, tools, the template. If it takes most of the target,
    trigger and target are taken of the room it leaves, or a compaction would be due again at once. `within` is a smaller
    window in which prompts should stay, or None if they may use all of it. `answer` is the room to leave for an answer that
    can't be paused, or 0 if it can.
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
        """Part of the window in which prompts should stay: `within`, but at least twice the fixed part, and room for the answer."""
        most = self.window if self.within is None else max(self.within, 2 * self.fixed)
        return min(self.window, most, int((self.window - self.answer) / self.trigger))

    @cached_property
    def goal(self) -> int:
        """Prompt tokens to compact to."""
        aimed = self.zone * self.target
        return int(max(aimed, self.fixed + (self.zone - self.fixed) * _DEEP) if self._is_tight else aimed)

    @property
    def enough(self) -> int:
        """Prompt tokens at or below which no model is asked: far enough below the trigger for several steps."""
        between = self.target + (self.trigger - self.target) * _ENOUGH
        return max(self.goal, int(self.zone * between))

    @cached_property
    def due(self) -> int:
        """Prompt tokens at which a compaction is due, and up to which recalled text may fill a prompt for one turn."""
        base = self.zone * self.trigger
        remaining = self.fixed + (self.zone - self.fixed) * self.trigger
        share = max(base, min(self.ceiling, remaining)) if self._is_tight else base
        return int(min(share, self.limit, self.window - self.answer))

    @cached_property
    def ceiling(self) -> int:
        """Prompt tokens up to which a prompt that was filled for one turn may grow in it."""
        return int(self.zone * (self.trigger + self.pause) / 2)

    @cached_property
    def pause_point(self) -> int:
        """Prompt and completion tokens together at which a running answer is paused."""
        return int(self.window * self.pause)

    @cached_property
    def limit(self) -> int:
        """Prompt tokens that surely fit."""
        return int(self.window * _SAFE)

    @cached_property
    def _is_tight(self) -> bool:
        """Return whether the fixed part is so large that the figures refer to the room that it leaves."""
        return self.fixed > self.zone * self.target * _FIXED

    def goal_for(self, grown: "Growth", opening: float) -> int:
        """Return the prompt tokens to compact to so that some turns pass before the next compaction, never more than `goal`.

        The beginning of the conversation, of `opening` tokens, is not cut for that.
        """
        # A request counts for no more than an answer: files and papers that somebody pastes in are large once, not every
        # turn, and should not push out what there is.
        turn = grown.answered + min(grown.requested, grown.answered)
        last = min(self.due, self.pause_point - grown.answered)
        least = max((self.zone - self.fixed) * _LEAST, opening + grown.requested + grown.answered + _BESIDE)
        return min(self.goal, int(max(self.fixed + least, last - TURNS * turn)))

    def growth_needed(self, tokens: int, spare: int, delivered: int) -> int:
        """Return the tokens that an attempt has to generate before a pause gains room, or `UNBOUND` if none ever would.

        A pause can take out `spare` of the prompt's `tokens` (without the answer), and the part of the answer beyond its
        share. That has to be at least the window divided by `GAIN_SHARE`, and as much has to be free after it. `delivered`
        is the length of the answer before this attempt.
        """
        # Otherwise a prompt that cannot be shortened, but fills most of the window, has every answer paused three times
        # without gain.
        gain, share = self.window // GAIN_SHARE, int(self.zone * ANSWER_SHARE)
        needed = max(0, gain - spare)
        needed += max(0, share - delivered) if needed else 0
        left = tokens - spare + min(share, delivered + max(needed, self.pause_point - tokens))
        return needed if left + gain <= self.window else UNBOUND


_shared = lru_cache(maxsize=256)(ContextBudget)


def budget_for(settings: Settings, window: int, fixed: int = 0, answer: int = 0) -> ContextBudget:
    """Return the budget for a window of `window` tokens, of which `fixed` can't be shortened.

    An `answer` that can't be paused gets at most half of the rest: clients set bounds that no answer comes near.

    A trigger or target in tokens applies only where it is less than the default share. A target given as a share keeps its
    proportion to a trigger in tokens. Target, trigger and pause stay in this order, however several globs for a model combine.
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
    """Tokens by which a turn lets a conversation grow: those of the client's messages, and those of the answer."""

    requested: int
    answered: int


def growth(messages: Sequence[Message], costs: Sequence[float], window: int) -> Growth:
    """Return the largest of the latest turns, within reason. `costs` are the messages' tokens.

    The first message is not counted: the opening of a conversation is rarely like its later turns.
    """
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


class Pauses(NamedTuple):
    """Pauses of a conversation's user after the latest answers, in seconds, and how many summaries did not end in time."""

    latest: tuple[float, ...] = ()
    vain: int = 0
    """Number of summaries that another request interrupted, of this conversation or any other."""

    def followed_by(self, pause: float) -> "Pauses":
        """Return a copy with one more pause; only the latest three are kept."""
        return self._replace(latest=(*self.latest, pause)[-_PAUSES:])

    def patience(self, passed: float, needed: float) -> float | None:
        """Return the seconds that the user has to stay away before a summary is asked for, or None if too little is known.

        0 if the summary would end before the shortest of the latest pauses is over, otherwise the longest of them. `passed`
        are the seconds since the answer, `needed` those that a summary takes, or 0 if unknown.
        """
        if self.vain >= _MOST_VAIN and self.latest:
            return max(self.latest)
        if len(self.latest) < _FEWEST:
            return None
        if needed * _SURE > min(self.latest) - passed:
            return max(self.latest)
        return 0.0 if needed else None


def history_next(messages: Sequence[Message], reply: Piece, *, parsed: bool) -> tuple[list[Message], list[Message]]:
    """Predict the history that the client will send next, as two parts: what can be compacted already, and what follows it.

    Placeholders without meaning stand in for unknown content: the user's next message, or the results of calls. Calls
    without results are in the second part, so they are not compacted.

    Args:
        messages: history as the client sent it.
        reply: whole answer.
        parsed: whether clients of this dialect get the arguments of calls as objects, and send them back in that form.
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
    """Return an answer's text as the client will send it back: without its thinking, if it dropped that from earlier answers."""
    opening, closing = _THINKING
    if not text.lstrip().startswith(opening):
        return text
    _, _, rest = text.partition(closing)
    earlier = [text_of(message) for message in messages if message.get("role") == "assistant"]
    drops = earlier and not any(opening in each for each in earlier)
    return rest.lstrip() if drops and rest else text


def _call(call: CallPart, *, parsed: bool) -> dict[str, object]:
    arguments = dumps(arguments_of(call.arguments)).decode() if parsed else call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}

"""Compaction ahead of time: when the next turn would be due, and the history that the client will send then.

Token figures are prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.compaction.budget import ContextBudget
from proxy.core.jsontext import dumps, loads
from proxy.core.piece import CallPart, Piece
from proxy.core.request import Message, text_of

NEXT = "…"
"""Stands for what the client will say next."""
_RECENT = 4
"""Turns by which the next one is judged."""
_MOST = 1 / 8
"""Share of the window that is expected of a client or an answer at most, however much came before."""
_MORE = 1.2
"""Times the most of its latest turns that a turn may add: a little more is still nothing new, and its cost is estimated."""
_NEAR = 1 / 2
"""Share of the trigger below which no next turn can be due, but for one that is like none before."""
_WORTH = 1 / 2
"""Of the way from target to trigger, from which it is worth compacting before the trigger is reached."""
_THINKING = ("<think>", "</think>")


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

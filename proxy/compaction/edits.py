"""Leaving out of a history what its client wishes left out: old tool results, and what the model thought.

Every time the same is left out of the same history, and only more of one that has grown.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.compaction.ladder import Cost
from proxy.compaction.ladder.results import Result, by_message, note_for, results_of, with_texts
from proxy.core.history.turns import RESULT_ROLES, calls_of, is_user
from proxy.core.managing import Cleared, ClearResults, ClearThoughts, Edit
from proxy.core.request import THOUGHT_FIELDS, Message

_NO_ARGUMENTS = "{}"


def edited(
    messages: Sequence[Message], edits: Sequence[Edit], *, tokens: int, cost: Cost
) -> tuple[list[Message], list[Cleared]]:
    """The history as its client wishes it, with as many messages as before, and what was left out.

    Messages in which nothing was left out are the same objects. `tokens` has the whole prompt.
    """
    done, cleared = list(messages), list[Cleared]()
    for edit in edits:
        if isinstance(edit, ClearThoughts):
            changed, number = _without_thoughts(done, edit)
        else:
            changed, number = _without_results(done, edit, tokens)
        before = [old for old, new in zip(done, changed, strict=True) if old is not new]
        after = [new for old, new in zip(done, changed, strict=True) if old is not new]
        won = round(sum(cost(before)) - sum(cost(after)))
        least = edit.at_least if isinstance(edit, ClearResults) else 0
        if number and won > 0 and won >= least:
            done = changed
            cleared.append(Cleared("thoughts" if isinstance(edit, ClearThoughts) else "results", number, won))
    return done, cleared


def _without_thoughts(messages: Sequence[Message], edit: ClearThoughts) -> tuple[list[Message], int]:
    """A turn is all that the assistant says between two messages of the user."""
    done, turns, thinks = list(messages), 0, False
    for index in reversed(range(len(done))):
        message = done[index]
        if message.get("role") == "assistant" and any(map(message.get, THOUGHT_FIELDS)):
            turns, thinks = turns + (not thinks), True
            if turns > edit.keep:
                done[index] = {name: value for name, value in message.items() if name not in THOUGHT_FIELDS}
        elif is_user(message):
            thinks = False
    return done, max(0, turns - edit.keep)


def _without_results(messages: Sequence[Message], edit: ClearResults, tokens: int) -> tuple[list[Message], int]:
    results = results_of(messages)
    uses = list(dict.fromkeys(_use(messages, result) for result in results))
    over_tokens = edit.over_tokens is not None and tokens > edit.over_tokens
    over_results = edit.over_results is not None and len(uses) > edit.over_results
    if not (over_tokens or over_results):
        return list(messages), 0
    old = set(uses[: max(0, len(uses) - edit.keep)])
    cleared = [
        result
        for result in results
        if _use(messages, result) in old and result.name not in edit.spared and _is_long(result)
    ]
    done = list(messages)
    for index, group in by_message(cleared).items():
        done[index] = with_texts(messages[index], {result: note_for(result) for result in group})
        if edit.arguments is True or (edit.arguments and group[0].name in edit.arguments):
            _clear_call(done, index)
    return done, len({_use(messages, result) for result in cleared})


def _use(messages: Sequence[Message], result: Result) -> tuple[int, ...]:
    """Key by which the results of one call differ from those of another: several parts of a tool message are one."""
    if messages[result.index].get("role") in RESULT_ROLES:
        return (result.index,)
    return (result.index, result.part or 0, result.start)


def _is_long(result: Result) -> bool:
    return not result.is_note and len(note_for(result)) < len(result.text)


def _clear_call(messages: list[Message], at: int) -> None:
    """Take the arguments of the call that a tool message answers, which is the newest of that id before it."""
    wanted = messages[at].get("tool_call_id")
    for index in reversed(range(at)):
        calls = calls_of(messages[index])
        if wanted and any(call.get("id") == wanted for call in calls):
            messages[index] = {
                **messages[index],
                "tool_calls": [_bare(call) if call.get("id") == wanted else call for call in calls],
            }
            return


def _bare(call: Message) -> Message:
    function = call.get("function")
    return {**call, "function": {**(function if isinstance(function, dict) else {}), "arguments": _NO_ARGUMENTS}}

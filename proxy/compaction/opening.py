"""Beginning of a session that stays, word for word, when the rest of it is summarised.

The first user message is the task with only half of the programs. Others begin with a worked example that they retract
later, with files, with tools or rules that apply throughout, or with the environment. Code tells these apart by their
form, by how they were answered, and by whether later messages still refer to them. A message that is repeated later need
not stay.
"""

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from proxy.compaction.ladder import Reduction
from proxy.compaction.middles import cut_message
from proxy.core.history.layout import begun
from proxy.core.history.marks import NOTED, is_summary
from proxy.core.history.rules import constraints
from proxy.core.history.sentences import identifiers
from proxy.core.history.turns import bridge_needed, calls_of, is_result, is_system, is_user
from proxy.core.request import SYSTEM_ROLES, Message, text_of

_MOST = 16
"""First messages of a session that can belong to the beginning."""
_ANSWER = 200
"""Longest answer, in characters, that only acknowledges a message."""
_SET_UP = 400
"""Shortest message, in characters, that sets something up if it is only acknowledged."""
_REMARK = 400
"""Longest message, in characters, that can retract earlier ones."""
_LONG = 4_000
"""Characters above which a set-up message that was not acknowledged, and that nothing refers to, is more likely an example."""
_REPEATED = 40
# A task that stayed for good took 11 % of a window of 8k, long after it was done.
_AS_LARGE = 2
"""Largest size of a task, relative to a later one, at which the later one shows that it is finished."""
_READ, _NAMES = 20_000, 2_000
_SEARCHED = 256
"""Messages that are searched for references to the beginning, and for repetitions of it."""
_SHARE = 1 / 2
"""Share of the room that the task may take, and the same for all set-up messages together."""
_WORTH_CUTTING = 1 / 8
"""Smallest share of a message that is worth keeping when it is cut."""
_RETRACTS = re.compile(
    r"\b(?:ignore|disregard|forget|(?:do not|don['\u2019]t|no longer|stop) (?:consider|use|apply|edit)\w*"
    r"|switched to|(?:just|only|merely) an? (?:example|demonstration|sample)|no longer (?:relevant|valid|appl\w+)"
    r"|ignorier\w*|vergiss|verg\w+ sie|oubli\w+|ignor(?:a|e|ez|en)|olvid\w+)\b|忽略|忘记|不再|无视|無視|무시|забудь|игнорир",
    re.IGNORECASE,
)
_EARLIER = re.compile(
    r"\b(?:above|previous|earlier|before|so far|examples?|old|these|those|any longer|code ?base|obige\w*|bisherige\w*|vorherige\w*"
    r"|beispiel\w*|pr[ée]c[ée]dent\w*|exemples?|anterior\w*|ejemplos?|exempl\w+)\b|上面|之前|以上|例|위|이전|выше|пример",
    re.IGNORECASE,
)
_FILE = re.compile(r"^[#*`\s]{0,8}([\w./@+-]{1,200}\.\w{1,10})[*`:\s]{0,8}\n(?:```|~~~)", re.MULTILINE)
_FENCED = re.compile(r"^(?:```|~~~)[^\n]*\n(?:[^\n]*\n){5}", re.MULTILINE)
_TAGGED_FILE = re.compile(r"<(?:file|document|source)\b[^<>]{0,300}>", re.IGNORECASE)


class _Rank(IntEnum):
    """Kind of a message of the beginning, in the order in which they get room."""

    TASK = 0
    FILES = 1
    SET_UP = 2
    OTHER = 3
    REPEATED = 4


class Part(NamedTuple):
    """A message of the beginning. Parts sort by their worth, the highest first."""

    rank: _Rank
    unreferred: bool
    place: int
    """Index of the message."""


def opening(
    reduction: Reduction,
    parts: Sequence[Part],
    end: int,
    room: float,
    *,
    forced: int | None = None,
    others: bool = False,
) -> list[Message]:
    """Choose the messages of the beginning, before `end`, to keep in `room` tokens; in order, and with alternating roles.

    Long messages are cut in their middle. The one at `forced` is kept at any price. With `others`, long messages of no
    particular kind are kept too, unless that would separate a question from its answer.
    """
    messages, costs = reduction.messages, reduction.costs
    chosen = {} if forced is None else {forced: messages[forced]}
    spare, share = room, room * (1.0 if others else _SHARE)
    parts = [part for part in parts if part.place < end]
    if parts and parts[0].rank >= _Rank.OTHER:
        first = min(parts, key=lambda part: part.place)
        parts = [first._replace(rank=_Rank.TASK), *(part for part in parts if part is not first)]
    alone = sum(part.rank < _Rank.OTHER for part in parts) == 1
    for rank, _, index in parts:
        if rank is _Rank.REPEATED or (rank is _Rank.OTHER and not (others and _stands_alone(messages, index))):
            continue
        message, cost = messages[index], costs[index]
        set_up = rank >= _Rank.SET_UP
        most = spare if alone or rank is _Rank.FILES else min(spare, share if set_up else room * _SHARE)
        if cost > most:
            message, cost = cut_message(message, most, reduction.cost)
        if cost <= most and cost >= costs[index] * _WORTH_CUTTING:
            chosen[index] = message
            spare -= cost
            share -= cost if set_up else 0.0
    return list(_with_answers(reduction, chosen))


def _with_answers(reduction: Reduction, chosen: dict[int, Message]) -> Iterator[Message]:
    """Yield the chosen messages, with beginnings of answers between them where the roles would not alternate."""
    messages, before = reduction.messages, -1
    first = min(chosen, default=0)
    if all(_is_short(message) for message in messages[:first]):
        yield from messages[:first]  # a greeting
    for index in sorted(chosen):
        if before >= 0 and index - 1 not in chosen and bridge_needed(chosen[before], [chosen[index]]):
            answer = messages[before + 1]
            # Only the rest of such an answer is missing: to a backend's cache that is a deletion, a placeholder an insertion.
            yield answer if _is_short(answer) else {"role": "assistant", "content": begun(answer) or NOTED}
        before = index if chosen[index].get("role") not in SYSTEM_ROLES else before
        yield chosen[index]


def parts_of(messages: Sequence[Message], end: int) -> list[Part]:
    """Return the messages of the beginning that may stay, each with its rank, the most valuable first."""
    end, messages = min(end, beginning(messages)), messages[:_SEARCHED]
    candidates = [i for i in range(end) if is_user(messages[i]) or is_system(messages[i])]
    after = max((i for i in candidates if _takes_back(messages[i])), default=-1)
    texts = ["\n".join((text_of(message), *_arguments(message))) for message in messages]
    parts: list[Part] = []
    task_known = False
    for index in candidates:
        if index <= after or is_summary(messages[index]):
            continue
        if _repeated(texts[index], texts[index + 1 :]):
            parts.append(Part(_Rank.REPEATED, unreferred=True, place=index))
            continue
        following = _after(messages, index)
        next_at = index + 1 + (following.get("role") == "assistant" and not calls_of(following))
        names = identifiers((text[:_READ] for text in texts[index:next_at]), limit=_NAMES)
        referred = any(name in text for text in texts[next_at:] for name in names)
        rank = _rank(messages, index, task_known=task_known)
        long = len(texts[index]) > _LONG and next_at == index + 1 and not is_system(messages[index])
        if names and not referred and (rank is _Rank.TASK or (rank is _Rank.SET_UP and long)):
            rank = _Rank.OTHER
        task_known |= rank is _Rank.TASK
        parts.append(Part(rank, unreferred=not referred, place=index))
    return sorted(parts)


def unfinished(messages: Sequence[Message], end: int) -> list[Message]:
    """Return the messages before `end` without finished tasks: those after which the user set another of about the same size."""
    later = max((len(text_of(m)) for m in messages[end:] if is_user(m) and not is_summary(m)), default=0)
    tasks = (part.place for part in parts_of(messages, end) if part.rank is _Rank.TASK)
    finished = {place for place in tasks if len(text_of(messages[place])) <= later * _AS_LARGE}
    answered = {n + 1 for n in finished if _after(messages, n).get("role") == "assistant"}
    answered -= {n for n in answered if is_result(_after(messages, n))}  # these are calls
    return [message for place, message in enumerate(messages[:end]) if place not in finished | answered]


def beginning(messages: Sequence[Message]) -> int:
    """Return the index at which the work begins: that of the first call, but at most 16."""
    work = (i for i, m in enumerate(messages[:_MOST]) if calls_of(m) or is_result(m))
    return min(_MOST, next(work, len(messages)))


def _rank(messages: Sequence[Message], index: int, *, task_known: bool) -> _Rank:
    message = messages[index]
    text = text_of(message)[:_READ]
    if is_system(message):
        return _Rank.SET_UP
    if _FILE.search(text) or _TAGGED_FILE.search(text):
        return _Rank.FILES
    following = _after(messages, index)
    # A short answer is an acknowledgement only if others are longer.
    noted = _is_short(following)
    worked = noted and any(m.get("role") == "assistant" and not _is_short(m) for m in messages[index + 2 :])
    unanswered = following.get("role") in ("user", *SYSTEM_ROLES) and not is_result(following)
    if unanswered and any(is_user(each) for each in messages[index + 1 : index + 3]):
        return _Rank.SET_UP
    if worked and (len(text) >= _SET_UP or _FENCED.search(text) or constraints([message], limit=_NAMES)):
        return _Rank.SET_UP
    return _Rank.OTHER if task_known or noted else _Rank.TASK


def _after(messages: Sequence[Message], index: int) -> Message:
    """Return the next message, or an empty one at the end."""
    return messages[index + 1] if index + 1 < len(messages) else {}


def _is_short(message: Message) -> bool:
    """Return whether a message is the assistant's and only acknowledges, or greets."""
    return message.get("role") == "assistant" and not calls_of(message) and len(text_of(message)) <= _ANSWER


def _stands_alone(messages: Sequence[Message], index: int) -> bool:
    """Return whether a message is long, and not a question whose answer would be missing."""
    if len(text_of(messages[index])) < _SET_UP:
        return False
    following = _after(messages, index)
    return following.get("role") != "assistant" or _is_short(following)


def _takes_back(message: Message) -> bool:
    text = text_of(message)
    found = is_user(message) and len(text) <= _REMARK and _RETRACTS.search(text)
    return bool(found and _EARLIER.search(text))


def _repeated(text: str, later: Sequence[str]) -> bool:
    """Return whether a text occurs again later, or shows files that are all shown again."""
    stripped = text.strip()
    if len(stripped) >= _REPEATED and any(stripped in each for each in later):
        return True
    files = set(_FILE.findall(text[:_READ]))
    return bool(files) and files <= {name for each in later for name in _FILE.findall(each[:_READ])}


def _arguments(message: Message) -> list[str]:
    functions = (call.get("function") for call in calls_of(message))
    return [str(function.get("arguments")) for function in functions if isinstance(function, dict)]

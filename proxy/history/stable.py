"""Keeping the front of a conversation's prompts as it was, where it changes without meaning.

A system prompt that tells the time is another one on every turn, and in front of everything else: the backend reads all of the
prompt again. Here the one that came first stays, for as long as later ones differ from it in nothing but clocks, counts and
names of runs, and what they say now is told at the end of the prompt, in a note on the newest message. A note stays where it
was put, so that a prompt only ever grows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from proxy.history.volatile import KINDS as VOLATILE
from proxy.history.volatile import changed_kinds
from proxy.neutral.record import record
from proxy.neutral.request import Message

BILLING, MARKS = "billing", "marks"
KINDS = (BILLING, MARKS, *VOLATILE)
"""All that is neutralised at the front of prompts, by the names that the user may choose among."""
LONGEST_NOTE = 600
"""Characters; what differs in more is worth another front."""
MOST_NOTES = 256
"""Of one conversation: after so many the front is begun anew."""
CONVERSATIONS = 1024
"""That are remembered; the least recently used go first."""
_LONGEST = 2**16
"""Characters of a system prompt that are compared."""
_NOTE = "[As of now: {}]"


@dataclass(frozen=True, slots=True)
class Front:
    """What is in front of one conversation's prompts."""

    system: Sequence[Message]
    """As it came first, and is sent."""
    told: Sequence[Message]
    """As it was when what changed in it was told last."""
    notes: Mapping[bytes, str] = field(default_factory=dict)
    """By the chain's link of the message that each is on."""


@record(frozen=True, slots=True)
class Stable:
    """A prompt whose front is as it was."""

    system: Sequence[Message]
    sent: Sequence[Message]
    """The other messages; the same list if none has a note."""
    kinds: frozenset[str]
    """Of what was kept back in this request; none: the system prompt is the client's own."""
    same: bool = True
    """Whether nothing of it is other than the client sent it."""


class Fronts:
    """The fronts of conversations seen lately. For one thread."""

    def __init__(self, limit: int = CONVERSATIONS) -> None:
        self._limit = limit
        self._known: OrderedDict[tuple[str, bytes], Front] = OrderedDict()

    def keep(
        self,
        scope: str,
        links: Sequence[bytes],
        system: Sequence[Message],
        sent: Sequence[Message],
        kinds: Collection[str],
    ) -> Stable:
        """The prompt of `system` and `sent` messages with the front that its conversation had, which goes on.

        `links` are the chain of `sent`, `kinds` those of `proxy.history.volatile` that may be kept back.
        """
        if not (system and links and kinds):
            return Stable(system, sent, frozenset())
        before = self._of(scope, links)
        front, changed = _next(before, system, sent[-1], links[-1], kinds)
        self._remember((scope, links[-1]), front)
        if front.notes:
            sent = [
                noted(message, front.notes[link]) if link in front.notes else message
                for message, link in zip(sent, links, strict=True)
            ]
        return Stable(front.system, sent, changed, same=not (changed or front.notes))

    def _of(self, scope: str, links: Sequence[bytes]) -> Front | None:
        """The front of the longest beginning of this history that was seen."""
        for link in reversed(links):
            if (front := self._known.get((scope, link))) is not None:
                return front
        return None

    def _remember(self, key: tuple[str, bytes], front: Front) -> None:
        self._known[key] = front
        self._known.move_to_end(key)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)


def noted(message: Message, note: str) -> Message:
    """A message with a note: in front of what a user says, behind what a tool gave."""
    content, first = message.get("content"), message.get("role") != "tool"
    if isinstance(content, list):
        part = {"type": "text", "text": note}
        return {**message, "content": [part, *content] if first else [*content, part]}
    return {**message, "content": f"{note}\n\n{content}" if first else f"{content}\n\n{note}"}


def _next(
    before: Front | None, system: Sequence[Message], newest: Message, link: bytes, kinds: Collection[str]
) -> tuple[Front, frozenset[str]]:
    """The front from now on, and the kinds of what is kept back of the system prompt as it came."""
    if before is None or (since := _changes(before.system, system, kinds)) is None:
        return Front(system, system), frozenset()
    if not since[0] and not before.notes:
        return before, frozenset()
    now = _changes(before.told, system, kinds)
    if now is None or not now[0] or link in before.notes:
        return before, since[1]  # said before, or this very message says it
    if not _takes_note(newest):
        return before, since[1]
    note = _NOTE.format("\n".join(now[0]))
    if len(note) > LONGEST_NOTE or len(before.notes) >= MOST_NOTES:
        return Front(system, system), frozenset()
    return Front(before.system, system, {**before.notes, link: note}), since[1]


def _takes_note(message: Message) -> bool:
    """Whether it is of one who tells the model something, in words."""
    return message.get("role") in ("user", "tool") and isinstance(message.get("content"), str | list)


def _changes(
    before: Sequence[Message], after: Sequence[Message], kinds: Collection[str]
) -> tuple[list[str], frozenset[str]] | None:
    """The lines that have changed, as they are now, and in what; None: in more than these kinds, or none knows."""
    if before is after or before == after:
        return [], frozenset()
    if len(before) != len(after):
        return None
    lines: list[str] = []
    found: frozenset[str] = frozenset()
    for old, new in zip(before, after, strict=True):
        texts = _texts(old), _texts(new)
        if texts[0] is None or texts[1] is None or {**old, "content": None} != {**new, "content": None}:
            return None
        for mine, theirs in zip_longest("\n".join(texts[0]).split("\n"), "\n".join(texts[1]).split("\n")):
            if mine == theirs:
                continue
            changed = None if mine is None or theirs is None else changed_kinds(mine, theirs, kinds)
            if changed is None:
                return None
            lines.append(theirs.strip())
            found |= changed
    return lines, found


def _texts(message: Message) -> list[str] | None:
    """What a message says, if it says nothing else and not too much."""
    content: Any = message.get("content")
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        return None
    said = (part.get("text") if isinstance(part, dict) else part for part in parts)
    texts = [text for text in said if isinstance(text, str)]
    if len(texts) != len(parts):
        return None
    return texts if sum(map(len, texts)) <= _LONGEST else None

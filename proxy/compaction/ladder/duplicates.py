"""Drop what a later message makes needless: repeated results, superseded reads, stale images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.compaction.ladder.base import Reduction
from proxy.compaction.ladder.results import NOTE, Result, by_message, results_of, unread_from, with_texts
from proxy.core.history.embedded import IMAGE_OMITTED
from proxy.core.history.turns import RESULT_ROLES, newest_user
from proxy.core.request import Message
from proxy.tokens.counter import read_message

NEWEST_IMAGES = 3
"""The newest images, which stay."""
_SAME = NOTE + ": a later call of {} returned the same, see there.]"
_SUPERSEDED = NOTE + ": {} was called again with the same arguments, see the newer result.]"


def drop_duplicates(reduction: Reduction) -> Reduction:
    """Replace everything needless between `floor` and `tail` that costs more than its note."""
    messages = list(reduction.messages)
    user = newest_user(messages)
    results = results_of(messages)
    pointers = _pointers(results, unread_from(messages))
    stale, leans = _stale_images(messages), dict(reduction.leans)
    for index, group in by_message(results).items():
        changes = {r: pointers[r][0] for r in group if r in pointers}
        if reduction.floor <= index < reduction.tail and index != user and changes:
            shorter = _cheaper(reduction, messages[index], with_texts(messages[index], changes))
            if shorter is not messages[index]:
                messages[index] = shorter
                leans[index] = 1 + max(pointers[r][1] for r in changes)
    for index, parts in stale.items():
        if reduction.floor <= index < reduction.tail and index != user:
            messages[index] = _cheaper(reduction, messages[index], _without_images(messages[index], parts))
    done = replace(reduction.with_messages(messages), leans=leans)
    return done if done.total < reduction.total else reduction


def _cheaper(reduction: Reduction, message: Message, other: Message) -> Message:
    before, after = reduction.cost([message, other])
    return other if after < before else message


def _pointers(results: list[Result], unread: int) -> dict[Result, tuple[str, int]]:
    """Notes for results that a later one repeats, or replaces, each with the index of that one's message."""
    pointers: dict[Result, tuple[str, int]] = {}
    texts: dict[str, int] = {}
    # The message that has the newest answer to a call: all of its parts belong to that answer.
    answers: dict[tuple[str, str | None], int] = {}
    for result in reversed(results):
        if result.is_note:
            continue
        newest = answers.setdefault((result.name, result.arguments), result.index)
        if result.text in texts:
            pointers[result] = _SAME.format(result.name), texts[result.text]
        elif result.arguments is not None and newest != result.index < unread:
            pointers[result] = _SUPERSEDED.format(result.name), newest
        else:
            texts[result.text] = result.index
    return {result: (note, at) for result, (note, at) in pointers.items() if len(note) < len(result.text)}


def _stale_images(messages: list[Message]) -> dict[int, list[int]]:
    """Indexes of the images' parts by message, without the newest images."""
    found: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list) and (message.get("role") == "user" or message.get("role") in RESULT_ROLES):
            found += ((index, at) for at, part in enumerate(content) if _images(part))
    stale: dict[int, list[int]] = {}
    for index, at in found[:-NEWEST_IMAGES]:
        stale.setdefault(index, []).append(at)
    return stale


def _images(part: Any) -> list[tuple[int, int] | None]:
    is_image = isinstance(part, dict) and "image" in str(part.get("type"))
    return read_message({"content": [part]}).images if is_image else []


def _without_images(message: Message, parts: list[int]) -> Message:
    content = list(message["content"])
    for at in parts:
        size = _images(content[at])[0]
        pixels = f" of {size[0]}x{size[1]} pixels" if size is not None else ""
        content[at] = {"type": "text", "text": IMAGE_OMITTED.format(pixels)}
    return {**message, "content": content}

"""Leaving out what a later message makes needless: results and attachments that come again, superseded reads, stale images."""

from collections.abc import Mapping, Sequence

from proxy.compaction.ladder import Reduction
from proxy.compaction.results import NOTE, Result, by_message, with_texts
from proxy.compaction.shorten import LEAST
from proxy.core.history.embedded import IMAGE_OMITTED, blocks_in, replaced, texts_of, with_parts
from proxy.core.history.turns import is_user
from proxy.core.jsontext import dumps
from proxy.core.request import Message

NEWEST_IMAGES = 3
"""Number of the newest images, which stay."""
_SAME = NOTE + ": a later call of {} returned the same, see there.]"
AGAIN = "[The same attachment comes again in a later message, see there.]"
_SUPERSEDED = NOTE + ": {} was called again with the same arguments, see the newer result.]"


def drop_duplicates(reduction: Reduction, tail: int) -> Reduction:
    """Replace what a later message makes needless: results and attachments that come again, superseded reads, stale images.

    A note that points at a later message is recorded in `leans`, so that both are covered together.
    """
    # An image never replaces the text of an earlier result of the same call: its own note later stood in for both, and
    # the text was lost.
    leans, changed = dict(reduction.leans), dict[int, Message]()
    found = _pointers([r for group in reduction.results.values() for r in group], reduction.read)
    pointers = {result: pointer for result, pointer in found.items() if result not in reduction.kept}
    for index, group in by_message(list(pointers)).items():
        message = with_texts(reduction.messages[index], {result: pointers[result][0] for result in group})
        if reduction.may_change(index, tail) and sum(reduction.cost([message])) < reduction.costs[index]:
            changed[index] = message
            leans[index] = 1 + max(pointers[result][1] for result in group)
    for index, (message, later) in _without_repeated(reduction.messages, changed).items():
        if reduction.may_change(index, tail) and sum(reduction.cost([message])) < reduction.costs[index]:
            changed[index], leans[index] = message, max(leans.get(index, 0), later + 1)
    for index, message in _without_stale_images(reduction.messages, changed).items():
        if reduction.may_change(index, tail) and sum(reduction.cost([message])) < reduction.costs[index]:
            changed[index] = message
    return reduction.with_changes(changed, leans=leans)


def _pointers(results: Sequence[Result], unread: int) -> dict[Result, tuple[str, int]]:
    """Return notes for results that a later one repeats or replaces, each with the index of the later message, in order."""
    pointers: dict[Result, tuple[str, int]] = {}
    texts: dict[str, int] = {}
    # Index of the message with the newest result of a call. All parts of that message belong to the result.
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
    return {result: pointers[result] for result in reversed(pointers) if len(pointers[result][0]) < len(result.text)}


def _without_repeated(messages: Sequence[Message], changed: Mapping[int, Message]) -> dict[int, tuple[Message, int]]:
    """Put a pointer in place of attachments that a later user message brings too; each message comes with the later one's index.

    Attachments are parts of a message, and blocks that programs put around the user's words.
    """
    later: dict[str, int] = {}
    done: dict[int, tuple[Message, int]] = {}
    for index in reversed([at for at, message in enumerate(messages) if is_user(message)]):
        message, texts, found = changed.get(index) or messages[index], dict[int | None, str](), set[str]()
        for part, text in texts_of(message):
            is_repeated = part is not None and text in later
            spans = [(0, len(text))] if is_repeated else [block.inside for block in blocks_in(text)]
            again = [span for span in spans if text[slice(*span)] in later]
            found |= {text[slice(*span)] for span in (*spans, *([] if part is None else [(0, len(text))]))}
            texts |= {part: replaced(text, [(span, AGAIN) for span in again])} if again else {}
        content = with_parts(message, texts).get("content")
        if isinstance(content, list):
            keys = [dumps(part).decode() if "text" not in part else "" for part in content]
            content = [{"type": "text", "text": AGAIN} if k in later else p for k, p in zip(keys, content, strict=True)]
            found |= set(keys)
        if content != message.get("content"):
            done[index] = {**message, "content": content}, max(later[each] for each in found if each in later)
        later |= {each: index for each in found if len(each) >= LEAST and each not in later}
    return done


def _without_stale_images(messages: Sequence[Message], changed: Mapping[int, Message]) -> dict[int, Message]:
    """Put a note in place of each image but the newest three, in messages as they are in `changed` if they are there."""
    found = [
        (index, at)
        for index, message in enumerate(messages)
        if isinstance(message.get("content"), list) and message.get("role") in ("user", "tool")
        for at, part in enumerate(message["content"])
        if isinstance(part, dict) and "image" in str(part.get("type"))
    ]
    done: dict[int, Message] = {}
    for index, at in found[:-NEWEST_IMAGES]:
        message = done.get(index) or changed.get(index) or messages[index]
        content = [*message["content"]]
        content[at] = {"type": "text", "text": IMAGE_OMITTED}
        done[index] = {**message, "content": content}
    return done

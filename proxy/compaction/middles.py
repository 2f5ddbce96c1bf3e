"""Cutting the middle out of a message: its beginning and end stay, and a mark says how much is missing.

Text that programs put around a user's words is cut first, the user's own words last.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from proxy.compaction.results import Cost
from proxy.compaction.shorten import LEAST, MARK_ROOM, characters_cut, cut_middle, fit, water_level
from proxy.core.history.embedded import blocks_in, calls_in, replaced, results_in, texts_of, with_parts
from proxy.core.history.turns import is_system, newest_user
from proxy.core.request import Message

_Kind = Literal["block", "data", "words"]
# Claude Code's first message is a reminder, the task, and a reminder. Its middle was cut, so the reminders stayed and
# the task was lost, in 34 of 40 prompts at 16k and in all 40 at 8k with a guide file of 4 kB.
_ORDER: tuple[tuple[tuple[_Kind, ...], int], ...] = ((("block", "data"), LEAST), (("block",), 0), (("words",), LEAST))
"""Kinds of text in the order in which they are cut, each with the fewest characters to which a piece is cut."""


class TextPiece(NamedTuple):
    """A part of a message's text that is cut on its own: in a program's block, the user's words, or data of others."""

    part: int | None
    start: int
    end: int
    kind: _Kind


def cut_message(message: Message, most: float, count: Cost, *, words: bool = True) -> tuple[Message, float]:
    """Cut a message to `most` tokens, or as close as possible, and return it with its tokens; unchanged if nothing is gained.

    Calls and the marks around results stay. The user's own words are cut only if `words` is set, and after all else.
    """

    def tokens(message: Message) -> float:
        return sum(count([message]))

    pieces = list(pieces_of(message))
    size = sum(piece.end - piece.start for piece in pieces)
    short, used = fit(
        message, size, most, make=lambda characters: _shortened(message, pieces, characters, words=words), count=tokens
    )
    before = used if short is message else tokens(message)
    return (short, used) if used < before else (message, before)


def cut_text(text: str, most: int) -> str:
    """Cut a user's text to about `most` characters: programs' blocks first and, if that is not enough, its middle."""
    message: Message = {"role": "user", "content": text}
    return str(_shortened(message, list(pieces_of(message)), most)["content"]) if len(text) > most else text


def newest_cut(sent: Sequence[Message], history: Sequence[Message]) -> tuple[Message, Message] | None:
    """Return the newest user message as sent and as it is in the history, if more of its middle is left out there."""
    newest, placed = newest_user(sent), newest_user(history)
    if newest is None or placed is None:
        return None
    full, short = sent[newest], history[placed]
    return (full, short) if short is not full and _marked(short) > _marked(full) else None


def share_left(full: Message, short: Message, count: Cost) -> float:
    """Return the share that is left of a user message, or of the user's own words in it if there are any.

    Both versions are counted now, so an estimate that changed in between does not distort the share.
    """
    both = [user_words(full), user_words(short)]
    before, after = count(both if both[0]["content"] else [full, short])
    return after / max(1.0, before)


def user_words(message: Message) -> Message:
    """Return a message with only the user's own words, for counting."""
    texts = dict(texts_of(message))
    words = (texts[each.part][each.start : each.end] for each in pieces_of(message) if each.kind == "words")
    return {"role": "user", "content": "\n".join(words)}


def _marked(message: Message) -> int:
    return sum(characters_cut(text) for _, text in texts_of(message))


def _shortened(message: Message, pieces: Sequence[TextPiece], most: int, *, words: bool = True) -> Message:
    """Cut the longest pieces of a message until all together have at most `most` characters."""
    lengths = [piece.end - piece.start for piece in pieces]
    lose = sum(lengths) - most
    for kinds, least in _ORDER:
        places = [n for n, piece in enumerate(pieces) if piece.kind in kinds and lengths[n] > least + MARK_ROOM]
        if lose > 0 and places and (words or "words" not in kinds):
            sizes = [lengths[n] for n in places]
            level = max(least, int(water_level(sizes, max(0, sum(sizes) - lose))))
            lose -= sum(max(0, size - level) for size in sizes)
            for n in places:
                lengths[n] = min(lengths[n], level)
    texts = dict(texts_of(message))
    for part, group in groupby(zip(pieces, lengths, strict=True), key=lambda each: each[0].part):
        text = texts[part]
        spans = (((piece.start, piece.end), length) for piece, length in group)
        changes = [(span, cut_middle(text[slice(*span)], length, edge="\n")) for span, length in spans]
        texts[part] = replaced(text, changes)
    return with_parts(message, texts)


def pieces_of(message: Message) -> Iterator[TextPiece]:
    """Yield the pieces of a message that may be cut: those outside of calls, and those inside of results and blocks."""
    role = message.get("role")
    users = role == "user" and not is_system(message)
    outside: _Kind = "words" if users else "data"
    for part, text in texts_of(message):
        spans: list[tuple[tuple[int, int], tuple[int, int], _Kind]] = []
        if role == "assistant":
            spans = [(call.span, (call.span[0], call.span[0]), "data") for call in calls_in(text)]
        elif users:
            spans = [(found.span, found.inside, "data") for found in results_in(text)]
            spans += [(found.span, found.inside, "block") for found in blocks_in(text)]
        after = 0
        for (start, end), inside, kind in sorted(spans):
            if start < after:
                continue  # nested in the span before, or the same result found as a block
            yield TextPiece(part, after, start, outside)
            yield TextPiece(part, *inside, kind)
            after = end
        yield TextPiece(part, after, len(text), outside)

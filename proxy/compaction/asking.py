"""Having a summary written: in which request, or in which pieces."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from proxy.compaction import summary
from proxy.compaction.ladder import Reduction
from proxy.compaction.middles import cut_text
from proxy.compaction.results import Cost
from proxy.compaction.shorten import cut_middle
from proxy.compaction.source import NOTHING, Source, all_text
from proxy.core.history.embedded import authored_text
from proxy.core.history.marks import BRIDGE, is_instruction, is_summary
from proxy.core.history.turns import is_result, is_user
from proxy.core.request import Message

_MOST_PIECES = 16
_ENTRIES = (4_000, 1_500, 500)
"""Characters that transcripts keep of a message."""
_SHORTER = 0.6
"""Share of its room that a transcript takes when it is read for the second time."""
_SMALLEST_PIECE = 200
_TASK = 1_000
"""Characters of a message that stays in the prompt, with which a transcript of what came after it begins."""
_MOST_PER_TOKEN = 8
"""Characters of nearly any text that a token holds at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summariser:
    """The model that summarises, in tokens: its window, the length wanted, and what surrounds the history.

    `overhead` is what the system messages and tools of the live request take; `same_model` tells whether
    the instruction may be appended to the live prompt, whose prefix that backend has cached. `trust` is the share of the
    room that may be filled by what is merely estimated. `prompt` is what the client wants asked instead of Spillway's own words.
    """

    window: int
    tokens: int
    overhead: float
    same_model: bool
    trust: float = 1.0
    prompt: str = ""
    available: bool = True
    """Whether it may be asked: what is not asked for is taken for a summary that failed."""


@dataclass(frozen=True, slots=True)
class SummaryAsk:
    """Ask a model for a summary. `append`: with the live request's system messages and tools.

    Whoever answers sends the text as it was found fit to be used against `source`, empty if it was not.
    """

    messages: list[Message]
    append: bool
    max_tokens: int
    source: Source = NOTHING
    brief: bool = False
    """Whether a word may be all that there is to say."""


def request_summary(
    reduction: Reduction, by: Summariser, start: int, source: Source
) -> Generator[SummaryAsk, str, str]:
    """A summary of what lies between the floor and `start`, asked for once more in the other form; empty if neither served."""
    if not by.available:
        return ""
    if by.prompt:
        source = source.form  # a client may want something else than what was said
    ask = _appended(reduction, by, start, source)
    if ask is not None and (text := (yield ask)):
        return text
    pieces = _fitting(reduction, by, start, 1.0)
    if pieces and (text := (yield from _read_on(pieces, by, source))):
        return text
    if ask is None and len(pieces) == 1:
        # What was read in this form already is shorter the second time: a model that got lost may follow that.
        return (yield from _read_on(_fitting(reduction, by, start, _SHORTER), by, source))
    return ""


def _appended(reduction: Reduction, by: Summariser, start: int, source: Source) -> SummaryAsk | None:
    """Ask at the end of the live prompt, which the backend has cached; None if there is no room, or no such cache."""
    if not by.same_model:
        return None
    # What is covered, and no more: a client may edit what comes after it, and a summary would still tell of what it was.
    live = list(reduction.messages[:start])
    frozen = any(map(is_summary, reduction.messages[: reduction.floor]))
    what = "since the summary near its beginning" if frozen else "so far"
    text = summary.instruction(
        tokens=by.tokens, what=what, prompt=by.prompt, language=source.language, chat=not source.worked
    )
    ask: Message = {"role": "user", "content": text}
    used = by.overhead + sum(reduction.costs[: len(live)]) + sum(reduction.cost([ask]))
    room = int(by.window * 0.98 * by.trust - used)
    # A shorter summary out of the backend's cache is worth more than a long one for which it reads everything again.
    if room < by.tokens // 2:
        return None
    return SummaryAsk(at_its_end(live, ask), append=True, max_tokens=min(by.tokens, room), source=source)


def _fitting(reduction: Reduction, by: Summariser, start: int, share: float) -> list[str]:
    """A transcript that takes at most a share of the room there is, in as few pieces as can be; none if that is too many."""
    shell = sum(reduction.cost([summary.fenced("", tokens=by.tokens, before="x", prompt=by.prompt)]))
    room = (by.window * 0.98 - shell - by.tokens) * by.trust * share
    best: list[str] = []
    for text in transcripts([*_task(reduction), *reduction.messages[reduction.floor : start]]):
        pieces = list(islice(in_pieces(text, max(64.0, room), reduction.cost), 2))
        if len(pieces) > 1:
            # Each is read with the summary of those before it.
            room_for_piece = max(64.0, room - by.tokens * by.trust)
            pieces = list(islice(in_pieces(text, room_for_piece, reduction.cost), _MOST_PIECES + 1))
        if not best or len(pieces) < len(best):
            best = pieces
        if len(best) == 1:
            break
    return best if len(best) <= _MOST_PIECES else []


def transcripts(messages: Sequence[Message], limits: Sequence[float] = _ENTRIES) -> Iterator[str]:
    """Transcripts of the same conversation, each much shorter than the one before it: of long messages so many characters stay.

    Tool calls and results look the same in either form. What the user says itself, and earlier summaries, are kept as in
    the first one.
    """
    entries = [(message, _speaker(message), all_text(message)) for message in messages]
    length = 0
    for most in limits:
        lines = [f"{speaker}: {summary.unlabelled(_entry(message, text, most))}" for message, speaker, text in entries]
        text = "\n\n".join(lines)
        if not length or len(text) < 0.9 * length:
            length = len(text)
            yield text


def _entry(message: Message, text: str, most: float) -> str:
    if is_summary(message) or len(text) <= most:
        return text
    return cut_text(text, _ENTRIES[0]) if is_user(message) else cut_middle(text, int(most), edge="\n")


def _speaker(message: Message) -> str:
    if message.get("role") == "user" and (is_result(message) or is_instruction(message)):
        return "TOOL" if is_result(message) else "SYSTEM"
    return str(message.get("role")).upper()


def _task(reduction: Reduction) -> Iterator[Message]:
    """The user's words in front of the floor, which stay as they are: the steps to be summarised make no sense without them."""
    for message in reduction.messages[: reduction.floor]:
        if is_user(message) and not is_summary(message) and message.get("content") != BRIDGE:
            yield {"role": "user", "content": cut_text(authored_text(message), _TASK)}


def _read_on(pieces: Sequence[str], by: Summariser, source: Source) -> Generator[SummaryAsk, str, str]:
    """A summary of all pieces, each read with the summary of those before it; empty if one is not read at last.

    Of several one that failed is read in two halves: it may have been more than the model can take. Only the last summary
    has to tell what is in all of them.
    """
    known, waiting = "", [(piece, len(pieces) > 1) for piece in reversed(pieces)]
    while waiting:
        piece, divides = waiting.pop()
        language, chat = source.language, not source.worked
        message = summary.fenced(piece, tokens=by.tokens, before=known, prompt=by.prompt, language=language, chat=chat)
        answer = yield SummaryAsk([message], False, by.tokens, source.form if waiting else source)
        if answer:
            known = answer
        elif divides:
            half = _end_of_line(piece[: len(piece) * 2 // 3])
            waiting += [(piece[half:], False), (piece[:half], False)]
        else:
            return ""  # a summary that leaves out a part without a word is none
    return known


def at_its_end(live: list[Message], ask: Message) -> list[Message]:
    """The live prompt with the instruction at its end, in the last message if that is a user's already."""
    last = live[-1] if live else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        return [*live[:-1], {**last, "content": f"{last['content']}\n\n{ask['content']}"}]
    return [*live, ask]


def in_pieces(text: str, room: float, cost: Cost) -> Iterator[str]:
    """A text in pieces of at most `room` tokens, but not of fewer than 200 characters."""
    # Not all of a text is counted to see where its first piece ends.
    at, size = 0, int(room * _MOST_PER_TOKEN)
    while at < len(text):
        piece = text[at : at + size]
        tokens = sum(cost([{"role": "user", "content": piece}]))
        # Text differs from place to place, so the size is set anew from every piece.
        size = max(_SMALLEST_PIECE, int(len(piece) * 0.95 * room / max(tokens, 1.0)))
        if tokens <= room or len(piece) <= _SMALLEST_PIECE:
            if at + len(piece) < len(text):
                piece = piece[: _end_of_line(piece)]
            yield piece
            at += len(piece)


def _end_of_line(piece: str) -> int:
    """Index at which to cut a piece: behind its last line or, if that is far from its end, its last word."""
    for mark in ("\n", " "):
        at = piece.rfind(mark, len(piece) * 3 // 4)
        if at >= 0:
            return at + 1
    return len(piece)

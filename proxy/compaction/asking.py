"""Requests for a summary: at the end of the live prompt, which the backend has cached, or of a transcript, in pieces if long."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias, TypeVar

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

T = TypeVar("T")

_MOST_PIECES = 16
_ENTRIES = (4_000, 1_500, 500)
"""Characters of a message that each next, shorter transcript keeps."""
_SHORTER = 0.6
"""Share of its room that a transcript takes when it is read a second time."""
_SMALLEST_PIECE = 200
SMALLEST, LARGEST = 96, 2048
"""Fewest tokens of a summary or a note that says anything, and most that a summary gets."""
_TASK = 1_000
"""Characters of each user message in the head that are put at the beginning of a transcript."""
_MOST_PER_TOKEN = 8
"""Most characters per token in nearly any text."""


def summary_size(*most: int) -> int:
    """Return the tokens of a summary that may have at most each of these."""
    return max(SMALLEST, min(LARGEST, *most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summariser:
    """The model that summarises, in tokens: its window, the length wanted, and what surrounds the history.

    `overhead` is the size of the live request's system messages and tools. `same_model` says whether the instruction may be
    appended to the live prompt, whose prefix that backend has cached. `trust` is the share of the room that may be filled
    going by an estimate alone. `prompt` is the client's own instruction, used instead of Spillway's.
    """

    window: int
    tokens: int
    overhead: float
    same_model: bool
    trust: float = 1.0
    prompt: str = ""
    available: bool = True
    """Whether the model may be asked at all. If not, every summary counts as failed."""


@dataclass(frozen=True, slots=True)
class SummaryAsk:
    """Request for a summary by a model. `append`: to be sent with the live request's system messages and tools.

    The caller checks the reply against `source`, and sends the usable text back, or an empty one if it is not usable.
    """

    messages: list[Message]
    append: bool
    max_tokens: int
    source: Source = NOTHING
    brief: bool = False
    """Whether a single word may be a valid summary."""


Sliced: TypeAlias = Generator[SummaryAsk | None, str, T]
"""Long work in parts: yields requests for summaries and is sent their texts, or yields None where it may be interrupted."""


def request_summary(reduction: Reduction, by: Summariser, start: int, source: Source) -> Sliced[str]:
    """Get a summary of the messages between the floor and `start`; if one form of the request fails, try the other.

    Returns an empty text if both fail.
    """
    if not by.available:
        return ""
    if by.prompt:
        source = source.form  # the client's instruction may ask for anything, so facts prove nothing
    ask = _appended(reduction, by, start, source)
    if ask is not None and (text := (yield ask)):
        return text
    pieces = _fitting(reduction, by, start, 1.0)
    if pieces and (text := (yield from _read_on(pieces, by, source))):
        return text
    if ask is None and len(pieces) == 1:
        # The second transcript is shorter than the first: a model that got lost may cope with that.
        return (yield from _read_on(_fitting(reduction, by, start, _SHORTER), by, source))
    return ""


def _appended(reduction: Reduction, by: Summariser, start: int, source: Source) -> SummaryAsk | None:
    """Ask at the end of the live prompt, which the backend has cached; None without room or such a cache."""
    if not by.same_model:
        return None
    # Only the covered messages: a client may still edit later ones, and the summary would go on describing the old version.
    live = list(reduction.messages[:start])
    frozen = any(map(is_summary, reduction.messages[: reduction.floor]))
    what = "since the summary near its beginning" if frozen else "so far"
    text = summary.instruction(
        tokens=by.tokens, what=what, prompt=by.prompt, language=source.language, chat=not source.worked
    )
    ask: Message = {"role": "user", "content": text}
    used = by.overhead + sum(reduction.costs[: len(live)]) + sum(reduction.cost([ask]))
    room = int(by.window * 0.98 * by.trust - used)
    # A shorter summary from a cached prompt is worth more than a longer one for which the backend reads everything again.
    if room < by.tokens // 2:
        return None
    return SummaryAsk(at_its_end(live, ask), append=True, max_tokens=min(by.tokens, room), source=source)


def _fitting(reduction: Reduction, by: Summariser, start: int, share: float) -> list[str]:
    """Return a transcript in as few pieces as possible, each within `share` of the room; empty if it would take more than 16."""
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
    """Yield transcripts of a conversation, each much shorter than the one before: `limits` are the characters kept of a message.

    Tool calls and results look the same in all wire forms. The user's own words and earlier summaries are kept in all
    transcripts as in the first.
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
    """Yield the user's words in the head, which is not summarised: the later steps make no sense without them."""
    for message in reduction.messages[: reduction.floor]:
        if is_user(message) and not is_summary(message) and message.get("content") != BRIDGE:
            yield {"role": "user", "content": cut_text(authored_text(message), _TASK)}


def _read_on(pieces: Sequence[str], by: Summariser, source: Source) -> Sliced[str]:
    """Summarise pieces one after the other, each with the summary of those before it; empty if one fails for good.

    If one of several pieces fails, its halves are tried: it may have been too much for the model. Only the last summary is
    checked against all facts.
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
            return ""  # a summary with a hidden gap is worse than none
    return known


def at_its_end(live: list[Message], ask: Message) -> list[Message]:
    """Append the instruction to the live prompt, within its last message if that is the user's."""
    last = live[-1] if live else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        return [*live[:-1], {**last, "content": f"{last['content']}\n\n{ask['content']}"}]
    return [*live, ask]


def in_pieces(text: str, room: float, cost: Cost) -> Iterator[str]:
    """Yield a text in pieces of at most `room` tokens, but of at least 200 characters."""
    # Count only as much of the text as a piece can hold, not all of it.
    at, size = 0, int(room * _MOST_PER_TOKEN)
    while at < len(text):
        piece = text[at : at + size]
        tokens = sum(cost([{"role": "user", "content": piece}]))
        # Characters per token differ within a text, so every piece sets the size of the next.
        size = max(_SMALLEST_PIECE, int(len(piece) * 0.95 * room / max(tokens, 1.0)))
        if tokens <= room or len(piece) <= _SMALLEST_PIECE:
            if at + len(piece) < len(text):
                piece = piece[: _end_of_line(piece)]
            yield piece
            at += len(piece)


def _end_of_line(piece: str) -> int:
    """Return the index at which to cut a piece: after its last line or, if that is far from its end, its last sentence or word."""
    for mark in ("\n", ". ", "。", " "):
        at = piece.rfind(mark, len(piece) * 3 // 4)
        if at >= 0:
            return at + 1
    return len(piece)

"""Documents larger than the window: the model reads them in parts, takes notes, and answers from the notes.

If the newest user message alone exceeds the window and the question is about all of it, no cut leaves what the answer needs. So the
model reads each part together with the question, in a request like one for a summary, and the notes replace the document. They are
stored as a checkpoint, with which later turns begin, and also a repetition of the request. If passages stand out for the question
instead, the message is cut and these are recalled, as without this add-on.

A client's own request to compact its history (`proxy.core.history.client_compaction`) is read in the same way, whichever message
holds the history: the client throws away for good whatever the answer leaves out.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from typing_extensions import override

from proxy.addon import AddOn
from proxy.attempts.client import ClientStream
from proxy.attempts.too_long import too_long
from proxy.compaction.asking import SMALLEST, Summariser, SummaryAsk, in_pieces, transcripts
from proxy.compaction.budget import budget_for
from proxy.compaction.compaction import STRATEGIES, Compaction
from proxy.compaction.middles import cut_text, pieces_of
from proxy.compaction.shorten import cut_middle
from proxy.compaction.summary import fence, plain
from proxy.compactor import Compactor
from proxy.core.history.checkpoint import digest_of
from proxy.core.history.client_compaction import Apart, taken_apart
from proxy.core.history.embedded import authored_text, replaced, texts_of, with_parts
from proxy.core.history.marks import is_summary
from proxy.core.history.turns import is_result, newest_user
from proxy.core.request import Message, text_of
from proxy.counting import Counting
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.preparing import Preparer
from proxy.recall.passages import passages_of
from proxy.recall.ranking import outstanding, query_of, rank
from proxy.stream.status import READING, read_in_parts, reading_part
from proxy.tokens.cache import Cache

# Questions about two novels of 110,000 tokens, in a window of 12,288: what the answers need reached the model for 16 of
# 16, and for none without reading in parts.
MOST_REQUESTS = 32
"""Most requests for reading a document, not counting retries: about 20 windows of text."""
_FAILED = 1 / 4
"""Share of the parts so far that may fail, each twice, before the reading is given up."""
# Two failures at the start end it after 4 requests instead of 8.
_TRIED = 4
"""Fewest parts of which the share is taken, if there are as many: one bad page does not end the reading, two at the start do."""
# Other limits stay the same, so a book of 110,000 tokens takes 26 parts instead of 11 in a window of 12,288.
_PART = 1_000
"""Tokens of a part, unless that makes too many parts: in 700, Qwen2.5-Coder-1.5B found 2 of 2 facts, in 2,500 only 1."""
_NOTES = 0.9
"""Share of the room that notes may fill by estimate."""
_EDGE = 500
"""Characters at either end of a pasted text in which the request about it is looked for."""
_LARGE = 4 * _EDGE
"""Characters above which a piece of a message is part of the document."""
_QUESTION = 4 * _EDGE
"""Most characters of the request that are repeated with each part."""
_TAG = "document_notes"
_INSTRUCTION = """Between the marks stands part {part} of {parts} of a text that is too long to be read at once. Do this for what stands in this part, in at most {words} words, with names, numbers and exact words:

{question}

Of all that bears on it, leave out nothing. Write in the language of the request, and call no tools."""
# With an earlier wording of it, Qwen2.5-Coder-1.5B wrote "nothing" on long parts of a novel when asked to list its people.
_NOTHING = " Only if this part has nothing to do with it, write: nothing."
"""Not added if every part has something to report, as for a summary: a small model takes such a way out at once."""
_HEAD = (
    "The text that stood here is longer than the context window. It was read in {parts} parts, each with the request beside "
    "it. These are the notes on all of them:"
)
_WHOLE = re.compile(
    r"\b(?:summari[sz]e|summar(?:y|ies)|sum up|tl;?dr|abstract of|translate|overview|outline|synopsis|recap|paraphrase|proofread"
    r"|(?:list|name|find|give|count|extract|enumerate|mention)\s(?:\w{1,30}\s){0,2}?(?:all|every|each)\b|how many (?:times|different)"
    r"|(?:main|key|central|major|recurring) (?:\w{1,30}\s)?(?:points?|ideas?|themes?|topics?|arguments?|events?|characters?|figures?|findings?|messages?)"
    r"|(?:whole|entire|complete) (?:text|book|document|story|novel|paper|file|transcript|article|thing)|from (?:beginning|start) to (?:end|finish)"
    r"|throughout|as a whole|(?:condens|compress|consolidat|distil)\w{0,30}|takeaways?|hand-?off|overall|what(?:'s| is) (?:it|this|that|(?:the|this) \w{1,30}) about"
    r"|zusammenfass\w{0,30}|fass\w{0,30}\s.{0,80}\bzusammen|übersetz\w{0,30}|überblick|inhaltsangabe|(?:liste|nenne|zähle)\s.{0,40}\balle\w{0,30}"
    r"|résum\w{1,30}|tradui\w{1,30}|aperçu|(?:liste|énumère|cite)\w{0,30}\s.{0,20}\btou(?:s|tes)"
    r"|resum\w{1,30}|traduc\w{1,30}|traduz\w{0,30}|(?:enumera|lista|liste|nombra|cite)\w{0,30}\s.{0,20}\btod[oa]s|panorama"
    r"|riassu\w{1,30}|sintesi|elenca\w{0,30})\b"
    r"|резюм|суммир|подытож|перевед|(?:перечисл|назов)\w{0,30}\s.{0,20}(?:все|всех)\b|кратк\w{1,30} (?:содержани|изложени)|обзор"
    r"|总结|總結|概括|概述|摘要|翻译|翻譯|(?:列出|找出).{0,6}所有|全文|要約|まとめ|翻訳|すべて|全て|一覧|요약|번역|모두|전체",
    re.IGNORECASE,
)
"""Requests that need all of a text to answer, in the languages in which users' rules are recognised."""


class Document(NamedTuple):
    """A long text in a message, its place, and the user's words around it."""

    spans: Sequence[tuple[int | None, int, int]]
    """Places of its pieces, in order: part of the content, start and end."""
    text: str
    question: str
    pasted: bool
    """Whether the user pasted it. Otherwise a program put it there, and the user may not have meant it at all."""


@dataclass(slots=True)
class _Progress:
    part: int = 0
    parts: int = 0


class DocumentReader(AddOn):
    """Replaces a newest message that alone exceeds the window by notes on it."""

    def __init__(self, counting: Counting, compactor: Compactor, preparer: Preparer) -> None:
        self._counting, self._compactor, self._preparer = counting, compactor, preparer
        self._summaries, self._meter = compactor.summaries, counting.meter
        self._known = Cache[tuple[str, bytes], str](self._meter.memory)
        """Notes on the histories of the latest requests to compact, kept because a client that gives up waiting asks again."""

    @override
    async def before_compaction(self, job: Job, client: ClientStream) -> None:
        """Read the newest message in parts, if nothing less will do.

        Raises:
            ContextOverflow: the message takes more than `MOST_REQUESTS` parts.
        """
        if job.managed.hands_over:
            await self._hand_over(job, client)
            return
        budget, newest, placed = job.budget, newest_user(job.prompt.sent), newest_user(job.prompt.history)
        if budget is None or newest is None or placed is None or not await self._may_read(job):
            return
        if job.estimate.tokens < budget.limit - budget.fixed:
            return
        at, tokens, found = await offload_if(True, self._found, job, placed, budget.limit - budget.fixed)
        if found is None or not await offload_if(True, is_about_all_of, found):
            return
        since, link, before = (self._compactor.begin(job), job.prompt.links[newest - placed + at], job.estimate.tokens)
        stored = await self._compactor.find(job.scope, link)
        if stored is not None and stored.kind == "read" and stored.window <= budget.window:
            await self._compactor.replace(job, budget, stored, since)
            return
        progress = _Progress()
        await client.notify(READING)
        async with client.progress(lambda: reading_part(progress.part, progress.parts)):
            notes = await self._read(job, found, budget.enough - budget.fixed, tokens, progress)
        if notes:
            history = [*job.prompt.history]
            history[at] = with_notes(history[at], found, notes)
            old, new = (sum(self._meter.costs(job.key, each)) for each in (job.prompt.history, history))
            done = Compaction(
                messages=history,
                covered=at + 1,
                replaced=at + 1,
                kind="read",
                before=old,
                after=new,
                rungs=("read in parts",),
            )
            await self._compactor.replace(job, budget, done, since)
            self._counting.compacted(job)
            await client.notify(read_in_parts(before, job.estimate.tokens))

    def _found(self, job: Job, newest: int, room: float) -> tuple[int, float, Document | None]:
        """Find a document of more than `room` tokens; returns the index of its message, the message's tokens, and the document.

        It may be in the newest message or in user messages right before it: a text and the question about it may be separate
        messages.
        """
        history = job.prompt.history
        first = next((at + 1 for at in reversed(range(newest)) if not _goes_on(history[at])), 0)
        costs = self._meter.costs(job.key, history[first : newest + 1])
        tokens, at = max(costs), first + costs.index(max(costs))
        found = document_in(history[at]) if tokens > room else None
        others = "\n\n".join(authored_text(history[each]) for each in range(first, newest + 1) if each != at).strip()
        if found is not None and others:
            found = found._replace(question=cut_text(others, _QUESTION))
        return at, tokens, found

    async def _may_read(self, job: Job) -> bool:
        """Return whether a model may be asked so often: not for background tasks, and by default only where tokens are free."""
        wanted, unasked = job.settings.documents, job.background or job.request.compaction
        if wanted == "off" or unasked or not STRATEGIES[job.settings.strategy].asks:
            return False
        return wanted == "on" or self._summaries.is_free((await self._summaries.route(job)).upstream)

    async def _hand_over(self, job: Job, client: ClientStream) -> None:
        """Replace the history that a client wants compacted by notes, in the request itself, from which later prompts are made."""
        cost, before, since = (partial(self._meter.costs, job.key), job.estimate.tokens, self._compactor.begin(job))
        divided = await offload_if(True, taken_apart, [*job.prompt.system, *job.prompt.sent])
        found = await offload_if(True, _history_in, divided)
        fixed, tokens = sum(cost(divided.with_notes(""))), sum(await offload_if(True, cost, [_said(found.text)]))
        room, progress = budget_for(job.settings, job.window or 0, round(fixed)).enough - fixed, _Progress()
        await client.notify(READING)
        key = (job.scope, sha256(b"".join(map(digest_of, divided.messages))).digest())
        async with client.progress(lambda: reading_part(progress.part, progress.parts)):
            notes = self._known.get(key) or await self._read(job, found, room, tokens, progress)
        if not notes:
            self._record_unread(job, tokens - max(0, room), tokens)
            return  # the history is then shortened like any other
        self._known.put(key, notes, len(notes))
        messages = divided.with_notes(f"<{_TAG}>\n{notes}\n</{_TAG}>")
        job.outcome.record_compacted(
            kind="read",
            messages_before=len(divided.messages),
            messages_after=len(messages),
            tokens_before=before,
            tokens_after=round(sum(cost(messages))),
            seconds=job.outcome.clock() - since,
            summary="written",
            rungs=("read in parts",),
        )
        job.request = replace(job.request.changed(messages=messages), restored=(), edits=())
        await self._preparer.prepare_again(job)
        await client.notify(read_in_parts(before, job.estimate.tokens))

    async def _read(self, job: Job, document: Document, room: float, tokens: float, progress: _Progress) -> str:
        """Read a document, then its notes again while they are too long; returns the notes, empty if the model does not serve.

        Args:
            job: job whose prompt has the document.
            document: document and the question about it.
            room: tokens that the notes and their frame may take.
            tokens: tokens of the document.
            progress: updated while parts are read.

        Raises:
            ContextOverflow: the document takes more than `MOST_REQUESTS` parts, and does not come from a client's compaction.
        """
        asks, text, requests = STRATEGIES[job.settings.strategy].asks, document.text, 0
        by, cost = await self._summaries.summariser(job, asks=asks), partial(self._meter.costs, job.key)
        shell = sum(cost([_ask("", document.question, 0, 0, by.tokens)]))
        size = (by.window * 0.98 - shell - by.tokens) * by.trust
        room = (room - shell) * _NOTES
        while by.available and size > by.tokens and room > SMALLEST:
            part = tokens / min(room / SMALLEST / 2, (MOST_REQUESTS + 1 - requests) * 0.75)
            pieces = await offload_if(True, list, in_pieces(text, min(size, max(_PART, part)), cost))
            if requests + len(pieces) > MOST_REQUESTS and not (requests or job.managed.hands_over):
                why = f"What is asked needs all of the newest message, of which {MOST_REQUESTS} parts are read: about {int(MOST_REQUESTS * size)} tokens."
                raise await too_long(job, self._meter, why=why)
            if requests + len(pieces) > MOST_REQUESTS:
                share = room / tokens if requests else MOST_REQUESTS / len(pieces)
                text = cut_middle(text, int(len(text) * share * _NOTES), edge="\n")
                tokens, before = sum(cost([_said(text)])), tokens
                self._record_unread(job, before - tokens, before)
                if requests:
                    return text
                continue
            requests += len(pieces)
            notes = await self._notes(job, pieces, document.question, by, room, progress)
            if not notes:
                return ""
            text = "\n\n".join(f"Part {number} of {len(pieces)}:\n{note}" for number, note in enumerate(notes, 1))
            text, tokens = f"{_HEAD.format(parts=len(pieces))}\n\n{text}", sum(cost([_said(text)]))
            if tokens <= room:
                return text
        return ""

    def _record_unread(self, job: Job, tokens: float, whole: float) -> None:
        """Record that `tokens` of `whole` were not read; the answer's headers, its usage and a notice report them."""
        sent = job.outcome.sent
        sent.left_out += max(0, math.ceil(tokens))
        sent.left_out_of = max(sent.left_out_of, math.ceil(whole))

    async def _notes(
        self, job: Job, pieces: Sequence[str], question: str, by: Summariser, room: float, progress: _Progress
    ) -> list[str]:
        """Have notes written on each piece, within `room` tokens if possible; returns none if too many pieces fail.

        A piece that fails is read again in halves: it was too long, or the model would lose its way in it again. If that fails
        too, the beginning of the piece takes the place of its notes.
        """
        # In halves, because the same words again fail again: a server refuses the same length, and a model at
        # temperature 0 loses its way at the same place.
        tokens = max(SMALLEST, min(by.tokens, int(room / len(pieces))))
        failed, cost = 0, partial(self._meter.costs, job.key)
        notes = list[str]()
        progress.parts = len(pieces)

        async def note_on(text: str, most: int) -> str:
            ask = _ask(text, question, progress.part, len(pieces), most)
            return await self._summaries.answer(job, SummaryAsk([ask], False, most, brief=True))

        for progress.part, piece in enumerate(pieces, 1):
            note = await note_on(piece, tokens)
            if not note:
                halves = in_pieces(piece, sum(cost([_said(piece)])) * 0.6, cost)
                note = "\n".join(filter(None, [await note_on(each, tokens // 2) for each in halves]))
            job.progress.failed = 0
            job.outcome.add("document_part", became="read" if note else "failed")
            failed += not note
            if not note:
                self._record_unread(job, sum(cost([_said(piece)])), sum(cost([*map(_said, pieces)])))
            if failed > _FAILED * min(len(pieces), max(progress.part, _TRIED)):
                return []
            notes.append(
                _unmarked(note) or f"(There are no notes on this part. It begins so:) {_unmarked(piece[:tokens])} …"
            )
        return notes


def document_in(message: Message) -> Document | None:
    """Find the long text in a user message, pasted or in a program's block; None if only images or short texts make it long."""
    texts, spans, pasted = dict(texts_of(message)), list[tuple[int | None, int, int]](), False
    for piece in pieces_of(message):
        start, end = piece.start, piece.end
        if piece.kind == "words" and end - start > _LARGE:
            start, end = _without_edges(texts[piece.part], start, end)
        if end - start > _LARGE:
            spans.append((piece.part, start, end))
            pasted |= piece.kind == "words"
    if not spans:
        return None
    text = "\n\n".join(texts[part][start:end] for part, start, end in spans)
    question = authored_text(_with(message, spans, ["[…]" for _ in spans])).strip()
    if not question.replace("[…]", "").strip():
        question = f"{text[:_EDGE]}\n[…]\n{text[-_EDGE:]}"
    return Document(spans, text, cut_text(question, _QUESTION), pasted)


def is_about_all_of(document: Document) -> bool:
    """Return whether the question is about all of the document: by its words, or because no passage of a pasted text stands out."""
    if _WHOLE.search(document.question) or not document.pasted:
        return _WHOLE.search(document.question) is not None
    query = query_of([{"role": "user", "content": document.question}], 0)
    passages = passages_of({"role": "user", "content": document.text})
    return not query.terms or not outstanding(rank([passages], query), lambda _: True)


def with_notes(message: Message, document: Document, notes: str) -> Message:
    """Return the message with notes in place of the document and the rest unchanged."""
    block = f"\n<{_TAG}>\n{notes}\n</{_TAG}>\n"
    return _with(message, document.spans, [block, *("[…]" for _ in document.spans[1:])])


def _goes_on(message: Message) -> bool:
    return message.get("role") == "user" and not is_result(message) and not is_summary(message)


def _history_in(apart: Apart) -> Document:
    """Return the conversation as one text, with the client's instructions as the question."""
    pieces = [text_of(apart.messages[at])[start:end] for at, (start, end) in apart.spans.items()]
    pieces += transcripts([apart.messages[at] for at in apart.history], (math.inf,))
    return Document((), "\n\n".join(pieces), cut_text(apart.question, _QUESTION), pasted=False)


def _said(text: str) -> Message:
    return {"role": "user", "content": text}


def _ask(piece: str, question: str, part: int, parts: int, tokens: int) -> Message:
    ask = _INSTRUCTION.format(part=part, parts=parts, question=plain(question), words=max(40, tokens * 3 // 5))
    ask += "" if _WHOLE.search(question) else _NOTHING
    return {"role": "user", "content": f"{fence(piece)}\n\n{ask}"}


def _unmarked(text: str) -> str:
    """Return text of a model or a document without marks that could close the block around it."""
    return plain(text).replace(_TAG, "notes")


def _without_edges(text: str, start: int, end: int) -> tuple[int, int]:
    """Narrow a span by the short paragraphs, or lines, at either end: they are where users put a question about the text."""
    opening, closing = text[start : start + _EDGE], text[end - _EDGE : end].rstrip()
    head = opening.rfind("\n\n") + 1 or opening.find("\n") + 1
    tail = closing.find("\n\n") if "\n\n" in closing else closing.rfind("\n")
    return start + head, end if tail < 0 else end - _EDGE + tail


def _with(message: Message, spans: Sequence[tuple[int | None, int, int]], texts: Sequence[str]) -> Message:
    changed = {
        part: replaced(
            text, [((start, end), new) for (at, start, end), new in zip(spans, texts, strict=True) if at == part]
        )
        for part, text in texts_of(message)
    }
    return with_parts(message, changed)

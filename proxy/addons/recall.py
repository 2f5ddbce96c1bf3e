"""Recall: puts passages of the covered history in front of the newest user message, and decides how long they stay.

Passages come from messages that the request still has although its prompt does not, or that are archived because the client left
them out (`proxy.addons.archive`). Between requests, the add-on remembers which block it put in front of which user message, so that
the prompt begins the same on every step of a turn, and which blocks stay after their turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from typing_extensions import override

from proxy.addon import AddOn
from proxy.addons.embedding import Embedder, query_text
from proxy.compaction.decision import Compact, decide
from proxy.compaction.middles import newest_cut
from proxy.compaction.policy import prune_limits
from proxy.core.history.checkpoint import digest_of
from proxy.core.history.embedded import authored_text
from proxy.core.history.marks import BEGIN
from proxy.core.history.turns import calls_of, is_result, newest_place, newest_user
from proxy.core.jsontext import is_heavy
from proxy.core.piece import CallPart
from proxy.core.request import Message, text_of
from proxy.counting import Counting
from proxy.job import Job
from proxy.net.tasks import offload_each, offload_if
from proxy.outcome import Outcome
from proxy.preparing import may_offer
from proxy.prompt import BuiltinTool, OfferedTools
from proxy.recall.block import (
    NAME,
    NO_QUERY,
    NO_ROOM,
    NOTHING,
    NOTHING_FOUND,
    NOTHING_LOST,
    Block,
    RecalledBlocks,
    block_of,
    found_text,
    query_in,
    search_tool,
)
from proxy.recall.data import are_data
from proxy.recall.overview import RANKED, About, about_conversation, overview
from proxy.recall.passages import NO_PASSAGES, MessagePassages, passages_of, spoken_text
from proxy.recall.ranking import Passage, Query, asks_the_same, choose, query_of, rank, search_query, within
from proxy.recall.words import clear_terms
from proxy.routing import Router
from proxy.tokens.cache import Cache

_TURN = 200
"""Bytes of a decision for a turn, besides its block."""
_MANY = 4000
"""Passages above which they are ranked in a thread: ranking takes about a millisecond per thousand."""
# In a window of 2,048 tokens with short answers, passages of 560 tokens were read on turns that otherwise read 90.
SECONDS = 2.0
"""Most seconds that a backend may spend reading a turn's recalled passages, where only reading time matters (not hosted)."""
_LEAST = 112
"""Tokens that may be recalled however slow a backend is."""
# With blocks that stayed more readily, the next compaction came a turn earlier, which cost more than removing them. In
# chats with answers of 500 tokens (window 4,096) this factor and a wider goal brought 21.8 compactions per 100 turns
# down to 19.8.
_WORTH = 4
"""Factor by which the tokens after a block must exceed its own for the block to stay when its turn is over."""
_FEWEST, _FEW = 2, 6
"""Range of terms in a message that may continue the question before it: fewer ask nothing, more are a query of their own."""
_LEAST_ROOM = 64
"""Tokens of room below which the model's search is refused."""
_END = 80
"""Characters at the end of a passage that show it is still in a cut message: the end, because the question mostly is there."""
_MARKS = 32
"""Tokens reserved for the marks around a block and the dates in it."""


@dataclass(slots=True)
class _Turn:
    """Decision for a turn, valid under one checkpoint: the block, if any, and whether it stays once the turn is over."""

    beginning: str
    """Digest of that checkpoint; empty if there was none."""
    block: Block | None
    stays: bool | None = None
    after: int = 0
    """Number of messages from the user message to the one that the block is in front of."""
    capped: int = 0
    """Number of capped results when it was decided: if no block was found, another capped result is reason to search again."""


class Recaller(AddOn):
    """Puts passages of covered history back into the prompts of jobs."""

    def __init__(self, counting: Counting, router: Router) -> None:
        self._counting, self._meter = counting, counting.meter
        self._embedder = Embedder(router, self._meter.memory)
        self._passages = Cache[bytes, MessagePassages](self._meter.memory)
        self._turns = Cache[tuple[str, bytes], _Turn](self._meter.memory)

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Clear all indexes: terms do not record whose they are, and indexing a history again takes seconds at most."""
        self._passages.clear()
        self._turns.clear()
        clear_terms()

    @override
    async def enrich(self, job: Job, *, reserve: int = 0) -> None:
        """Put the passages that the newest turn needs in front of its user message, and count the prompt again.

        Where the backend closes gaps, those for a later step of a loop go in front of the newest result, behind all that was read.
        """
        prompt = job.prompt
        if not (prompt.lost or prompt.capped) or job.budget is None:
            return
        newest, placed = newest_user(prompt.sent), newest_user(prompt.history)
        if newest is None or placed is None or text_of(prompt.sent[newest]) == BEGIN:
            return
        if job.settings.recall == "off" or job.undisturbed or job.managed.hands_over:
            return
        earlier = self._staying(job, newest)
        if job.ahead and job.ahead.expected in prompt.links[:newest]:
            await self._insert(job, RecalledBlocks(earlier))
            return  # the prompt is prepared ahead: the user's next message, and so the query, is still unknown
        since, key = job.outcome.clock(), (job.scope, prompt.links[newest])
        turn, capped = self._turns.get(key), len(prompt.capped)
        moved = len(prompt.history) - len(prompt.sent)
        step = (newest_place(prompt.sent) or newest) - newest if job.closes_gaps else 0
        at = placed
        if turn is not None and turn.after:
            at = newest + turn.after + moved
            if not (placed < at < len(prompt.history) and is_result(prompt.history[at])):
                turn = None  # that result is covered, or the client went back to an earlier step
        if turn is not None and turn.block and turn.after < step:
            # With another block in its place, all steps behind it would be read again.
            turn.beginning = prompt.beginning
        if turn is not None and turn.beginning == prompt.beginning and (turn.block or turn.capped == capped):
            blocks = earlier if turn.block is None else {**earlier, at: turn.block}
            await self._insert(job, RecalledBlocks(blocks, turn.block))
        else:
            await self._insert(job, RecalledBlocks(earlier))
            at = newest + step + moved if step else placed
            block = await self._fitted(job, await self._needed(job, newest), at, earlier, reserve)
            self._remember(key, _Turn(job.prompt.beginning, block, after=step, capped=capped))
        _record(job, job.outcome.clock() - since)

    @override
    async def give_way(self, job: Job, *, refused: bool) -> bool:
        """Take recalled passages out if the prompt was refused, or if that makes room for more than this step.

        In an agent's loop, tool results need the room more, and a summary would cost more than reading the turn again. Nothing
        is taken out if the next step would need a compaction anyway.
        """
        prompt, recalled = job.prompt, job.prompt.recalled
        # If cramped, a compaction makes room for passages that were left out.
        block = None if recalled.cramped else recalled.newest
        if refused and recalled.blocks:
            await self._insert(job, NOTHING)
        else:
            newest = newest_user(prompt.sent)
            if refused or block is None or job.budget is None or newest is None or _reads_anew(job):
                return False
            more = round(self._step(job) - block.tokens)
            if isinstance(decide(job.budget, job.facts.plus(more)._replace(passing=0)), Compact):
                return False
            self._remember((job.scope, prompt.links[newest]), _Turn(prompt.beginning, None, capped=len(prompt.capped)))
            await self._insert(job, RecalledBlocks(self._staying(job, newest)))
        _record(job)
        return True

    @override
    async def offer(self, job: Job, offered: OfferedTools, *, emulate: bool) -> None:
        """Offer the search tool, where the settings ask for it, to models that get tools from the client or can call them."""
        request, has_tools = offered.request, job.profile.tools
        tools = request.body.get("tools") or []
        able = bool(tools) or (not emulate and has_tools is not None and has_tools.value)
        if job.settings.recall == "tool" and able and may_offer(job, request):
            name = offered.free_name(NAME)
            offered.builtin[name] = BuiltinTool(partial(self._search, job))
            offered.request = request.changed(tools=[*tools, search_tool(name)])

    async def _search(self, job: Job, call: CallPart, room: float, before: Sequence[str]) -> str:
        """Search the covered history for the model, and return the tool's result."""
        if not (text := query_in(call)):
            return NO_QUERY
        if not (job.prompt.lost or job.prompt.capped):
            return NOTHING_LOST
        if room < _LEAST_ROOM:
            return NO_ROOM
        query = search_query(text)
        passages = await self._ranked(job, query, text, room) if query.terms else []
        passages = [each for each in passages if not any(each.text in found for found in before)]
        job.outcome.add("searched", passages=len(passages))
        return found_text(job.prompt.conversation, passages) if passages else NOTHING_FOUND

    def _step(self, job: Job) -> float:
        """Return the tokens of the newest answer and all after it, as a prediction for the next step."""
        sent = job.prompt.sent
        answers = (at for at in reversed(range(len(sent))) if sent[at].get("role") == "assistant")
        return sum(self._meter.costs(job.key, sent[next(answers, len(sent)) :]))

    def _staying(self, job: Job, newest: int) -> dict[int, Block]:
        """Find the blocks of earlier turns that stay, by their indexes in the prompt's history.

        A block stays where that costs less. If it is removed, the backend reads all tokens after it again. If it is left, its
        own tokens bring the next compaction nearer, sometimes by a whole turn, and then everything is read again and words are
        lost. If the model's cache cannot be rolled back, removing any block means reading the whole prompt, so blocks stay.
        """
        prompt, moved = job.prompt, len(job.prompt.history) - len(job.prompt.sent)
        found = dict[int, Block]()
        for index in range(prompt.lost - len(prompt.archived), newest):
            turn = self._turns.get((job.scope, prompt.links[index]))
            if turn is None or turn.block is None or turn.beginning != prompt.beginning:
                continue
            if turn.stays is None:
                tokens_after = sum(self._meter.costs(job.key, prompt.sent[index:newest]))
                turn.stays = _reads_anew(job) or turn.block.tokens * _WORTH <= tokens_after
            at = index + turn.after
            # A client that goes back may leave out the step that it is in front of.
            if turn.stays and (at == index or (at < newest and is_result(prompt.sent[at]))):
                found[at + moved] = turn.block
        return found

    async def _fitted(
        self, job: Job, found: Sequence[Passage], placed: int, earlier: Mapping[int, Block], reserve: int
    ) -> Block | None:
        """Put as many passages into the prompt as fit; returns None if none are needed, or none has room."""
        room = job.room - _MARKS
        # The best passage may use the reserve, which is for tokens that are only likely to come; all others must leave it free.
        best = within(found[:1], room)
        fitting = within(found, room - reserve)
        fitting = fitting if fitting[:1] == best else best or fitting
        is_last = job.budget is None or job.estimate.tokens + self._step(job) >= job.budget.due
        while fitting:
            text = block_of(job.prompt.conversation, fitting)
            block = Block(text, tuple(fitting), self._meter.count_text(job.key, text))
            # Without a compaction for their sake, what was recalled depended on how full the prompt happened to be:
            # right before a compaction 19 % of the evidence in dialogues, otherwise 86 %.
            # Cramped if the best passage is missing, or more than half of them, unless the next step needs a compaction anyway.
            cramped = fitting[:1] != found[:1] or (2 * len(fitting) < len(found) and not is_last)
            recalled = RecalledBlocks({**earlier, placed: block}, block, cramped=cramped)
            await self._insert(job, recalled)
            if job.room >= (0 if fitting == best else reserve):
                return block
            fitting = fitting[: len(fitting) * 3 // 4]
        await self._insert(job, RecalledBlocks(earlier, cramped=bool(found)))
        return None

    async def _needed(self, job: Job, newest: int) -> list[Passage]:
        """Find the passages that the turn beginning with the message at `newest` needs, best first."""
        sent, budget, checkpoint = job.prompt.sent, job.budget, job.prompt.checkpoint
        if checkpoint is not None and checkpoint.kind == "read" and checkpoint.covered > newest:
            return []  # the message was read in parts and replaced by notes, which were made for its question
        if are_data(job.prompt.system, sent, newest):
            return []
        room = 0.0 if budget is None else prune_limits(job.settings, budget.zone).recall - _MARKS
        if not job.known_backend.hosted:
            room = min(room, max(_LEAST, SECONDS * self._counting.pace(job.key).read) - _MARKS)
        if room <= 0:
            return []
        # In a thread, because the first terms of a process take 0.1 s.
        query, text = await offload_if(True, lambda: (query_of(sent, newest), query_text(sent, newest)))
        about = about_conversation(authored_text(sent[newest]))
        found = await self._ranked(job, query, text, room, about=about) if query.terms or about else []
        earlier = newest_user(sent[:newest])
        if found or earlier is None or not _FEWEST <= len(query.terms) <= _FEW:
            return found
        turn = self._turns.get((job.scope, job.prompt.links[earlier]))
        if turn is None or turn.block is None:
            return []
        # "Quote the whole sentence." has no search terms of its own: use the query of the turn before, for which something was found.
        before = await offload_if(True, query_of, sent, earlier)
        return await self._ranked(job, replace(before, bar=0.0), text, room, since=earlier) if before.terms else []

    async def _ranked(
        self, job: Job, query: Query, text: str, room: float, *, since: int | None = None, about: About | None = None
    ) -> list[Passage]:
        """Find the passages that match a query best, or are `about` the conversation; `text` is the query for the embedding model.

        `since`: index of the user message at which the question begins (default: the newest). From there on, the prompt holds
        only the question and its answers, which are not passages to find.
        """
        prompt, messages = job.prompt, job.prompt.conversation
        newest = newest_user(messages)
        assert newest is not None  # there is a query
        indexed, moved = await self._indexed(messages), len(messages) - len(prompt.sent)
        question_at = newest if since is None else since + moved
        while question_at and messages[question_at - 1].get("role") == "user":
            question_at -= 1
        for index in range(min(question_at, prompt.lost), newest + 1):
            # Never return the question itself as a passage: not the messages still shown from it on, nor earlier copies of it.
            shown = index >= prompt.lost or (index >= question_at and messages[index] in prompt.history)
            if shown and (index >= question_at or asks_the_same(messages[index], query)):
                indexed[index] = NO_PASSAGES
        for index in range(newest + 1, len(messages)):
            if calls_of(messages[index]):
                indexed[index] = NO_PASSAGES  # a call repeats words of the question, which does not answer it
        if (both := newest_cut(prompt.sent, prompt.history)) is not None:
            remaining = spoken_text(both[1])
            indexed[newest] = passages_of(messages[newest], only=lambda passage: passage[-_END:] not in remaining)
        heavy = sum(len(each.spans) for each in indexed) > _MANY or is_heavy(messages)
        near = None
        if job.settings.recall_model is not None:
            texts = await offload_if(heavy, _texts_of, messages, indexed)
            near = await self._embedder.similarities(job, text, texts)
        return await offload_if(heavy, self._best, job, indexed, query, near, room, about)

    def _best(
        self,
        job: Job,
        indexed: Sequence[MessagePassages],
        query: Query,
        near: Sequence[float] | None,
        room: float,
        about: About | None,
    ) -> list[Passage]:
        """Rank passages and choose among them. It may take long, and may run in a thread."""
        prompt, messages, checkpoint = job.prompt, job.prompt.conversation, job.prompt.checkpoint
        replacement = () if checkpoint is None else checkpoint.replacement
        shown = {content for each in replacement if isinstance(content := each.get("content"), str)}
        texts = "\n".join(map(spoken_text, prompt.messages))
        # A covered message is lost unless the checkpoint repeats its whole text. A passage that other messages of the prompt
        # contain is recognised by its text (`in_prompt`).
        contents = (message.get("content") for message in messages)
        capped = {len(prompt.archived) + index for index in prompt.capped}
        lost = [
            n in capped or (n < prompt.lost and not (isinstance(each, str) and each in shown))
            for n, each in enumerate(contents)
        ]
        gone, cost = lost.__getitem__, partial(self._meter.count_text, job.key)
        by_words, ranking = room * RANKED if about else room, rank(indexed, query, near)
        found = choose(messages, indexed, ranking, lost=gone, room=by_words, cost=cost, in_prompt=texts.__contains__)
        if about is not None:
            has = "\n".join((texts, *(each.text for each in found))).__contains__
            room -= sum(each.tokens for each in found)
            found += overview(about, messages, indexed, lost=gone, room=room, cost=cost, in_prompt=has)
        return found

    async def _indexed(self, messages: Sequence[Message]) -> list[MessagePassages]:
        """Index the passages of each message; only messages not seen before are read, in a thread."""
        digests = [*map(digest_of, messages)]
        found = {digest: self._passages.get(digest) for digest in digests}
        new = {digest: each for digest, each in zip(digests, messages, strict=True) if found[digest] is None}
        read = await offload_each(bool(new), passages_of, new.values())
        for digest, passages in zip(new, read, strict=True):
            found[digest] = passages
            self._passages.put(digest, passages, passages.size)
        return [found[digest] or NO_PASSAGES for digest in digests]

    async def _insert(self, job: Job, recalled: RecalledBlocks) -> None:
        """Set the recalled blocks of the prompt, and count it again."""
        before, job.prompt = job.prompt.recalled, replace(job.prompt, recalled=recalled)
        if recalled.blocks or before.blocks:
            await self._counting.recount(job)

    def _remember(self, key: tuple[str, bytes], turn: _Turn) -> None:
        self._turns.put(key, turn, _TURN + 4 * (len(turn.block.text) if turn.block else 0))


def _reads_anew(job: Job) -> bool:
    """Return whether the model is known to read a whole prompt again if anything in it changed: its cache cannot roll back."""
    return job.profile.rolls_back is not None and not job.profile.rolls_back.value


def _record(job: Job, seconds: float = 0.0) -> None:
    """Record the passages in front of the newest user message; the last record counts."""
    block, sent = job.prompt.recalled.newest, job.outcome.sent
    sent.recalled = 0 if block is None else len(block.passages)
    sent.recalled_tokens = job.prompt.recalled.newest_tokens
    job.outcome.add("recalled", passages=sent.recalled, tokens=sent.recalled_tokens, seconds=seconds)


def _texts_of(messages: Sequence[Message], indexed: Sequence[MessagePassages]) -> list[str]:
    """List the text of each passage, in the order of ranking."""
    spoken = ((spoken_text(message), each.spans) for message, each in zip(messages, indexed, strict=True))
    return [text[start:end] for text, spans in spoken for start, end in spans]

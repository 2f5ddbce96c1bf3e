"""Recall: passages of the covered history put in front of the newest user message, and how long they stay.

The client is the archive: everything is in the request. What is remembered between requests is which block was put
in front of which user message, so that a prompt begins the same on every step of a turn, and which of them stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from proxy.compaction.budget import ContextBudget
from proxy.compaction.middles import newest_cut
from proxy.compaction.policy import prune_limits
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.history.turns import newest_user
from proxy.core.jsontext import is_heavy
from proxy.core.request import Message
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.recall.block import block_of
from proxy.recall.choosing import Passage, choose, within
from proxy.recall.dense import query_text
from proxy.recall.passages import NO_PASSAGES, MessagePassages, passages_of, spoken_text
from proxy.recall.query import Query, asks_the_same, query_of, sought
from proxy.recall.ranking import Ranking, rank
from proxy.recall.recalled import NOTHING, Block, RecalledBlocks, stays
from proxy.recall.words import is_loaded
from proxy.stages.embedding import Embedder
from proxy.tokens.anchors import digest_of
from proxy.tokens.meter import INLINE, Meter

INDEXED = 6 * 2**20
"""Bytes of histories whose terms are kept; these take about ten times as much."""
MOST_CHARACTERS = 16 * 2**20
"""Characters of blocks that are remembered; a turn without one counts as a hundred."""
_NO_BLOCK = 100
_MANY = 4000
"""Passages from which ranking is left to a thread: it takes about a millisecond for each thousand."""
_MARKS = 48
"""Tokens of the marks around a block, and of its days."""
_ENOUGH = 0.5
"""Share of what a turn needs below which there is too little room for it: then the history is compacted, a little early."""


@dataclass(slots=True)
class _Turn:
    """Decision for a turn under a checkpoint: its block, and once the turn is over whether the block stays."""

    checkpoint: bytes
    block: Block | None
    stays: bool | None = None

    @property
    def size(self) -> int:
        return _NO_BLOCK + (0 if self.block is None else 2 * len(self.block.text))


@dataclass(frozen=True, slots=True)
class _Place:
    """Index of the newest user message, in the client's history and in the prompt's."""

    sent: int
    placed: int


class Recaller:
    """Puts passages of covered history back into the prompts of jobs."""

    def __init__(self, *, meter: Meter, embedder: Embedder) -> None:
        self._meter = meter
        self._embedder = embedder
        self._passages: OrderedDict[bytes, tuple[int, MessagePassages]] = OrderedDict()
        self._indexed = 0
        self._turns: OrderedDict[tuple[str, bytes], _Turn] = OrderedDict()
        self._size = 0

    async def recall(self, job: Job, *, reserve: int = 0) -> None:
        """Put the passages that the newest turn needs in front of its user message, and count the prompt again.

        `reserve` are tokens that will come on top of the prompt.
        """
        prompt, checkpoint = job.prompt, job.prompt.checkpoint
        if job.budget is None or checkpoint is None or job.settings.recall == "off":
            return
        if job.undisturbed or job.managed.hands_over:
            return
        newest, placed = newest_user(prompt.sent), newest_user(prompt.history)
        if newest is None or placed is None:
            return
        if job.expected is not None and newest >= job.expected.messages:
            await self._put(job, RecalledBlocks(self._staying(job, job.budget, newest)))
            return  # nobody knows yet what the newest turn will need
        since = job.outcome.clock()
        earlier, key = self._staying(job, job.budget, newest), (job.scope, prompt.links[newest])
        turn = self._turns.get(key)
        if turn is not None and turn.checkpoint == checkpoint.digest:
            self._turns.move_to_end(key)
            blocks = earlier if turn.block is None else {**earlier, placed: turn.block}
            await self._put(job, RecalledBlocks(blocks, turn.block))
        else:
            await self._put(job, RecalledBlocks(earlier))
            block = await self._chosen(job, job.budget, _Place(newest, placed), earlier, reserve)
            self._remember(key, _Turn(checkpoint.digest, block))
        newest_block, tokens = job.prompt.recalled.newest, job.prompt.recalled.newest_tokens
        job.outcome.record_recalled(
            len(newest_block.passages) if newest_block else 0, tokens, job.outcome.clock() - since
        )

    async def give_way(self, job: Job) -> bool:
        """Take out what was recalled for this turn where that makes room for more than this step; False if it does not.

        The results of a loop need the room more, and a summary would cost more than reading the turn once more; but not
        one that would be due at the next step all the same.
        """
        prompt, budget, newest = job.prompt, job.budget, newest_user(job.prompt.sent)
        block = prompt.recalled.newest
        if block is None or budget is None or newest is None or prompt.recalled.cramped:
            return False
        more = round(self._newest_step(job) - block.tokens)
        if budget.needs_compaction(prompt.estimate.tokens + more, prompt.estimate.upper + more):
            return False
        checkpoint = prompt.checkpoint
        assert checkpoint is not None  # nothing is recalled without one
        self._remember((job.scope, prompt.links[newest]), _Turn(checkpoint.digest, None))
        await self._put(job, RecalledBlocks(self._staying(job, budget, newest)))
        job.outcome.record_recalled(0, 0)
        return True

    def _newest_step(self, job: Job) -> float:
        """Tokens of the newest call and its results: what the next ones will take, about."""
        sent = job.prompt.sent
        roles = [message.get("role") for message in sent]
        begins = len(sent) - 1 - roles[::-1].index("assistant") if "assistant" in roles else len(sent)
        return sum(self._meter.costs(job.key, sent[begins:]))

    async def drop(self, job: Job) -> bool:
        """Take out what was recalled, for a prompt that was refused; False if there was nothing."""
        if not job.prompt.recalled.blocks:
            return False
        await self._put(job, NOTHING)
        job.outcome.record_recalled(0, 0)
        return True

    # -- earlier turns

    def _staying(self, job: Job, budget: ContextBudget, newest: int) -> dict[int, Block]:
        """The blocks of earlier turns that stay, by their places in the prompt's history."""
        prompt, checkpoint = job.prompt, job.prompt.checkpoint
        assert checkpoint is not None
        shift = len(checkpoint.replacement) - checkpoint.covered
        found: dict[int, Block] = {}
        for index in range(checkpoint.covered, newest):
            turn = self._turns.get((job.scope, prompt.links[index]))
            if turn is None or turn.block is None or turn.checkpoint != checkpoint.digest:
                continue
            if turn.stays is None:
                behind = sum(self._meter.costs(job.key, prompt.sent[index:newest]))
                turn.stays = stays(turn.block.tokens, behind, trigger=budget.trigger, target=budget.target)
            if turn.stays:
                found[index + shift] = turn.block
        return found

    # -- the newest turn

    async def _chosen(
        self, job: Job, budget: ContextBudget, turn: _Place, earlier: Mapping[int, Block], reserve: int
    ) -> Block | None:
        """Choose for the newest turn, and put it into the prompt; None: it needs nothing, or there is no room."""
        wanted = prune_limits(job.settings, budget.zone).recall - _MARKS
        room = remaining_room(job, budget) - _MARKS
        found = await self._found(job, turn.sent, wanted)
        best = within(found[:1], room)
        fitting = within(found, room - reserve)
        fitting = fitting if fitting[:1] == best else best or fitting
        while fitting:
            text = block_of(job.prompt.sent, fitting)
            block = Block(text, tuple(fitting), self._meter.count_text(job.key, text))
            await self._put(job, RecalledBlocks({**earlier, turn.placed: block}, block, _cramped(fitting, found)))
            # What is needed most comes before what is only likely to come.
            if remaining_room(job, budget, 0 if fitting == best else reserve) >= 0:
                return block
            fitting = fitting[: len(fitting) * 3 // 4]
        await self._put(job, RecalledBlocks(earlier, cramped=_cramped(fitting, found)))
        return None

    async def _found(self, job: Job, newest: int, room: float) -> list[Passage]:
        """Find the passages that the turn beginning with the message at `newest` needs, best first."""
        prompt, checkpoint = job.prompt, job.prompt.checkpoint
        if checkpoint is None or room <= 0:
            return []
        heavy = not is_loaded() or is_heavy(prompt.sent[newest])
        query = await offload_if(heavy, query_of, prompt.sent, newest)
        words = await offload_if(heavy, query_text, prompt.sent, newest)
        return await self._ranked(job, checkpoint, query, words, room) if query.terms else []

    async def search(self, job: Job, text: str, room: float) -> list[Passage]:
        """Find the passages of the covered history that match a text best, within `room` tokens."""
        checkpoint, query = job.prompt.checkpoint, sought(text)
        if checkpoint is None or not query.terms or room <= 0:
            return []
        return await self._ranked(job, checkpoint, query, text, room)

    async def _ranked(self, job: Job, checkpoint: Checkpoint, query: Query, words: str, room: float) -> list[Passage]:
        """Find the passages that match a query best; `words` is its text, for the embedding model."""
        prompt, newest = job.prompt, newest_user(job.prompt.sent)
        assert newest is not None  # there is a query
        indexed = list(await self._indexed_passages(prompt.sent))
        for index in range(checkpoint.covered, newest + 1):
            # What was asked is no answer: who asks once more needs the same again.
            if index == newest or asks_the_same(prompt.sent[index], query):
                indexed[index] = NO_PASSAGES
        indexed[newest] = _cut_out(job, indexed[newest])
        many = sum([len(each.spans) for each in indexed]) > _MANY
        heavy = many or is_heavy(prompt.sent)
        near = None
        if job.settings.recall_model is not None:
            texts = await offload_if(heavy, _texts, prompt.sent, indexed)
            near = await self._embedder.near(job, words, texts)
        ranked = partial(rank, indexed, query, near)
        return await offload_if(heavy, self._best, job, checkpoint, indexed, ranked, room)

    def _best(
        self,
        job: Job,
        checkpoint: Checkpoint,
        indexed: Sequence[MessagePassages],
        ranked: Callable[[], Ranking],
        room: float,
    ) -> list[Passage]:
        """Rank passages and choose among them. May take long; usable from a thread."""
        prompt = job.prompt
        shown = {content for each in checkpoint.replacement if isinstance(content := each.get("content"), str)}
        texts = "\n".join(map(spoken_text, prompt.messages))
        covered = (message.get("content") for message in prompt.sent[: checkpoint.covered])
        # What else is in the prompt all the same is found by its text.
        lost = [not isinstance(content, str) or content not in shown for content in covered]
        lost += [False] * (len(indexed) - len(lost))
        return choose(
            prompt.sent,
            indexed,
            ranked(),
            lost=lost.__getitem__,
            room=room,
            cost=partial(self._meter.count_text, job.key),
            in_prompt=texts.__contains__,
        )

    async def _indexed_passages(self, messages: Sequence[Message]) -> Sequence[MessagePassages]:
        """Index the passages of each message; only new ones are read, large ones in a thread."""
        digests, known = [*map(digest_of, messages)], self._passages
        found = [known.get(digest) for digest in digests]
        new = {digest: each for digest, each, entry in zip(digests, messages, found, strict=True) if entry is None}
        large = sum(len(spoken_text(each)) for each in new.values()) > INLINE
        read = dict(zip(new, await offload_if(large, _read, [*new.values()]), strict=True))
        entries = [entry or read[digest] for digest, entry in zip(digests, found, strict=True)]
        for digest, entry in zip(digests, entries, strict=True):
            self._indexed += 0 if digest in known else entry[0]
            known[digest] = entry
            known.move_to_end(digest)
        while self._indexed > INDEXED:
            self._indexed -= known.popitem(last=False)[1][0]
        return [passages for _, passages in entries]

    async def _put(self, job: Job, recalled: RecalledBlocks) -> None:
        """Set the recalled blocks of the prompt, and count it again."""
        if recalled.blocks or job.prompt.recalled.blocks:
            job.prompt.recalled = recalled
            job.prompt.estimate = await self._meter.measure(job.key, job.body(), tenant=job.exchange.tenant)
            job.measured()
        job.prompt.recalled = recalled

    def _remember(self, key: tuple[str, bytes], turn: _Turn) -> None:
        old = self._turns.pop(key, None)
        self._size += turn.size - (0 if old is None else old.size)
        self._turns[key] = turn
        while self._size > MOST_CHARACTERS:
            _, gone = self._turns.popitem(last=False)
            self._size -= gone.size


def remaining_room(job: Job, budget: ContextBudget, reserve: int = 0) -> int:
    """Tokens that the prompt may still take, by its best estimate and by its upper bound."""
    estimate = job.prompt.estimate
    return min(budget.brim - estimate.tokens, budget.limit - estimate.upper) - reserve


def _read(messages: Sequence[Message]) -> list[tuple[int, MessagePassages]]:
    """Length of each message in characters, and its passages."""
    return [(len(spoken_text(message)), passages_of(message)) for message in messages]


def _texts(messages: Sequence[Message], indexed: Sequence[MessagePassages]) -> list[str]:
    """The text of each passage, in the order in which they are ranked."""
    texts = []
    for message, each in zip(messages, indexed, strict=True):
        text = spoken_text(message) if each.spans else ""
        texts += [text[start:end] for start, end in each.spans]
    return texts


def _cramped(fitting: Sequence[Passage], found: Sequence[Passage]) -> bool:
    """Return whether there is too little room for the passages found."""
    return _sum(fitting) < _ENOUGH * _sum(found)


def _sum(passages: Sequence[Passage]) -> float:
    return sum(passage.tokens for passage in passages)


def _cut_out(job: Job, indexed: MessagePassages) -> MessagePassages:
    """Return the newest user message's passages; only those cut out of it, if its middle had to be cut."""
    both = newest_cut(job.prompt.sent, job.prompt.history)
    if both is None:
        return indexed
    text, remaining = map(spoken_text, both)
    return indexed.only(lambda start, end: text[start:end] not in remaining)

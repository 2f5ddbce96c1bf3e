"""Byte-level byte-pair encoding, trained in under a second on a few hundred kilobytes of text."""

import heapq
import re
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TypeAlias

Pair: TypeAlias = tuple[str, str]

# GPT-2's pre-tokenizer, for ASCII: llama.cpp splits the same way for `tokenizer.ggml.pre = gpt-2`.
_SPLIT = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_letters() -> dict[int, str]:
    """The usual byte-level alphabet: every byte value as one printable character."""
    table = {byte: chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    extra = 256
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(extra)
            extra += 1
    return table


class _Trainer:
    """Pair counts that are kept up to date merge by merge."""

    def __init__(self, text: str) -> None:
        letters = byte_letters()
        counts = Counter(_SPLIT.findall(text))
        self._words = [([letters[byte] for byte in word.encode()], n) for word, n in sorted(counts.items())]
        self._pairs: Counter[Pair] = Counter()
        self._where: dict[Pair, set[int]] = defaultdict(set)
        for index in range(len(self._words)):
            self._count(index, 1)
        # Entries whose count has changed since stay in the queue and are skipped when they come up.
        self._queue = [(-n, pair) for pair, n in self._pairs.items()]
        heapq.heapify(self._queue)

    def next_merge(self) -> Pair | None:
        """The most frequent pair, now joined wherever it stood; None when no pair occurs twice."""
        while self._queue:
            negative, best = heapq.heappop(self._queue)
            if self._pairs[best] != -negative:
                continue
            if -negative < 2:
                return None
            self._merge(best)
            return best
        return None

    def _merge(self, best: Pair) -> None:
        touched: set[Pair] = set()
        for index in self._where.pop(best):
            touched |= self._count(index, -1)
            word, n = self._words[index]
            self._words[index] = (_joined(word, best), n)
            touched |= self._count(index, 1)
        for pair in touched:
            if self._pairs[pair] > 0:
                heapq.heappush(self._queue, (-self._pairs[pair], pair))

    def _count(self, index: int, sign: int) -> set[Pair]:
        word, n = self._words[index]
        for pair in pairwise(word):
            self._pairs[pair] += sign * n
            if sign > 0:
                self._where[pair].add(index)
        return set(pairwise(word))


def _joined(word: list[str], pair: Pair) -> list[str]:
    out: list[str] = []
    position = 0
    while position < len(word):
        if tuple(word[position : position + 2]) == pair:
            out.append(pair[0] + pair[1])
            position += 2
        else:
            out.append(word[position])
            position += 1
    return out


def train(text: str, merges: int) -> list[Pair]:
    trainer = _Trainer(text)
    learnt: list[Pair] = []
    while len(learnt) < merges and (pair := trainer.next_merge()) is not None:
        learnt.append(pair)
    return learnt

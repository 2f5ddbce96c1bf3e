"""What was learned of models, told to the other processes that use the same store, and taken from them.

Of each lesson the newest word counts, whoever has it: that it was learned, or that it turned out to be wrong. So nothing
is lost when two write at the same time: who misses its own word in the store writes it once more.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from proxy.history.checkpoint import LearnedState
from proxy.net.teaching import LESSON_TTL
from proxy.net.upstream import Upstream
from proxy.stages.counting import Counting

EVERY = 1.0
"""Seconds between two looks: what one has learned the others know after two of them."""
WEIGHTS_EVERY = 10
"""Looks between two at how prompts are counted, which changes with every answer."""

Name: TypeAlias = tuple[str, str]
"""Model, and what the lesson is called."""

_log = logging.getLogger("spillway.sharing")


@dataclass(frozen=True, slots=True)
class _Word:
    """A lesson, see `Teaching.taught`, or None for one that was given up; seconds since the epoch since when that holds."""

    taught: list[Any] | None
    at: float


class Sharing:
    """Has the processes that share a store know what each of them learns."""

    def __init__(
        self,
        store: LearnedState,
        upstreams: Sequence[Upstream],
        counting: Counting,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives seconds since the epoch."""
        self._store = store
        self._upstreams = upstreams
        self._counting = counting
        self._clock = clock
        self._words: dict[str, dict[Name, _Word]] = {each.name: {} for each in upstreams}

    async def run(self) -> None:
        """Go on until cancelled."""
        looks = 0
        while True:
            try:
                await self.look()
                if looks % WEIGHTS_EVERY == 0:
                    await self._counting.exchange()
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one value, the next look is due
                _log.warning("what was learned could not be shared: %s", type(error).__name__)
            looks += 1
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Take from the store what is newer there, and put there what is newer here."""
        for upstream in self._upstreams:
            key = f"lessons|{upstream.name}|{blake2b(upstream.url.encode(), digest_size=8).hexdigest()}"
            stored = _read(await self._store.get_state(key))
            words = self._words[upstream.name]
            self._hear(upstream, words)
            self._heed(upstream, words, stored)
            for name in [name for name, word in words.items() if self._left(word) <= 0]:
                del words[name]
            if any(stored.get(name) != word for name, word in words.items()):
                await self._store.put_state(key, _written(words))

    def _hear(self, upstream: Upstream, words: dict[Name, _Word]) -> None:
        """Note what has changed here since the last look."""
        taught, now = upstream.prober.teaching.taught(), self._clock()
        for name in words.keys() | taught.keys():
            here = taught.get(name)
            if (known := words.get(name)) is None or known.taught != here:
                words[name] = _Word(here, now)

    def _heed(self, upstream: Upstream, words: dict[Name, _Word], stored: dict[Name, _Word]) -> None:
        """Take over what is newer."""
        for name, word in stored.items():
            mine = words.get(name)
            if (mine is not None and mine.at >= word.at) or (left := self._left(word)) <= 0:
                continue
            try:
                upstream.prober.teaching.adopt(*name, word.taught, left)
            except (ValueError, TypeError):
                continue  # of another version
            words[name] = word

    def _left(self, word: _Word) -> float:
        """Seconds for which it holds."""
        return min(LESSON_TTL, LESSON_TTL - (self._clock() - word.at))


def _read(state: bytes | None) -> dict[Name, _Word]:
    if state is None:
        return {}
    try:
        return {
            (str(model), str(name)): _Word(taught, float(at)) for model, name, taught, at in json.loads(state)
        }
    except (ValueError, TypeError):
        return {}


def _written(words: dict[Name, _Word]) -> bytes:
    return json.dumps([[*name, word.taught, word.at] for name, word in words.items()]).encode()

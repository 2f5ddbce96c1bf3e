"""How long a server may say nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from proxy.net.silence import Silence


class HandLoop:
    """A loop whose clock a test moves; it has one timer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due = 0.0
        self.call: Callable[[], object] | None = None
        self.set = 0

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], object]) -> HandLoop:
        self.due, self.call = self.now + seconds, call
        self.set += 1
        return self

    def cancel(self) -> None:
        self.call = None

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.call is not None and self.due <= end:
            self.now, call, self.call = self.due, self.call, None
            call()
        self.now = end


class Watched:
    """A loop, what is watched on it, and the silences that were told."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.waits: bool | None = True
        self.told: list[float] = []
        self.silence = Silence(cast("Any", self.loop), lambda: self.waits, self.told.append)


def test_it_is_told_once_after_so_many_seconds_without_a_word() -> None:
    watched = Watched()
    watched.silence.watch(10.0)
    watched.loop.advance(9.9)
    assert watched.told == []
    watched.loop.advance(30.0)
    assert watched.told == [10.0]


def test_words_put_it_off_and_set_no_timer_each() -> None:
    watched = Watched()
    watched.silence.watch(10.0)
    for _ in range(100):
        watched.loop.advance(1.0)
        watched.silence.heard = watched.loop.time()
    assert watched.loop.set < 15
    watched.loop.advance(9.9)
    assert watched.told == []
    watched.loop.advance(0.2)
    assert watched.told == [10.0]


def test_while_nobody_waits_it_is_not_the_server_that_is_slow() -> None:
    watched = Watched()
    watched.silence.watch(10.0)
    watched.waits = False
    watched.loop.advance(100.0)
    watched.waits = True
    watched.loop.advance(9.9)
    assert watched.told == []
    watched.loop.advance(10.0)
    assert watched.told == [10.0]


def test_the_next_exchange_may_have_another_bound_and_one_that_is_over_has_none() -> None:
    watched = Watched()
    watched.silence.watch(10.0)
    watched.silence.watch(10.0)
    assert watched.loop.set == 1
    watched.silence.watch(2.0)
    watched.loop.advance(2.0)
    assert watched.told == [2.0]
    watched.silence.watch(3.0)
    watched.waits = None
    watched.loop.advance(5.0)
    watched.silence.watch(3.0)
    watched.silence.stop()
    watched.waits = True
    watched.loop.advance(5.0)
    assert watched.told == [2.0]

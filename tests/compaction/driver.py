"""A model that answers whatever a compaction asks it for."""

from collections.abc import Callable
from typing import TypeVar

from proxy.compaction.asking import Sliced, Summariser, SummaryAsk

Made = TypeVar("Made")
BY = Summariser(window=4000, tokens=60, overhead=0.0, same_model=True)


def driven(flow: Sliced[Made], reply: Callable[[SummaryAsk], str]) -> tuple[Made, list[SummaryAsk]]:
    asked: list[SummaryAsk] = []
    try:
        ask = next(flow)
        while True:
            asked += [] if ask is None else [ask]
            ask = flow.send("" if ask is None else reply(ask))
    except StopIteration as stop:
        made: Made = stop.value
        return made, asked

"""A short run of `make chaos`, and how it judges what it finds."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.fakes import FAKES
from tests.faults.chaos import Chaos, drawn, not_flat
from tests.faults.verdict import NotClear, judged


@pytest.mark.slow
def test_a_short_run_finds_nothing() -> None:
    chaos = Chaos(seconds=3, seed=7, clients=6, kinds=list(FAKES), say=print)
    tally = asyncio.run(chaos.run())
    assert tally.findings == []
    assert tally.requests > 3


def test_a_seed_brings_the_same_turns_back() -> None:
    assert [drawn(5, 1, n, ["a", "b"]) for n in range(50)] == [drawn(5, 1, n, ["a", "b"]) for n in range(50)]
    assert drawn(5, 1, 1, ["a", "b"]) != drawn(6, 1, 1, ["a", "b"])


def test_what_grows_is_found() -> None:
    steady = {"tasks": 3, "locks": 0, "threads": 8, "files": 20, "memory": 100_000, "answering": 0}
    assert not_flat([steady] * 9, kept=3) == []
    for name, more in (("tasks", 1), ("locks", 1), ("threads", 1), ("files", 4), ("answering", 1)):
        grown = {**steady, name: steady[name] + more}
        assert not_flat([*[steady] * 4, *[grown] * 5], kept=3)
        assert not_flat([*[steady] * 5, grown, steady, grown, grown], kept=3) == []
    assert not_flat([{**steady, "memory": 100_000 + 10_000 * n} for n in range(9)], kept=3)


OPENING = b'data: {"id": "a", "choices": [{"index": 0, "delta": {"content": "w1"}, "finish_reason": null}]}\n\n'
STOP = b'data: {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
ERROR = b'data: {"error": {"message": "no"}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        OPENING + STOP,
        OPENING + DONE,
        OPENING + STOP + STOP + DONE,
        OPENING + STOP + DONE + DONE,
        OPENING + STOP + ERROR + DONE,
        OPENING + ERROR + ERROR + DONE,
        OPENING + OPENING + STOP + DONE,
        OPENING + b"data: {\n\n" + STOP + DONE,
        OPENING + STOP + DONE + b"data: {",
        OPENING.replace(b'"a"', b'"b"') + OPENING + STOP + DONE,
    ],
)
def test_what_is_neither_whole_nor_an_error_is_told(body: bytes) -> None:
    headers = {"content-type": "text/event-stream"}
    with pytest.raises(NotClear):
        judged(httpx.Response(200, content=body, headers=headers), "w1", stream=True)
    good = httpx.Response(200, content=OPENING + STOP + DONE, headers=headers)
    assert judged(good, "w1", stream=True).kind == "whole"


@pytest.mark.parametrize("body", [b"", b"{", b'{"choices": []}', b'{"error": {}}', b"[]"])
@pytest.mark.parametrize("status", [200, 500])
def test_nor_is_a_whole_one(body: bytes, status: int) -> None:
    with pytest.raises(NotClear):
        judged(httpx.Response(status, content=body), "w1", stream=False)

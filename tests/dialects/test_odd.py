"""Requests in which something is not what it should be: read or refused in every dialect, and in no more time than others."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.core.errors import ClientError
from proxy.core.piece import Identity, Piece
from proxy.core.request import Managed
from proxy.dialects import DIALECTS
from tests.faults.hostile import places, replaced

REQUESTS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "odd.json").read_text("utf-8"))
ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**63, 2**70, "", "x", [], [[]], [None], ["x"], {}),
    *({"type": []}, [{"type": {}}], [{"role": []}], {"content": {}}),
]


@pytest.mark.parametrize("path", REQUESTS)
def test_each_field_may_be_anything(path: str) -> None:
    dialect, asked = DIALECTS[path], REQUESTS[path]
    for at in places(asked):
        for odd in ODD:
            body = replaced(asked, at, json.dumps(odd))
            try:
                request = dialect.read(body)
            except ClientError:
                continue
            writer = dialect.writer(request, "0a1b", Managed())
            assert writer.insert(Piece(role=True, text="x"), Identity("", 1, "")), (at, odd)
            assert writer.end()


def _reminders(count: int) -> dict[str, Any]:
    reminders = [{"role": "system", "content": "remember " * 9} for _ in range(count)]
    return {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}, *reminders]}


def _results(count: int) -> dict[str, Any]:
    calls = [{"id": f"c{n}", "function": {"name": "f"}} for n in range(count)]
    results = [{"role": "tool", "tool_call_id": f"c{n}"} for n in reversed(range(count))]
    return {"model": "m", "messages": [{"role": "assistant", "tool_calls": calls}, *results]}


@pytest.mark.parametrize(("path", "made"), [("/v1/messages", _reminders), ("/api/chat", _results)])
def test_more_takes_as_much_longer(path: str, made: Callable[[int], dict[str, Any]]) -> None:
    def seconds(count: int) -> float:
        body = json.dumps(made(count)).encode()
        times = []
        for _ in range(3):
            start = time.process_time()
            DIALECTS[path].read(body)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(16_000) < 120 * seconds(1000)

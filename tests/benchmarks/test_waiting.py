"""The benchmark of waiting in short: what it makes of what it saw."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from benchmarks.waiting import Turn, play, renewed, summed_up
from tests.fakes import FakeModel, LlamaCppFake, qa
from tests.proxying import running_proxy


def turn(seconds: float, saved: int) -> Turn:
    return Turn(seconds=seconds, prompt=100, read=10, action="forwarded", saved=saved)


SEEN = [turn(1.0, 0), turn(2.0, 0), turn(9.0, 500), turn(3.0, 500), turn(6.0, 900)]


def test_a_turn_whose_history_got_shorter_begins_with_a_new_summary() -> None:
    assert renewed(SEEN) == [2, 4]
    assert "median 3.8 times, at most 4.5 times" in summed_up("off", SEEN)
    assert summed_up("on", SEEN[:2]) == "ahead on: no summary was due"


@pytest.mark.parametrize("ahead", ["on", "off"])
def test_a_turn_is_played_through_the_proxy(ahead: str) -> None:
    with (
        LlamaCppFake([FakeModel("m", 2048)], qa()) as fake,
        running_proxy(fake, ahead=ahead) as proxy,
        httpx.Client(base_url=proxy.url, trust_env=False) as client,
    ):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello there."}]
        played, answer = play(client, messages)
    assert answer
    assert played.seconds > 0
    assert (played.action, played.saved) == ("forwarded", 0)
    assert 0 < played.read <= played.prompt

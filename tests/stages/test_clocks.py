"""A clock that is set, by a year in either direction, while requests are served: nobody notices."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.stages.compacting import COOL_DOWN, Compactor
from tests.fakes import FakeModel, LlamaCppFake, qa, summariser
from tests.proxying import running_proxy
from tests.store.support import HandClock

WINDOW = 2048
YEAR = 365 * 86400.0
START = time.monotonic()


class SetClock:
    """Seconds since the epoch, that a test sets."""

    def __init__(self) -> None:
        self.set_by = 0.0

    def __call__(self) -> float:
        return 1_700_000_000.0 + time.monotonic() - START + self.set_by


@pytest.mark.parametrize("kind", ["memory://", "sqlite:///{folder}/spillway.sqlite3"])
@pytest.mark.parametrize("seconds", [YEAR, -YEAR])
def test_a_conversation_goes_on_as_it_was_shortened(kind: str, seconds: float, tmp_path: Path) -> None:
    clock = SetClock()
    fake = LlamaCppFake([FakeModel("m", WINDOW)], summariser(qa()))
    with fake, running_proxy(fake, store=kind.format(folder=tmp_path), clock=clock) as proxy:
        messages: list[dict[str, Any]] = [
            {"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 150}
            for n in range(11)
        ]

        def turn() -> str:
            answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 10})
            assert answer.status_code == 200, answer.text
            messages.append({"role": "assistant", "content": "Noted."})
            messages.append({"role": "user", "content": f"And {len(messages)}?"})
            return answer.headers["x-spillway-action"]

        assert turn() != "forwarded"
        clock.set_by = seconds
        assert [turn(), turn()] == ["forwarded"] * 2
        clock.set_by = 0.0
        assert [turn(), turn()] == ["forwarded"] * 2


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", [YEAR, -YEAR])
async def test_a_history_that_could_not_be_shortened_is_tried_again_after_as_long_as_ever(
    seconds: float,
) -> None:
    clock, tried = HandClock(), 0
    compactor = Compactor(counting=None, store=None, router=None, recaller=None, clock=clock)  # type: ignore[arg-type]

    async def in_vain(*_: Any) -> None:
        nonlocal tried
        tried += 1

    compactor._shorten = in_vain  # type: ignore[assignment,method-assign]
    job: Any = SimpleNamespace(
        scope="s",
        prompt=SimpleNamespace(links=[b"x"], history=[{}], estimate=SimpleNamespace(tokens=100, upper=110)),
        budget=SimpleNamespace(goal=50, limit=90),
        journal=SimpleNamespace(clock=clock.steady),
    )
    assert not await compactor.compact(job)
    clock.jump(seconds)
    assert not await compactor.compact(job)
    assert tried == 1
    clock.advance(COOL_DOWN + 1)
    assert not await compactor.compact(job)
    assert tried == 2

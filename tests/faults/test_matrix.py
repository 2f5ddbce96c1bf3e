"""Each fault at each point, streamed and whole: a whole answer or one clear error, nothing left, and the next request works."""

import asyncio
import time

import pytest

from proxy.backends.refusals import MOST_RETRIES
from tests.fakes import FAKES, wait_until
from tests.faults.chaos import Chaos
from tests.faults.stage import BOUND, Stage, on_stage, planned
from tests.faults.table import RETRY_AFTER, STATUSES, Fault, Point

MENDED = frozenset({Fault.DRIPPING})
"""Faults that cost time and nothing else."""
UNHEARD = frozenset({Point.PROBING, Point.COMPACTING})
"""Where nothing is lost that the answer needs: it must come whole, but for what lasts until the answer itself is due."""
LASTING = frozenset({Fault.REFUSED, Fault.UNLOADED})


@pytest.mark.parametrize("point", Point, ids=str)
@pytest.mark.parametrize("fault", Fault, ids=str)
@pytest.mark.rows(20)
def test_a_fault_is_survived(point: Point, fault: Fault, stream: bool) -> None:
    with on_stage() as stage:
        if point is not Point.PROBING:
            assert stage.ask(Point.BEFORE, stream=stream).kind == "whole"
        stage.fake.plans = planned(point, fault)
        begun = time.monotonic()
        outcome = stage.ask(point, stream=stream)
        assert time.monotonic() - begun < BOUND
        assert stage.fake.struck, "the fault never struck"
        if fault in MENDED or (point in UNHEARD and fault not in LASTING):
            assert outcome.kind == "whole"
        assert stage.settled() == []
        stage.fake.heal()
        assert stage.ask(Point.BEFORE, stream=stream).kind == "whole"
        assert stage.settled() == []
        assert stage.fake.doubled == []


def _listed(stage: Stage) -> bool:
    return stage.proxy.client.get("/v1/models").status_code < 600


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)
@pytest.mark.rows(4)
def test_a_backend_is_known_again_after_a_fault(fault: Fault) -> None:
    """While it is probed anew, and again and again."""
    with on_stage(profile_ttl=0.05) as stage:
        assert stage.ask(Point.BEFORE, stream=False).kind == "whole"
        known = stage.known()
        stage.fake.plans = planned(Point.PROBING, fault)
        times = 1 if fault in LASTING else 4
        wait_until(lambda: _listed(stage) and stage.fake.struck.total() >= times)
        stage.fake.heal()
        wait_until(lambda: stage.ask(Point.BEFORE, stream=False).kind == "whole" and stage.known() == known)


@pytest.mark.parametrize("fault", STATUSES, ids=lambda fault: fault.value)
def test_who_is_busy_is_not_asked_again_and_says_when(fault: Fault, stream: bool) -> None:
    with on_stage() as stage:
        stage.fake.plans = planned(Point.BEFORE, fault)
        response = stage.post(Point.BEFORE, stream=stream)
        assert response.status_code == STATUSES[fault]
        assert response.headers.get("retry-after") == RETRY_AFTER.get(fault)
        assert stage.fake.struck.total() == 1


@pytest.mark.parametrize("fault", STATUSES, ids=lambda fault: fault.value)
def test_who_is_busy_is_asked_twice_for_a_summary_at_most(fault: Fault) -> None:
    with on_stage() as stage:
        stage.fake.plans = planned(Point.COMPACTING, fault)
        assert stage.ask(Point.COMPACTING, stream=True).kind == "whole"
        assert stage.fake.struck.total() <= 2


@pytest.mark.parametrize("fault", STATUSES, ids=lambda fault: fault.value)
@pytest.mark.rows(1)
def test_who_is_busy_is_asked_to_go_on_so_often(fault: Fault) -> None:
    with on_stage() as stage:
        stage.fake.plans = planned(Point.RESUMING, fault)
        assert stage.ask(Point.RESUMING, stream=True).kind == "error"
        assert stage.fake.struck.total() == 1 + MOST_RETRIES


def test_who_is_gone_is_a_clear_error_until_there_is_one_again(stream: bool) -> None:
    """The connection itself is refused, where the faults above strike in one that was taken."""
    with on_stage() as stage:
        assert stage.ask(Point.BEFORE, stream=stream).kind == "whole"
        stage.fake.go_down()
        outcome = stage.ask(Point.BEFORE, stream=stream)
        assert (outcome.kind, outcome.status) == ("error", 502)
        assert stage.settled() == []
        stage.fake.heal()
        assert stage.ask(Point.BEFORE, stream=stream).kind == "whole"


@pytest.mark.slow
@pytest.mark.heavy
def test_a_short_run_of_chaos_finds_nothing() -> None:
    chaos = Chaos(seconds=3, seed=7, clients=6, kinds=list(FAKES), say=print)
    asyncio.run(chaos.run())
    assert chaos.findings == []
    assert chaos.outcomes.total() > 3

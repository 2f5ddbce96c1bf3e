"""The record of a request: what it keeps, and what it only shows to observers."""

from collections.abc import Callable

import pytest
from typing_extensions import override

from proxy.outcome import EVENTS, MOST_EVENTS, Event, Observer, Outcome, Telemetry
from tests.reference import added


class Seen(Observer):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.statuses: list[int] = []

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        self.names.append(event.name)

    @override
    def ended(self, outcome: Outcome) -> None:
        self.statuses.append(outcome.status)


def opened() -> tuple[Outcome, Seen]:
    telemetry, seen = Telemetry(clock=lambda: 1.0), Seen()
    telemetry.observers = (seen,)
    return telemetry.open("r", ()), seen


def test_a_request_ends_once_and_nothing_is_recorded_after_it() -> None:
    outcome, seen = opened()
    outcome.add("paused", reason="pause point")
    outcome.fail(502, "upstream_unavailable")
    outcome.close(0)
    outcome.add("resumed", how="user_turn")
    outcome.close(200)
    assert (seen.names, seen.statuses, outcome.error) == (["paused", "failed"], [502], "upstream_unavailable")


def test_what_holds_prompts_is_shown_and_never_kept() -> None:
    outcome, seen = opened()
    outcome.show("taken", job="secret", request="secret", size=6)
    assert seen.names == ["taken"]
    assert outcome.events == []


@pytest.mark.parametrize("use", [Outcome.add, Outcome.each])
def test_only_events_of_the_table_exist(use: Callable[[Outcome, str], object]) -> None:
    outcome, seen = opened()
    with pytest.raises((KeyError, AssertionError)):
        use(outcome, "pawsed")
    assert seen.names == []


def test_the_table_has_the_events_that_the_code_adds_and_no_others() -> None:
    assert added().keys() == EVENTS.keys()


def test_the_number_of_events_is_bounded() -> None:
    outcome, _ = opened()
    for number in range(MOST_EVENTS + 1):
        outcome.add("sent", number=number)
    assert len(outcome.events) == MOST_EVENTS

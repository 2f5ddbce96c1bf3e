"""The record of a request: what observers see of it, and what it says at its end."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from proxy.addons.log import ahead_line, line
from proxy.outcome import MOST_EVENTS, MOST_REDUCTIONS, Event, Observer, Outcome, Reduced, Telemetry


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Seen(Observer):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.names: list[str] = []
        self.statuses: list[int] = []

    @override
    def started(self, outcome: Outcome) -> None:
        self.ids.append(outcome.id)

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        self.names.append(event.name)

    @override
    def ended(self, outcome: Outcome) -> None:
        self.statuses.append(outcome.status)


def reduced(**changed: Any) -> Reduced:
    fields = {
        "kind": "compacted", "results_cleaned": 3, "messages_before": 9, "messages_after": 4,
        "tokens_before": 900, "tokens_after": 400, "ratio": 0.44, "seconds": 2.0,
    }  # fmt: skip
    return Reduced(**{**fields, **changed})


def test_observers_see_a_request_from_its_beginning_to_its_end_once() -> None:
    telemetry, seen = Telemetry(clock=Clock()), Seen()
    telemetry.observers = (seen,)
    outcome = telemetry.open("r-1", dialect="chat", credential="digest")
    outcome.add("paused", reason="pause point")
    outcome.fail(502, "upstream_unavailable")
    outcome.close(0)
    outcome.add("resumed", how="user_turn")
    outcome.close(200)
    assert (seen.ids, seen.names, seen.statuses) == (["r-1"], ["paused", "failed"], [502])
    assert outcome.error == "upstream_unavailable"
    assert outcome.seconds > 0


def test_an_outcome_says_at_its_end_what_was_recorded() -> None:
    outcome = Telemetry(clock=Clock()).open("r")
    outcome.record_route("local", "m")
    outcome.record_measured(900, 1000, "")
    outcome.add("compacting", tokens=900)
    outcome.add("summarised", verdict="loop", tokens=0)
    outcome.record_compacted(reduced())
    outcome.record_measured(410, 1000, "")
    outcome.add("sent", why="first", stream=False)
    outcome.add("first_byte")
    outcome.add("paused", reason="pause point")
    outcome.add("compacting", tokens=800)
    outcome.record_compacted(reduced(kind="pruned", tokens_before=800, tokens_after=800, seconds=1.0))
    outcome.add("sent", why="user_turn", stream=False)
    outcome.add("resumed", how="user_turn")
    outcome.close(200)
    assert (outcome.tokens_before, outcome.tokens_after, outcome.fill) == (900, 410, 0.41)
    assert (outcome.action, outcome.compactions, outcome.compaction_seconds) == ("compacted", 1, 3.0)
    assert (outcome.attempts, outcome.summaries, outcome.pauses, outcome.resumes) == (2, 1, 1, 1)
    assert not outcome.plain
    assert line(outcome).startswith("r local/m: 200 compacted, 900 to 410 tokens in 3.0 s, 3 tool results cleaned")


def test_an_extract_stays_reported_when_the_history_is_only_pruned_later() -> None:
    outcome = Telemetry(clock=Clock()).open("r")
    for summary, expected in (("extract", "extract"), ("", "extract"), ("written", "written")):
        outcome.record_compacted(reduced(), summary=summary)
        assert (outcome.summary, outcome.extracts) == (expected, 1)


def test_the_newest_compactions_and_the_first_events_are_kept() -> None:
    outcome = Telemetry(clock=Clock()).open("r")
    for number in range(MOST_EVENTS + 1):
        outcome.record_compacted(reduced(messages_after=number))
    assert outcome.compactions == MOST_EVENTS + 1
    assert [each.messages_after for each in outcome.reduced][-1] == MOST_EVENTS
    assert (len(outcome.reduced), len(outcome.events)) == (MOST_REDUCTIONS, MOST_EVENTS)


def test_what_holds_prompts_is_shown_and_never_kept() -> None:
    telemetry, seen = Telemetry(clock=Clock()), Seen()
    telemetry.observers = (seen,)
    outcome = telemetry.open("r")
    outcome.show("taken", job="secret", request="secret", size=6)
    assert seen.names == ["taken"]
    assert outcome.events == []


def test_background_work_is_no_request_and_has_a_line_of_its_own() -> None:
    telemetry = Telemetry(clock=Clock())
    request = telemetry.open("r-1", dialect="chat", credential="digest")
    request.record_route("b", "m")
    outcome = telemetry.background("ahead_1", request)
    outcome.record_measured(900, 1000, "")
    outcome.record_measured(400, 1000, "")
    assert (outcome.cause, outcome.backend, outcome.model, outcome.credential) == (request, "b", "m", "digest")
    assert ahead_line(outcome, "done", 2.0) == "ahead_1 b/m: compacted ahead: done, 900 to 400 tokens in 2.0 s"
    assert ahead_line(outcome, "useless", 0.0) == "ahead_1 b/m: compacted ahead: useless"

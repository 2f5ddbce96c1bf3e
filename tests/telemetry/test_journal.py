from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from proxy.telemetry import events as e
from proxy.telemetry.journal import ALL, Journals
from proxy.telemetry.log import ahead_line, line
from proxy.telemetry.outcome import MOST_TOLD, Outcome


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


EVENTS = st.one_of(*(st.from_type(kind) for kind in get_args(e.Event) if kind not in (e.Finished, e.Failed)))


def test_who_listens_hears_what_he_listens_for_with_the_requests_id() -> None:
    everything: list[tuple[Outcome, e.Event]] = []
    pauses: list[e.Event] = []
    journals = Journals(clock=Clock())
    journals.listen(lambda *told: everything.append(told))
    stop = journals.listen(lambda _, event: pauses.append(event), e.Paused, e.Resumed)
    journal = journals.open("r-1")
    journal.tell(e.Received("chat", "digest"))
    journal.tell(e.Paused("pause point"))
    stop()
    journal.tell(e.Resumed("user_turn"))
    assert pauses == [e.Paused("pause point")]
    assert [type(event) for _, event in everything] == [e.Received, e.Paused, e.Resumed]
    assert {outcome.id for outcome, _ in everything} == {"r-1"}


def test_a_journal_is_closed_once() -> None:
    heard: list[e.Event] = []
    journals = Journals(clock=Clock())
    journals.listen(lambda _, event: heard.append(event), e.Finished, e.Failed)
    journal = journals.open("r")
    journal.failed(502, "upstream_unavailable")
    journal.close(0)
    journal.close(200)
    assert heard == [e.Failed()]
    assert (journal.outcome.status, journal.outcome.error) == (502, "upstream_unavailable")
    assert journal.outcome.seconds > 0


def test_the_outcome_is_what_the_events_say() -> None:
    journal = Journals(clock=Clock()).open("r")
    for event in (
        e.Received("chat", "digest"),
        e.Routed("local", "m"),
        e.Measured(900, 1000),
        e.Compacting(900),
        e.Summarised("loop"),
        e.Summarised("kept"),
        e.Compacted("compacted", 900, 400, 2.0),
        e.Measured(410, 1000),
        e.Sent("first"),
        e.FirstByte(),
        e.Paused("pause point"),
        e.Compacting(800),
        e.Compacted("pruned", 800, 800, 1.0),
        e.Sent("user_turn"),
        e.Resumed("user_turn"),
    ):
        journal.tell(event)
    journal.close(200)
    outcome = journal.outcome
    assert (outcome.tokens_before, outcome.tokens_after, outcome.fill) == (900, 410, 0.41)
    assert (outcome.action, outcome.compactions, outcome.compaction_seconds) == ("compacted", 1, 3.0)
    assert (outcome.attempts, outcome.summaries, outcome.pauses, outcome.resumes) == (2, 2, 1, 1)
    assert not outcome.plain
    assert line(outcome).startswith("r local/m: 200 compacted, 900 to 410 tokens in 3.0 s, 2 summaries")


def test_an_extract_stays_told_when_the_history_is_only_pruned_later() -> None:
    journal = Journals(clock=Clock()).open("r")
    journal.tell(e.Compacted("compacted", 900, 400, 2.0, "extract"))
    journal.tell(e.Compacted("pruned", 900, 400, 2.0))
    assert (journal.outcome.summary, journal.outcome.extracts) == ("extract", 1)
    journal.tell(e.Compacted("compacted", 900, 400, 2.0, "written"))
    assert (journal.outcome.summary, journal.outcome.extracts) == ("written", 1)


@given(st.lists(EVENTS))
def test_any_order_of_events_makes_an_outcome_that_can_be_told(events: list[e.Event]) -> None:
    journal = Journals(clock=Clock()).open("r")
    for event in events:
        journal.tell(event)
    journal.close(200)
    assert line(journal.outcome).startswith("r ")
    assert isinstance(journal.outcome, Outcome)


def test_every_event_can_be_listened_for() -> None:
    assert frozenset(get_args(e.Event)) == ALL


def test_background_work_counts_as_no_request_and_is_told_in_a_line_of_its_own() -> None:
    everything: list[str] = []
    journals = Journals(clock=Clock())
    journals.listen(lambda outcome, _: everything.append(outcome.id))
    asked = Journals(clock=Clock()).open("r-1")
    asked.tell(e.Received("chat", "digest"))
    asked.tell(e.Routed("b", "m"))
    known = dict(vars(asked.outcome))
    journal = journals.aside("ahead_1", asked.outcome)
    journal.tell(e.Measured(900, 1000))
    journal.tell(e.Measured(400, 1000))
    journal.tell(done := e.CompactedAhead("done", 2.0))
    assert everything == ["ahead_1"] * 3
    assert vars(asked.outcome) == known
    outcome = journal.outcome
    assert ahead_line(outcome, done) == "ahead_1 b/m: compacted ahead: done, 900 to 400 tokens in 2.0 s"
    assert ahead_line(outcome, e.CompactedAhead("useless")) == "ahead_1 b/m: compacted ahead: useless"


def test_what_happened_is_kept_as_far_as_somebody_would_show_it_and_nothing_that_was_said() -> None:
    journals = Journals(clock=Clock())
    before = journals.open("r-1")
    journals.keeping = 3
    journal = journals.open("r-2")
    for each in (before, journal):
        each.tell(e.Received("chat", "digest"))
        each.tell(e.Taken("secret", "secret", 6))
        for number in range(5):
            each.tell(e.Measured(number, 1000))
        each.close(200)
    assert before.outcome.story == []
    assert [event for _, event in journal.outcome.story] == [e.Measured(at, 1000) for at in range(3)]
    assert [at for at, _ in journal.outcome.story] == sorted(at for at, _ in journal.outcome.story)


def test_who_listens_to_background_work_hears_all_of_it_and_no_request() -> None:
    journals = Journals(clock=Clock())
    heard: list[tuple[str, type]] = []
    stop = journals.listen_aside(lambda outcome, event: heard.append((outcome.id, type(event))))
    journal = journals.open("r")
    aside = journals.aside("ahead_1", journal.outcome)
    for each in (journal, aside):
        each.tell(e.Compacting(900))
        each.tell(e.Measured(400, 1000))
    stop()
    aside.tell(e.Compacting(900))
    assert heard == [("ahead_1", e.Compacting), ("ahead_1", e.Measured)]


def test_what_each_compaction_came_to_is_kept_of_the_newest() -> None:
    journal = Journals(clock=Clock()).open("r")
    for number in range(MOST_TOLD + 1):
        journal.tell(e.Compacted("pruned", 1000, 250, 0.5, messages=(9, number), cleaned=3))
    journal.tell(e.Compacted("pruned", 800, 800, 1.0))
    outcome = journal.outcome
    assert outcome.compactions == MOST_TOLD + 1
    assert [each.messages_after for each in outcome.reduced] == list(range(1, MOST_TOLD + 1))
    newest = outcome.reduced[-1]
    assert (newest.tokens_before, newest.tokens_after, newest.ratio, newest.results_cleaned) == (
        1000,
        250,
        0.25,
        3,
    )

"""The benchmark of agent sessions in short."""

from __future__ import annotations

from benchmarks.agents_data import Session, sessions
from benchmarks.agents_play import newest_turns, replay


def test_the_sessions_are_long_and_are_asked_for_step_by_step() -> None:
    for session in sessions():
        assert session.messages[0]["role"] == "system"
        assert session.steps > 100


def test_what_fits_is_forwarded_as_it_is() -> None:
    session = sessions()[0]
    short = Session("short", session.messages[:8])
    played = replay(short, 32_768)
    assert (played.steps, played.overflows, played.invalid, played.summaries) == (short.steps, 0, 0, 0)
    assert played.newest == played.of_newest > 0
    assert played.kept == played.shown > 0
    assert (played.reductions, played.vain) == (0, 0)


def test_the_newest_turns_that_fit_lose_the_prefix() -> None:
    session = sessions()[0]
    kept = newest_turns(session, 8192)
    assert kept.steps == session.steps
    assert 0 < kept.kept < 0.8 * kept.shown

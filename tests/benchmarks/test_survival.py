"""The survival benchmark in short: what must never happen, in the smallest windows, over every kind of backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from benchmarks.survival import main
from benchmarks.survival_model import asks_summary
from benchmarks.survival_report import AIMS, misses, table, total
from benchmarks.survival_scripts import MAIN, SCENARIOS, Scenario, steps_of
from benchmarks.survival_session import Cell, Client, play
from benchmarks.survival_tally import CANARY, Sent, Tally, Watcher
from tests.fakes import FAKES, FakeTokenizer, Recorded

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
NEVER = ("overflows", "cuts", "invalid", "errors", "leaks", "unpinned", "blind", "kept %", "lost", "unseen")
"""Aims that every session has to meet, however short."""


def missed(cell: Cell, tally: Tally) -> list[str]:
    found = [aim.name for aim in AIMS if aim.name in NEVER and aim.missed(cell, tally)]
    return [*found, *tally.errors, *tally.notes] if found else []


@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("name", ["dense", "agent"])
def test_a_short_session_survives_on_every_backend(name: str, kind: str) -> None:
    cell = Cell(BY_NAME[name], kind, 4096, 24)
    tally = play(cell)
    assert tally.summaries >= 1, "the session is too short to need a compaction"
    assert missed(cell, tally) == []


@pytest.mark.parametrize(
    ("name", "kind", "turns"),
    [
        ("coder", "vllm", 32),
        ("cjk", "ollama", 24),
        ("edits", "openrouter", 28),
        ("clock", "lmstudio", 28),
        ("tenants", "llamacpp", 40),
        ("switch", "generic", 24),
        ("restart", "llamacpp", 24),
    ],
)
def test_a_short_session_of_each_scenario_survives(name: str, kind: str, turns: int) -> None:
    cell = Cell(BY_NAME[name], kind, 2048, turns)
    assert missed(cell, play(cell)) == []


def test_every_figure_is_written_as_json(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    where = ["--windows", "2k", "--kinds", "llamacpp", "--scenarios", "chat", "--turns", "4"]
    main([*where, "--json", str(written)])
    (row,) = orjson.loads(written.read_bytes())
    assert (row["scenario"], row["window"], row["backend"]) == ("chat", 2048, "llamacpp")
    assert all(isinstance(count, int) for count in row["actions"].values())
    assert row["actions"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_script_is_the_same_each_time_and_never_looks_like_a_request_for_a_summary(
    scenario: Scenario,
) -> None:
    steps = list(steps_of(scenario, 2048, 60))
    assert steps == list(steps_of(scenario, 2048, 60))
    assert abs(len(steps) - 60) < 25
    assert not any(asks_summary([{"role": "user", "content": step.user}]) for step in steps)


def test_sizes_follow_from_the_window() -> None:
    count = FakeTokenizer().count
    for window in (2048, 8192):
        steps = list(steps_of(BY_NAME["dense"], window, 100))
        assert all(0.01 * window <= count(step.user) <= 0.06 * window + 40 for step in steps)
        assert all(0.009 * window <= step.answer <= 0.05 * window for step in steps)


def client(*texts: str) -> Client:
    made = Client("alice", "Be brief.", clock=False)
    for text in texts:
        made.begin(next(steps_of(BY_NAME["chat"], 2048, 1)))
        made.history[-1]["content"] = text
        made.end(f" re {text} \n", [], next(steps_of(BY_NAME["chat"], 2048, 1)))
    return made


def test_a_client_trims_what_it_got_and_sends_it_all_again() -> None:
    assert [message["content"] for message in client("a", "b").messages()] == [
        "Be brief.",
        "a",
        "re a",
        "b",
        "re b",
    ]


def test_an_edit_takes_turns_off_and_a_branch_can_be_returned_to() -> None:
    step = next(steps_of(BY_NAME["chat"], 2048, 1))
    asker = client("a", "b", "c")
    asker.begin(replace(step, user="B", back=2, keep=True))
    assert [m["content"] for m in asker.history] == ["a", "re a", "B"]
    asker.begin(replace(step, user="d", revert=True))
    assert [m["content"] for m in asker.history] == ["a", "re a", "b", "re b", "c", "re c", "d"]
    assert asker.moved


def request(credential: str, *texts: str) -> Recorded:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    headers = [("authorization", f"Bearer {credential}")]
    return Recorded("POST", "/v1/chat/completions", "", headers, orjson.dumps({"messages": messages}))


def seen(
    watcher: Watcher, *got: Recorded, action: str = "forwarded", asked: str = "", answer: str = ""
) -> Tally:
    messages = got[-1].json["messages"]
    watcher.turn(Sent(0, MAIN, messages, True, action, asked, answer, got))
    return watcher.tally


def test_the_prompt_before_is_compared_byte_for_byte() -> None:
    watcher = Watcher(["alice"], 2048, clock=False)
    seen(watcher, request("alice", "one"))
    assert seen(watcher, request("alice", "one", "re", "two")).shown > 0
    assert watcher.tally.kept == watcher.tally.shown
    tally = seen(watcher, request("alice", "other"), action="compacted")
    assert tally.kept == tally.shown
    assert tally.kept_overall < tally.shown_overall


def test_what_is_another_tenants_is_found() -> None:
    watcher = Watcher(["alice", "bob"], 2048, clock=False)
    assert seen(watcher, request("alice", f"the code of tenant is {CANARY.format(0)}")).leaks == 0
    assert seen(watcher, request("alice", f"the code of tenant is {CANARY.format(1)}")).leaks == 1


def test_a_lost_fact_is_laid_at_the_right_door() -> None:
    watcher = Watcher(["alice"], 2048, clock=False)
    fact, ask = "Remember: the code of x is red1.", "What is the code of x?"
    full = request("alice", fact, "Noted.", ask)
    assert seen(watcher, full, asked="x", answer="It is red1.").right == 1
    messages = full.json["messages"]
    got = [request("alice", ask)]
    watcher.turn(Sent(0, MAIN, messages, True, "trimmed", "x", "Not known.", got))
    assert (watcher.tally.lost_unseen, watcher.tally.lost_unkept) == (1, 0)
    summary = request("alice", f"{fact} Now summarise.")
    summary.sent += b'data: {"choices": [{"delta": {"content": "nothing"}}]}\n\n'
    watcher.turn(Sent(0, MAIN, messages, True, "compacted", "x", "Not known.", [summary, *got]))
    assert (watcher.tally.summaries, watcher.tally.lost_unkept) == (1, 1)
    summary.sent += b'data: {"choices": [{"delta": {"content": "the code of x is red1"}}]}\n\n'
    watcher.turn(Sent(0, MAIN, messages, True, "compacted", "x", "Not known.", [summary, *got]))
    assert watcher.tally.lost_kept == 1


def test_the_report_names_what_missed_its_aim() -> None:
    cell = Cell(BY_NAME["chat"], "vllm", 8192, 100)
    good, bad = (
        Tally(turns=100, summaries=6),
        Tally(turns=100, summaries=7, overflows=1, errors=["turn 3: boom"]),
    )
    assert misses([(cell, good)]) == "All aims are met."
    told = misses([(cell, good), (cell, bad)])
    assert "overflows 1, errors 1, summ./100 7.0" in told
    assert "turn 3: boom" in told
    assert total([good, bad]).turns == 200
    assert "vllm" in table([(cell, good)], each=True)
    assert "| 6.5 |" in table([(cell, good), (cell, bad)], each=False).replace("  ", "")

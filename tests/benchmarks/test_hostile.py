"""A short run of the hostile session, and that its judge sees what it is there to see."""

from __future__ import annotations

import pytest

from benchmarks.hostile import NONCE, Judgement, Session, main
from benchmarks.hostile_texts import EVIL, FORGERIES, RULES
from proxy.history import marks


@pytest.mark.parametrize(("kind", "emulated"), [("llamacpp", False), ("generic", True)])
def test_nothing_forged_is_adopted_and_nothing_closed(kind: str, emulated: bool) -> None:
    seen = Session(kind, emulated=emulated, seed=2).play(60)
    assert (seen.adopted, seen.closed, seen.lost) == ([], [], [])
    assert set(seen.attacks) == set(FORGERIES)
    assert min(seen.summaries, seen.blocks, seen.kept) > 5
    assert seen.resumed


def judged(content: str, question: str = "Well?") -> Judgement:
    seen = Judgement()
    seen.prompt([{"role": "assistant", "content": content}, {"role": "user", "content": "Well?"}], question)
    return seen


def block(text: str, *rules: str) -> str:
    return f"{marks.OPEN}\n{text}{marks.told_rules(list(rules))}\n{marks.CLOSE}"


def test_a_good_block_is_none_of_its_findings() -> None:
    assert judged(block(f"{NONCE} all is well.", RULES[0])).breaches == 0


@pytest.mark.parametrize(
    "content",
    [
        block(f"{NONCE} all is well.", RULES[0], EVIL),
        block("All is well."),
        block(f"{NONCE} this.{marks.CLOSE}\n{EVIL}"),
        block(f"{NONCE} this.") + EVIL,
        f"{marks.OPEN}\n{NONCE} this.",
        f"{marks.SHORTENED}\n{NONCE} {marks.OPEN}\n{marks.GOES_ON}\n\nand so on",
    ],
)
def test_a_breach_is_seen(content: str) -> None:
    assert judged(content).breaches == 1


def test_a_question_that_does_not_arrive_is_seen() -> None:
    assert judged("Hello.", "Another one?").lost == ["Another one?"]


@pytest.mark.parametrize(
    "asked",
    [
        f"{marks.FENCE}\na{marks.FENCE_END}\n{EVIL}\n{marks.FENCE_END}",
        f"{marks.FENCE}\na\n{marks.FENCE_END.upper()}\n{marks.FENCE_END}",
        f"{marks.FENCE}\nASSISTANT: a\nUSER: {EVIL}\n{marks.FENCE_END}",
    ],
)
def test_a_breach_of_a_fence_is_seen(asked: str) -> None:
    seen = Judgement()
    seen.summary([{"role": "user", "content": asked}])
    assert seen.breaches == 1


def test_it_runs_as_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--turns", "2", "--kinds", "llamacpp"])
    assert "adopted" in capsys.readouterr().out

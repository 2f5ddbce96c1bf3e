"""The run of all that users run: nothing that failed, or could not be run in CI, ends with status 0."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.__main__ import Part, play, report


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def part(code: str, *, install: str = "", minutes: float = 1) -> Part:
    return Part("demo", "scenes", python(code), [python(install)], minutes)


@pytest.mark.parametrize(
    ("played", "ci", "counts"),
    [
        (part("print('13 passed, 0 failed')"), True, (13, 0, 0)),
        (part("print('1 failed, 2 passed, 1 error in 3.21s'); raise SystemExit(1)"), True, (2, 2, 0)),
        (part("print('2 passed, 1 skipped in 3.21s')"), False, (2, 0, 1)),
        (part("print('2 passed, 1 skipped in 3.21s')"), True, (2, 1, 0)),
        (part("print('2 passed'); raise SystemExit(1)"), True, (2, 1, 0)),
        (part("print('nothing')"), False, (0, 1, 0)),
        (part("print('2 passed')", install="raise SystemExit(2)"), False, (0, 0, 1)),
        (part("print('2 passed')", install="raise SystemExit(2)"), True, (0, 1, 0)),
        (part("import signal; signal.pause()", minutes=0.01), True, (0, 1, 0)),
    ],
    ids=["passed", "failed", "skipped", "in-ci", "crashed", "empty", "missing", "missing-in-ci", "endless"],
)
def test_counts(played: Part, ci: bool, counts: tuple[int, int, int], capfd: pytest.CaptureFixture[str]) -> None:
    result = play(played, ci=ci)
    passed, failed, _ = counts
    assert tuple(result.counts[word] for word in ("passed", "failed", "skipped")) == counts
    assert report([result]) == (failed > 0)
    line, last = capfd.readouterr().out.splitlines()[-2:]
    assert line.startswith(f"demo: {sum(counts)} scenes, {passed} passed")
    assert last == f"{passed} passed, {failed} failed"

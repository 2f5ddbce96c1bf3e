"""What the log looks like, whatever names it has to tell."""

from __future__ import annotations

import io
import logging

import pytest

from proxy.addons.log import line
from proxy.outcome import Outcome
from tests.fakes import LlamaCppFake
from tests.proxying import running_proxy

FORGED = "2026-01-01 00:00:00,000 INFO spillway: all is well"
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028", "\x85", "\x0b", "\x1b[2K\r"])
def test_no_name_of_a_model_forges_a_line(written: io.StringIO, end: str) -> None:
    model = f"m{end}{FORGED}"
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        proxy.chat({"model": model, "messages": [USER], "max_tokens": 5})
        proxy.chat({"model": model, "messages": "junk"})
        proxy.client.post("/v1/embeddings", json={"model": model, "input": "x"})
        fake.stop()
        proxy.chat({"model": model, "messages": [USER], "max_tokens": 5})
    lines = written.getvalue().splitlines()
    assert any(FORGED in line for line in lines)
    assert FORGED not in lines
    assert not any("\x1b" in line for line in lines)


def test_a_traceback_keeps_its_lines(written: io.StringIO) -> None:
    log = logging.getLogger("spillway")
    try:
        int("one\ntwo")
    except ValueError:
        log.exception("failed: %s", "a\nb")
    assert "failed: a\\nb\nTraceback" in written.getvalue()


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, ("1 pause,", "1 summary,", "1 summary rejected", "1 search,", "1 token of the newest message left out")),
        (
            2,
            ("2 pauses,", "2 summaries,", "2 summaries rejected", "2 searches,", "2 tokens of the newest message left"),
        ),
    ],
)
def test_what_is_counted_stands_in_the_right_number(count: int, words: tuple[str, ...]) -> None:
    outcome = Outcome(id="r", clock=lambda: 0.0)
    for name in ("pauses", "summaries", "unfit", "searches", "left_out"):
        setattr(outcome, name, count)
    for each in words:
        assert f" {each}" in line(outcome)

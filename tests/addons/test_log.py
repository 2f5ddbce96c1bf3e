"""What the log looks like, whatever names it has to tell."""

import io
import json
import logging
from datetime import datetime

import pytest

from proxy.addons.log import RequestLog, formatter
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


def test_json_has_the_names_of_the_line() -> None:
    out, log = io.StringIO(), logging.getLogger("spillway.json")
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter("json"))
    log.addHandler(handler)
    log.propagate = False
    log.warning("not a request", extra={"fields": {}})
    log.warning("id=r tokens=7", extra={"fields": {"id": "r\n", "tokens": 7}})
    try:
        int("one")
    except ValueError:
        log.exception("failed")
    plain, request, failed = map(json.loads, out.getvalue().splitlines())
    assert (plain["level"], plain["logger"], plain["message"]) == ("warning", "spillway.json", "not a request")
    assert (request["id"], request["tokens"], "message" in request) == ("r\n", 7, False)
    assert failed["traceback"].startswith("Traceback")
    assert datetime.fromisoformat(failed["time"]).tzinfo is not None


def test_a_line_has_a_name_for_each_value_and_none_without(caplog: pytest.LogCaptureFixture) -> None:
    outcome = Outcome(id="r", clock=lambda: 0.0, dialect="chat", backend="b", model='a "model"')
    outcome.counts["paused"], outcome.status, outcome.error = 2, 502, "upstream_unavailable"
    caplog.set_level("INFO", logger="spillway")
    RequestLog().ended(outcome)
    (told,) = caplog.messages
    assert told.startswith(
        'event=request id=r status=502 error=upstream_unavailable action=passed backend=b model="a \\"model\\""'
    )
    assert " pauses=2 " in told
    assert "resumes" not in told
    assert told.endswith('done="Not sent. Paused twice to compact while answering, not resumed."')

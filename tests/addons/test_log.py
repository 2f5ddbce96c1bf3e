"""What the log looks like, whatever names it has to tell."""

from __future__ import annotations

import io
import logging

import pytest

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


def test_what_is_left_out_is_said_once_for_each_kind(written: io.StringIO) -> None:
    own = {"name": "own", "input_schema": {"type": "object"}}
    tools = [own, {"type": "web_search_20260209", "name": "web_search"}]
    asked = {"model": "fake-model", "max_tokens": 9, "messages": [USER], "tools": tools}
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        for _ in range(2):
            assert proxy.client.post("/v1/messages", json=asked).status_code == 200
        tools = [{"type": "function", "name": "own", "parameters": {}}, {"type": "web_search"}]
        proxy.client.post(
            "/v1/responses", json={"model": "fake-model", "input": "hi", "tools": tools, "max_output_tokens": 16}
        )
    told = [line for line in written.getvalue().splitlines() if "left out" in line]
    assert len(told) == 2
    assert "a client asks for web_search_20260209, which is left out" in told[0]
    assert "a client asks for web_search, which is left out" in told[1]

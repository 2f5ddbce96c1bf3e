"""What holds for every dialect of clients that is registered."""

import json
import re
from typing import Any

import pytest

from proxy.core.dialect import Dialect
from proxy.core.errors import ContextOverflow, Unauthorized
from proxy.core.piece import NOBODY, Piece
from proxy.core.request import Managed
from proxy.dialects import DIALECTS
from proxy.dialects.chat.answers import read_frame
from tests.dialects.streams import every, translated, writer_of

HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"model": "m", "messages": HELLO, "input": HELLO, "max_tokens": 9}


@every
def test_a_question_is_read_alike(dialect: Dialect) -> None:
    body = json.dumps(ASKED).encode()
    assert (dialect.read(body).model, dialect.read(body).messages) == ("m", HELLO)


@every
def test_errors_say_what_is_wrong(dialect: Dialect) -> None:
    overflow = ContextOverflow("Too long for this window.", n_prompt_tokens=900, n_ctx=512)
    assert "Too long for this window." in json.dumps(dialect.refusal(overflow))
    assert "Who are you?" in json.dumps(dialect.refusal(Unauthorized("Who are you?")))
    assert b"slow down" in dialect.refused(b'{"error": {"message": "slow down", "code": 429}}')
    for odd in (b"<html>", b"[]", b"{}"):
        assert dialect.refused(odd) == odd


@translated
def test_backends_comments_and_other_choices_are_no_part_of_an_answer(dialect: Dialect) -> None:
    writer = writer_of(dialect)
    assert writer.relay(read_frame(b": PROCESSING\n\n"), None, role_sent=False) == b""
    other = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    assert b"other" not in writer.relay(read_frame(b"data: %b\n\n" % json.dumps(other).encode()), None, role_sent=True)
    ended = writer.relay(read_frame(b"data: [DONE]\n\n"), None, role_sent=True)
    assert ended
    assert writer.end() == b""
    assert writer.insert(Piece(event={"type": "status"}), NOBODY) == b"", "nothing but a comment comes after the end"


CLAUDE_CODE = re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)")
"""By which version 2.1 knows that it has to compact, and by how much."""


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_prompt_that_is_too_long_is_told_as_each_client_knows_it(streamed: bool) -> None:
    error = ContextOverflow("The context window of m is 900 tokens.", n_prompt_tokens=1200, n_ctx=900)
    told: dict[str, Any] = {}
    body = json.dumps(ASKED).encode()
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"):
        dialect = DIALECTS[path]
        writer = dialect.writer(dialect.read(body), "0", Managed())
        wire = writer.error(error.body()) if streamed else json.dumps(dialect.refusal(error)).encode()
        lines = [line.removeprefix("data: ") for line in wire.decode().split("\n")]
        told[path] = [json.loads(line) for line in lines if line.startswith("{")][-1]
    messages = told["/v1/messages"]
    assert (messages["type"], messages["error"]["type"]) == ("error", "invalid_request_error")
    found = CLAUDE_CODE.match(messages["error"]["message"])
    assert found is not None
    assert found.groups() == ("1200", "900")
    codex = told["/v1/responses"]["response"] if streamed else told["/v1/responses"]
    assert codex["error"]["code"] == "context_length_exceeded"
    assert told["/v1/chat/completions"]["error"]["code"] == "context_length_exceeded"
    assert "context window of m is 900 tokens" in told["/api/chat"]["error"]

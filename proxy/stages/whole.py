"""Answers that are sent whole: passed on as they came, or joined when the window filled up on the way."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import httpx

from proxy.core.jsontext import dumps, loads
from proxy.core.stream.answer import Answer, first_choice
from proxy.core.stream.events import Pause
from proxy.core.stream.session import StreamSession
from proxy.net.headers import response_headers
from proxy.stages.client_stream import Nobody
from proxy.stages.sending import raw_body
from proxy.stages.streaming import StreamDriver
from proxy.stages.turn import Turn


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole response: status, headers for the client, body bytes."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    refused: bool = False
    """Whether it is an error in spite of its status."""


async def answer_whole(turn: Turn, response: httpx.Response, driver: StreamDriver) -> Whole:
    """Read the response; if the window ended it, go on in streams that nobody sees, and join.

    Raises:
        httpx.TransportError: the body broke off.
    """
    try:
        raw = await raw_body(response)
    finally:
        await response.aclose()
    whole = Whole(response.status_code, response_headers(response.headers.raw), raw)
    if response.status_code != 200:
        return whole
    parsed = _parsed(raw, response.headers.get("content-encoding"))
    if parsed is None:
        return whole
    if "error" in parsed and not parsed.get("choices"):
        return replace(whole, refused=True)
    driver.read_again(turn)
    usage = parsed.get("usage")
    if isinstance(usage, dict):
        driver.counting.observe(turn, turn.estimate, usage)
    session = _seeded(turn, parsed, driver)
    if session is None or not session.pause_if_full():
        return whole
    estimates = [turn.estimate]
    await driver.go_on(turn, session, Pause("window full"), Nobody(), estimates)
    joined = dumps(_join(turn, parsed, session.answer))
    headers = [(n, v) for n, v in whole.headers if n not in (b"content-length", b"content-encoding")]
    return Whole(200, [*headers, (b"content-length", str(len(joined)).encode())], joined)


def _seeded(turn: Turn, parsed: dict[str, Any], driver: StreamDriver) -> StreamSession | None:
    """A session that has the first answer behind it; None if that was not cut by its length."""
    choice = first_choice(parsed)
    message = choice.get("message") if choice is not None else None
    if choice is None or not isinstance(message, dict) or choice.get("finish_reason") != "length":
        return None
    answer = driver.answer(turn)
    delta = {name: message.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")}
    answer.add({**parsed, "choices": [{"delta": delta, "finish_reason": "length"}]})
    return driver.session(turn, answer)


def _join(turn: Turn, parsed: dict[str, Any], answer: Answer) -> dict[str, Any]:
    choice = first_choice(parsed)
    assert choice is not None
    message = {**choice["message"], "content": answer.text}
    finish = answer.attempt.finish or "length"
    joined = {**parsed, "choices": [{**choice, "message": message, "finish_reason": finish}]}
    usage = answer.usage() or parsed.get("usage")
    if isinstance(usage, dict):
        own = {"attempts": len(answer.attempts), "action": turn.action}
        joined["usage"] = {**usage, "spillway": own}
    return joined


def _parsed(raw: bytes, encoding: str | None) -> dict[str, Any] | None:
    try:
        if encoding in ("gzip", "deflate"):
            raw = zlib.decompress(raw, wbits=47 if encoding == "gzip" else 15)
        parsed = loads(raw)
    except (ValueError, zlib.error):
        return None
    return parsed if isinstance(parsed, dict) else None

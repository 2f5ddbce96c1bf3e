"""Answers that are sent whole: passed on as they came, or joined when the window filled up on the way."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import httpx

from proxy.answer.answer import REASONING_FIELDS, Answer, first_choice, whole_number
from proxy.answer.events import Pause
from proxy.answer.session import StreamSession
from proxy.net.headers import response_headers
from proxy.net.responses import raw_body
from proxy.stages.client_stream import Nobody
from proxy.stages.emulating import WholeRead, correction_of, ended_in_calls, read_whole
from proxy.stages.job import Job
from proxy.stages.streaming import Run, Stopped, StreamDriver
from proxy.telemetry.events import FirstByte
from proxy.wire import sse
from proxy.wire.jsontext import dumps, loads

_CALLS = ("tool_calls", "function_call")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole response: status, headers for the client, body bytes."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    refused: bool = False
    """Whether it is an error in spite of its status."""


async def answer_whole(job: Job, response: httpx.Response, driver: StreamDriver) -> Whole:
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
    job.journal.tell(FirstByte())
    driver.read_again(job)
    usage = parsed.get("usage")
    if isinstance(usage, dict):
        job.journal.answered(usage)
        driver.counting.observe(job, job.estimate, usage)
    read = None
    if job.offer is not None:
        read = read_whole(job.offer, parsed)
        parsed = ended_in_calls(read) if _cut_after_calls(job, read.parsed) else read.parsed
        whole = _with_body(whole, parsed)
    stopped, session = _stopped(job, parsed, read, driver)
    if read is not None and not isinstance(stopped, Pause):
        for stats in read.stats:
            driver.ledger.add(job, stats)
    if stopped is None or session is None:
        return _noted(job, whole, parsed)
    await driver.go_on(Run.of(job, session, Nobody()), stopped)
    return _with_body(whole, _join(job, parsed, session.answer))


def _cut_after_calls(job: Job, parsed: dict[str, Any]) -> bool:
    """Whether the window, and not the client's bound, ended an answer that has made calls."""
    choice = first_choice(parsed) or {}
    made = any((choice.get("message") or {}).get(name) for name in _CALLS)
    said = whole_number((parsed.get("usage") or {}).get("completion_tokens"))
    bound = job.request.max_tokens
    return made and choice.get("finish_reason") == "length" and (bound is None or said < bound)


def as_stream(whole: Whole) -> bytes | None:
    """A whole answer as a stream that says it in one piece, for a backend that can't stream; None for an error."""
    parsed = _parsed(whole.body, None)
    if whole.status != 200 or parsed is None or not isinstance(parsed.get("choices"), list):
        return None
    head = {name: value for name, value in parsed.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    chunks = []
    for choice in (one for one in parsed["choices"] if isinstance(one, dict)):
        said = dict(choice.get("message") or {})
        if isinstance(said.get("tool_calls"), list):
            said["tool_calls"] = _indexed(said)
        rest = {name: choice.get(name) for name in ("index", "finish_reason")}
        chunks.append({**head, "choices": [{**rest, "delta": said}]})
    return b"".join(map(sse.encode, chunks)) + sse.DONE


def _stopped(
    job: Job, parsed: dict[str, Any], read: WholeRead | None, driver: StreamDriver
) -> tuple[Stopped, StreamSession | None]:
    """Why the answer is not complete yet, and a session that has what there is of it behind it."""
    choice = first_choice(parsed)
    message = choice.get("message") if choice is not None else None
    wrong = read if read is not None and read.malformed else None
    short = choice is not None and choice.get("finish_reason") == "length"
    if not (short or wrong is not None) or not isinstance(message, dict) or job.request.choices > 1:
        return None, None
    answer = driver.answer(job)
    session = driver.session(job, answer)
    said = {name: message.get(name) for name in (*REASONING_FIELDS, "content")}
    if wrong is not None:
        said["content"] = wrong.before
    if wrong is None or short:
        # A tool call in it is half of one, or the last of several: it is left out, and asked for again.
        answer.add({**parsed, "choices": [{"delta": said, "finish_reason": "length"}]})
        if wrong is not None or any(message.get(name) for name in _CALLS):
            answer.attempt.calling = answer.attempt.withheld = True
            answer.attempt.deltas += 1
        return (Pause("window full") if session.pause_if_full() else None), session
    delta = {**said, "tool_calls": _indexed(message), "function_call": message.get("function_call")}
    answer.add({**parsed, "choices": [{"delta": delta, "finish_reason": None}]})
    return correction_of(wrong), session


def _indexed(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a message as a delta has them."""
    return [{**call, "index": index} for index, call in enumerate(message.get("tool_calls") or ())]


def _join(job: Job, parsed: dict[str, Any], answer: Answer) -> dict[str, Any]:
    choice = first_choice(parsed)
    assert choice is not None
    calls = answer.calls.message()
    kept = {name: value for name, value in choice["message"].items() if name not in _CALLS}
    message = {**kept, "content": answer.text or (None if calls else ""), **calls}
    thought = next((name for name in REASONING_FIELDS if message.get(name)), REASONING_FIELDS[0])
    if answer.reasoning:
        message[thought] = answer.reasoning
    finish = answer.attempt.finish or "length"
    choices = [{**choice, "message": message, "finish_reason": finish}]
    return _told(job, {**parsed, "choices": choices, "usage": answer.usage()}, len(answer.attempts))


def _noted(job: Job, whole: Whole, parsed: dict[str, Any]) -> Whole:
    """What was done to the prompt, told in the usage of an answer that is otherwise as it came."""
    if not job.saved or job.request.structured or job.background:
        return whole
    return _with_body(whole, _told(job, parsed, 1))


def _told(job: Job, parsed: dict[str, Any], attempts: int) -> dict[str, Any]:
    usage = parsed.get("usage")
    if not isinstance(usage, dict):
        return parsed
    return {**parsed, "usage": {**usage, "spillway": {**job.told(), "attempts": attempts}}}


def _with_body(whole: Whole, parsed: dict[str, Any]) -> Whole:
    body = dumps(parsed)
    headers = [(n, v) for n, v in whole.headers if n not in (b"content-length", b"content-encoding")]
    return Whole(200, [*headers, (b"content-length", str(len(body)).encode())], body)


def _parsed(raw: bytes, encoding: str | None) -> dict[str, Any] | None:
    try:
        if encoding in ("gzip", "deflate"):
            raw = zlib.decompress(raw, wbits=47 if encoding == "gzip" else 15)
        parsed = loads(raw)
    except (ValueError, zlib.error):
        return None
    return parsed if isinstance(parsed, dict) else None

"""Answers that are sent whole: passed on as they came, or joined when the window filled up on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

import httpx

from proxy.answer.events import Correct, Pause, Search
from proxy.answer.searching import SearchCalls, own
from proxy.dialects import UPSTREAM
from proxy.emulation import EmulatedMessage, complaint, emulated_message
from proxy.errors import UpstreamInvalid, UpstreamUnavailable
from proxy.net.headers import headers_of
from proxy.net.inflate import Undecodable
from proxy.net.responses import ERROR_BYTES, QUOTED, plain_body, plain_error
from proxy.neutral.dialect import WholeAnswer
from proxy.neutral.piece import Identity, Piece, calls_finish
from proxy.neutral.request import text_of
from proxy.stages.client_stream import Audience, Nobody
from proxy.stages.emulating import make_id
from proxy.stages.job import Job
from proxy.stages.judging import mended, once, tell_found
from proxy.stages.passing import failure
from proxy.stages.streaming import Interrupted, Run, StreamDriver
from proxy.wire.jsontext import dumps, loads

_JSON = b"application/json"
_OF_BODY = frozenset({b"content-length", b"content-encoding"})
_OF_KIND = _OF_BODY | {b"content-type"}
"""Headers of one body, and where another one may be of another kind."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole response: status, headers for the client, body bytes."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    pieces: tuple[Piece, ...] = ()
    """What an answer says, choice by choice."""
    usage: dict[str, Any] | None = None

    @property
    def error_status(self) -> int:
        """The status of an error, also of one that came as 200 and names its own; no client takes that for a stream."""
        if self.status >= 400:
            return self.status
        code = self.error()["error"].get("code")
        return code if isinstance(code, int) and 400 <= code < 600 else 502

    def error(self) -> dict[str, Any]:
        """The error that the body holds, or one that quotes it."""
        try:
            parsed = loads(self.body)
        except ValueError:
            parsed = None
        said = parsed.get("error") if isinstance(parsed, dict) else None
        if isinstance(said, dict):
            return {**parsed, "error": said}
        if isinstance(said, str) and said:
            return UpstreamUnavailable(said).body()
        quoted = self.body[:QUOTED].decode("utf-8", "replace")
        return UpstreamUnavailable(f"The backend answered {self.status}: {quoted}").body()


async def answer_whole(job: Job, response: httpx.Response, raw: bytes, driver: StreamDriver) -> Whole:
    """What a response with this body comes to; if the window ended it, go on in streams that nobody sees, and join.

    Raises:
        UpstreamUnavailable: it is no answer, nor an error; or the backend does not continue it.
    """
    whole = Whole(response.status_code, headers_of(response), raw)
    plain = _plain(job, response, raw) if response.status_code == 200 else None
    came = None if plain is None else UPSTREAM.read_body(plain)
    if came is None and plain is not None:
        raise UpstreamUnavailable("The backend answered 200 with a body that can't be read as JSON.")
    if came is None or came.refused:
        return _refused(job, response, whole)
    came = _told_otherwise(job, came)
    job.outcome.record_first_byte()
    made = mended(job, came)
    calls = bool(job.prompt.search) and any(piece.calls for piece in (made or came.pieces)[:1])
    if job.prompt.offer is None and came.finish not in (None, "length") and not calls:
        # Complete as it is, as most answers are.
        job.state.said = lambda: (made or came.pieces)[0]
        _learn(job, came, None, driver)
        return _made(job, whole, came, made, None, driver)
    pieces, read = _read(job, came, came.pieces if made is None else made)
    run = _unfinished(job, pieces, read, driver)
    stopped = None if run is None else _stopped(run, pieces[0], read[0] if read else None)
    if pieces and not isinstance(stopped, Search):
        pieces[0] = SearchCalls(job.prompt.search).less(pieces[0])
    for each in read:
        if isinstance(stopped, Pause):
            each.reader.faults = each.reader.unknown  # the others are left out, and asked for again
        else:
            driver.ledger.add(job, each.reader.stats)
        tell_found(job, each.reader)
    if run is None or stopped is None:
        _learn(job, came, run, driver)
        return _made(job, whole, came, pieces, None, driver)
    await driver.go_on(run, stopped)
    driver.over(run)
    if run.failed is not None:
        raise run.failed
    answer = run.session.answer
    finish = "length" if answer.attempt.searching else answer.attempt.finish or "length"
    said: dict[str, Any] = {"text": answer.text, "thought": answer.reasoning, "calls": answer.calls.whole}
    pieces[0] = replace(pieces[0], finish=finish, bare=True, **said)
    return _made(job, whole, came, pieces, run, driver)


def _read(job: Job, came: WholeAnswer, said: Sequence[Piece]) -> tuple[list[Piece], list[EmulatedMessage]]:
    """The choices of an answer, which `said` this, and what was read in them where calls are written as text."""
    pieces, offer = list(said), job.prompt.offer
    if came.finish is None and pieces:
        pieces[0] = _ended(pieces[0])
    read = [] if offer is None else [emulated_message(piece, offer, make_id) for piece in pieces]
    if read:
        pieces = [once(job, each.piece) for each in read]
        if _cut_after_calls(job, pieces[0]):
            finish = calls_finish(legacy=pieces[0].calls[0].legacy)
            pieces[0] = replace(pieces[0], text=read[0].before, finish=finish)
    return pieces, read


def _told_otherwise(job: Job, came: WholeAnswer) -> WholeAnswer:
    """An answer as it is told in another dialect than the backend's: without the beginning that the client gave it.

    Raises:
        UpstreamInvalid: there is none in it, which would look like one that says nothing.
    """
    if job.native:
        return came
    if not came.pieces:
        raise UpstreamInvalid("The backend answered 200 with JSON that holds no answer.")
    backend, request = job.known_backend, job.asked
    if not request.continues or backend is None or not backend.repeats_begun:
        return came
    begun = text_of(request.messages[-1])
    less = tuple(replace(each, text=each.text.removeprefix(begun)) for each in came.pieces)
    return replace(came, read=lambda: less)


def _learn(job: Job, came: WholeAnswer, run: Run | None, driver: StreamDriver) -> None:
    """What the backend reported of an answer that came in one attempt."""
    driver.counting.named(job, came.model)
    if run is not None:
        driver.over(run)
    elif came.usage is not None:
        job.outcome.usage, job.outcome.delivered = came.usage, True
        driver.counting.observe(job, job.prompt.estimate, came.usage, finish=came.finish)


def as_stream(whole: Whole, to: Audience, *, show_usage: bool) -> bytes | None:
    """A whole answer as a stream that says it, for a backend that can't stream; None for what is none.

    `to` is who gets it: if notices went out before it, it follows under their identity.
    """
    if whole.status != 200 or not whole.pieces:
        return None
    writer, known = to.writer, to.identity
    made_by = known or whole.pieces[0].identity or Identity("", 0, "")
    frames = []
    if known is None and not whole.pieces[0].role:
        frames.append(writer.insert(Piece(role=True), made_by))
    for piece in whole.pieces:
        said = replace(piece.uncounted(), finish=None)
        ended = replace(piece.blank(), finish=piece.finish or "stop")
        frames += [writer.relay(each, known, role_sent=known is not None) for each in (said, ended)]
    if show_usage and whole.usage is not None:
        frames.append(writer.insert(Piece(trailer=True, usage=whole.usage), made_by))
    return b"".join(frames) + writer.end()


def _ended(piece: Piece) -> Piece:
    """A choice that came without a finish reason, with the one that a whole body stands for."""
    if piece.calls:
        return replace(piece, finish=calls_finish(legacy=piece.calls[0].legacy), bare=True)
    return replace(piece, finish="stop", bare=True) if piece.text or piece.thought else piece


def _cut_after_calls(job: Job, piece: Piece) -> bool:
    """Whether the window, and not the client's bound, ended an answer that has made calls."""
    bound = job.prompt.request.max_tokens
    within = bound is None or piece.completion_tokens < bound
    return bool(piece.calls) and piece.finish == "length" and within


def _unfinished(
    job: Job, pieces: Sequence[Piece], read: Sequence[EmulatedMessage], driver: StreamDriver
) -> Run | None:
    """What it takes to go on with an answer that may not be complete; None if it is, as most are."""
    short = bool(pieces) and (
        pieces[0].finish == "length" or bool(own(pieces[0].calls[:1], job.prompt.search))
    )
    whole = not pieces or not (short or (read and read[0].reader.malformed))
    if whole or job.prompt.request.choices > 1:
        return None
    return driver.begin(job, Nobody(job.writer()))


def _stopped(run: Run, piece: Piece, read: EmulatedMessage | None) -> Interrupted:
    """Why the answer is not complete yet; the session then has what there is of it behind it."""
    session, answer = run.session, run.session.answer
    wrong = read if read is not None and read.reader.malformed else None
    short = piece.finish == "length"
    calls = () if short else own(piece.calls[:1], session.watch.search)
    if calls:
        # The client's calls in the same message are left for the model to make once more.
        answer.add(replace(piece, calls=(), finish=None))
        answer.attempt.searching = True
        answer.attempt.dropped += sum(answer.count(call.name + call.arguments) for call in piece.calls)
        session.pause_to_correct([replace(piece.blank(), finish="length")])
        return Search(own(piece.calls, session.watch.search))
    said = piece if wrong is None else replace(piece, text=wrong.before)
    if wrong is None or short:
        # A tool call in it is half of one, or the last of several: it is left out, and asked for again.
        answer.add(replace(said, calls=(), finish="length"))
        if wrong is not None or piece.calls:
            answer.attempt.calling = answer.attempt.withheld = True
            answer.attempt.deltas += 1
        return Pause("window full") if session.pause_if_full() else None
    answer.add(replace(said, finish=None))
    session.pause_to_correct([replace(piece.blank(), text=wrong.instead, finish=piece.finish)])
    malformed = wrong.reader.malformed
    return Correct(wrong.written, complaint(malformed), tuple(call.form for call in malformed))


def _made(
    job: Job,
    whole: Whole,
    came: WholeAnswer,
    pieces: Sequence[Piece] | None,
    run: Run | None,
    driver: StreamDriver,
) -> Whole:
    """The response with what the choices say now (None: what they said); as it came where nothing is changed or told.

    What was done to the prompt is told in the usage.
    """
    usage = came.usage if run is None else run.session.answer.usage()
    told = job.told()
    if usage is None and not job.native and came.pieces:
        usage = _counted(job, came.pieces[0], driver)
    if usage is not None and told is not None:
        usage = {**usage, "spillway": told}
    same = usage is came.usage and (pieces is None or all(map(is_, pieces, came.pieces)))
    if same and job.native and not job.prompt.request.stream:
        filled = job.writer().filled(came)
        return whole if filled is came.body else _with_body(whole, filled)
    made = replace(whole, pieces=came.pieces if pieces is None else tuple(pieces), usage=usage)
    if made.pieces:
        job.state.said = lambda: made.pieces[0]
    if same and job.native:
        return made
    kind = b"" if job.native else _JSON
    return _with_body(made, job.writer().body(came, made.pieces, usage), kind=kind)


def _counted(job: Job, piece: Piece, driver: StreamDriver) -> dict[str, Any]:
    """Usage as it is estimated here, for clients of other dialects, whose answers always have it."""
    said = "".join((piece.thought, piece.text, *(call.name + call.arguments for call in piece.calls)))
    prompt, completion = job.prompt.estimate.tokens, driver.counting.meter.count_text(job.key, said)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _plain(job: Job, response: httpx.Response, raw: bytes) -> bytes | None:
    try:
        return plain_body(response, raw, job.settings.max_body)
    except Undecodable as error:
        wrong = UpstreamInvalid(f"The backend's answer can't be decompressed: {error}.")
        job.outcome.record_failure(failure(wrong))
        raise wrong from None


def _refused(job: Job, response: httpx.Response, whole: Whole) -> Whole:
    """An error as the client is told of it: as it came, if that can be read.

    One that came as 200 is an error of its own status for clients that are told of it in other words than the backend's.
    """
    if whole.status < 400 and not job.native:
        told = job.dialect.refused(dumps(whole.error()))
        return _with_body(replace(whole, status=whole.error_status), told, kind=_JSON)
    plain = plain_error(response, whole.body)
    if (told := job.dialect.refused(plain)) is not plain:
        return _with_body(whole, told)
    if whole.status < 400 or _is_readable(response, whole.body):
        return whole
    # A page of a proxy on the way, or an error that was cut off.
    return _with_body(whole, job.dialect.refused(dumps(whole.error())), kind=_JSON)


def _is_readable(response: httpx.Response, body: bytes) -> bool:
    """Whether a client can take it for JSON; in an encoding that is not known here it may be anything."""
    try:
        plain = plain_body(response, body, ERROR_BYTES)
        return plain is None or loads(plain) is not None
    except ValueError:
        return False


def _with_body(whole: Whole, body: bytes, *, kind: bytes = b"") -> Whole:
    """The same response with another body, of another `kind` if one is given."""
    gone = _OF_KIND if kind else _OF_BODY
    headers = [header for header in whole.headers if header[0] not in gone]
    headers.append((b"content-length", b"%d" % len(body)))
    if kind:
        headers.append((b"content-type", kind))
    return Whole(whole.status, headers, body, whole.pieces, whole.usage)

"""Answers that a backend sends whole: streams of one read, joined again for clients that asked for none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from proxy.attempts.client import Audience, Nobody
from proxy.attempts.driver import Run, StreamDriver
from proxy.attempts.passing import failure
from proxy.core.dialect import Completion
from proxy.core.errors import UpstreamInvalid, UpstreamUnavailable
from proxy.core.jsontext import dumps, loads
from proxy.core.piece import Piece
from proxy.core.request import text_of
from proxy.dialects.chat.reading import as_stream, read_completion
from proxy.job import Job
from proxy.net.headers import headers_of
from proxy.net.inflate import Undecodable
from proxy.net.responses import ERROR_BYTES, QUOTED, plain_body, plain_error

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
    """Make the response for a client that asked for no stream.

    Each choice goes through a session of its own, as a stream that nobody sees.

    Raises:
        UpstreamUnavailable: the body is neither an answer nor an error, or the backend does not continue it.
    """
    came = read_answer(job, response, raw)
    if isinstance(came, Whole):
        return came
    runs: list[Run] = []
    for piece in reversed(came.choices):  # the first one last: its session is the one that is watched
        runs.insert(0, await driver.run(job, as_stream(came, [piece]), Nobody(job.writer())))
        if runs[0].failed is not None:
            raise runs[0].failed
    pieces = [_joined(run, piece) for run, piece in zip(runs, came.choices, strict=True)]
    return _response(job, Whole(response.status_code, headers_of(response), raw), came, pieces, runs[:1])


async def stream_whole(
    job: Job, response: httpx.Response, raw: bytes, driver: StreamDriver, to: Audience
) -> Whole | None:
    """Stream an answer of a backend that can't stream; return the response where it is no answer.

    Raises:
        UpstreamUnavailable: see `answer_whole`.
    """
    came = read_answer(job, response, raw)
    if isinstance(came, Whole):
        return came
    if not came.choices:
        return Whole(response.status_code, headers_of(response), raw)
    await driver.run(job, as_stream(came, came.choices), to)
    return None


def read_answer(job: Job, response: httpx.Response, raw: bytes) -> Completion | Whole:
    """Read a body; of what is no answer, return the response for the client.

    An answer that is told in another dialect than the backend's comes without the beginning that the client gave it.

    Raises:
        UpstreamUnavailable: it is neither an answer nor an error.
        UpstreamInvalid: there is no choice in an answer for another dialect, which would look like one that says nothing.
    """
    plain = _plain(job, response, raw) if response.status_code == 200 else None
    came = None if plain is None else read_completion(plain)
    if came is None and plain is not None:
        raise UpstreamUnavailable("The backend answered 200 with a body that can't be read as JSON.")
    if came is None or came.is_error:
        return _refused(job, response, Whole(response.status_code, headers_of(response), raw))
    job.outcome.add("first_byte")
    if job.native:
        return came
    if not came.choices:
        raise UpstreamInvalid("The backend answered 200 with JSON that holds no answer.")
    backend, request = job.known_backend, job.asked
    if not request.continues or backend is None or not backend.repeats_prefill:
        return came
    begun = text_of(request.messages[-1])
    rest = tuple(replace(each, text=each.text.removeprefix(begun)) for each in came.choices)
    return replace(came, choices=rest)


def _joined(run: Run, came: Piece) -> Piece:
    """Return a choice as its session has it; the same object where nothing was changed."""
    answer = run.session.answer
    said = answer.whole()
    same = (said.text, said.thought, said.calls, said.finish) == (came.text, came.thought, came.calls, came.finish)
    if same or answer.attempt.errored:
        return came
    finish = "length" if answer.attempt.searching else said.finish or "length"
    return replace(came, text=said.text, thought=said.thought, calls=said.calls, finish=finish, bare=True)


def _response(job: Job, whole: Whole, came: Completion, pieces: Sequence[Piece], first: Sequence[Run]) -> Whole:
    """Make the response with what the choices say now; its body stays as it came where nothing is changed or told.

    What was done to the prompt is told in the usage.
    """
    usage, told = came.usage, job.usage_details()
    for run in first:
        answer = run.session.answer
        if len(answer.attempts) > 1 or (usage is None and not job.native):
            usage = answer.usage()
    if usage is not None and told is not None:
        usage = {**usage, "spillway": told}
    body = job.writer().body(came, pieces, usage)
    return whole if body is came.body else _with_body(whole, body, kind=b"" if job.native else _JSON)


def _plain(job: Job, response: httpx.Response, raw: bytes) -> bytes | None:
    try:
        return plain_body(response, raw, job.settings.max_body)
    except Undecodable as error:
        wrong = UpstreamInvalid(f"The backend's answer can't be decompressed: {error}.")
        job.outcome.add("backend_failed", error=failure(wrong))
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
    """Return whether a client can take it for JSON; in an encoding that is not known here it may be anything."""
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
    return Whole(whole.status, headers, body)

"""Replies to clients: an answer as a stream of server-sent events, or in one body.

An answer in one body goes through a session like a stream that the client does not see, and is joined from it. The body
stays byte for byte as it came if nothing was changed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx

from proxy.attempts.attempt import Attempts
from proxy.attempts.calls import CallLedger
from proxy.attempts.client import ClientStream
from proxy.attempts.driver import AnswerDriver
from proxy.conversation_state import ConversationState
from proxy.core.dialect import Completion, Dialect
from proxy.core.errors import FAILED, STREAM_FAILED, ClientError, InternalError, UpstreamInvalid, UpstreamUnavailable
from proxy.core.jsontext import dumps, loads, loads_or_none
from proxy.core.piece import Identity, Piece
from proxy.core.request import text_of
from proxy.dialects.chat.answers import as_stream, completion_of, read_completion
from proxy.dialects.chat.reading import mended
from proxy.job import Job
from proxy.net.headers import AS_JSON, Headers, response_headers
from proxy.net.transport import QUOTED
from proxy.stream.answer import Answer
from proxy.stream.status import FORMS, IN_VAIN, reading

_log = logging.getLogger("spillway.stream")

_NOTHING_USED = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
_OF_BODY = (b"content-length", b"content-encoding")
_OF_JSON = (*_OF_BODY, b"content-type")
_OF_ONE_BODY = (*_OF_JSON, b"cache-control")
"""Headers of an answer in one body that would be wrong once it is turned into a stream."""


@dataclass(frozen=True, slots=True)
class BodyResponse:
    """A response in one body: status, headers for the client, body bytes."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def error_status(self) -> int:
        """Status of the error: the response's own, or for an error sent with 200 the status that it names, else 502."""
        if self.status >= 400:
            return self.status
        code = self.error()["error"].get("code")
        return code if isinstance(code, int) and 400 <= code < 600 else 502

    def error(self) -> dict[str, Any]:
        """Return the error in the body, or one that quotes the body."""
        parsed = mended(loads_or_none(self.body), "message", self.status)
        if parsed is not None and "error" in parsed:
            return parsed
        quoted = self.body[:QUOTED].decode("utf-8", "replace")
        return UpstreamUnavailable(f"The backend answered {self.status}: {quoted}").body()

    def with_body(self, body: bytes, *, json: bool = False) -> "BodyResponse":
        """Return a copy with another body; `json`: set the content type too, because the response may have had another."""
        gone = _OF_JSON if json else _OF_BODY
        headers = [header for header in self.headers if header[0] not in gone]
        headers += [(b"content-length", b"%d" % len(body)), *([AS_JSON] if json else [])]
        return BodyResponse(self.status, headers, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """Opens replies."""

    attempts: Attempts
    state: ConversationState
    clock: Callable[[], float]
    """Seconds since the epoch."""
    grace: float
    """Seconds of silence after which a waiting stream is opened."""
    heartbeat: float
    """Seconds between heartbeats on a silent stream."""
    ledger: CallLedger = field(default_factory=CallLedger)

    @asynccontextmanager
    async def open(self, job: Job) -> "AsyncIterator[ClientReply]":
        """Reply to a job's client. An exception inside ends the stream if it is open already; otherwise it is raised."""
        reply = ClientReply(job, self)
        client = reply.client
        try:
            yield reply
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - an open stream has to end, and it is logged
            exchange = job.exchange
            failed = exchange.take_cancellation() if isinstance(error, asyncio.CancelledError) else error
            if failed is None or exchange.ended or not (client.streams and exchange.started):
                raise (failed or error) from None
            if not isinstance(failed, ClientError):
                _log.error("answer failed: %s", type(failed).__name__, exc_info=failed)
                failed = InternalError(FAILED)
            job.outcome.fail(failed.status, failed.label)
            await client.end_with_error(failed.body())
        finally:
            client.stop()
            if client.signs:
                job.outcome.add("kept_waiting", signs=client.signs)


class ClientReply:
    """The reply to one client."""

    def __init__(self, job: Job, replies: Replies) -> None:
        self._replies = replies
        self._identity = Identity(f"chatcmpl-{job.unique}", int(replies.clock()), job.prompt.request.model)
        """Identity of an answer that did not get one from a backend."""
        streams, requested = job.prompt.request.stream, job.exchange.header(b"x-spillway-status")
        form = next((word for word in (requested or "", *job.settings.status) if word in FORMS), "auto")
        self.client = ClientStream(
            job.exchange,
            job.writer(),
            form="off" if job.undisturbed or not streams else form,
            fallback=self._identity,
            extra_headers=job.outcome.headers,
            grace=replies.grace if streams else None,
            heartbeat=replies.heartbeat,
        )
        """Client's side of the reply, which also gets notices while it waits."""
        self.serve(job)
        if job.request.keeping is not None:
            self.client.keep = partial(replies.state.keep_answer, job.exchange.tenant, job.request)

    def serve(self, job: Job) -> None:
        """Reply with the answer to this job from now on: the same request, be it for another model."""
        self._job, self.client.waiting = job, partial(_waiting_for, job)

    async def write(self, words: str) -> None:
        """Answer with a text of Spillway's own, which may be empty, without a backend."""
        client, writer, identity = self.client, self.client.writer, self._identity
        details = self._job.usage_details() if words else None
        usage = {**_NOTHING_USED, **({} if details is None else {"spillway": details})}
        if client.streams:
            await client.notify(IN_VAIN)
            first = Piece(choice=True, role=bool(words) and client.identity is None, text=words)
            pieces = [first, Piece(choice=True, finish="stop")] if words else [first]
            if words and self._job.prompt.request.wants_usage:
                pieces.append(Piece(usage=usage))
            await client.write(b"".join([writer.insert(piece, identity) for piece in pieces]) + writer.end())
            await client.end()
        else:
            completion = completion_of(words, identity)
            written = writer.body(completion, completion.choices, usage if words else None)
            await self._send(BodyResponse(200, [AS_JSON], written))

    async def relay(self, response: httpx.Response, body: bytes | None) -> None:
        """Reply with a backend's response; `body` is its body, or None if it is a stream still to be read.

        Raises:
            UpstreamUnavailable: the body is neither an answer nor an error, or the backend does not continue it.
        """
        job, client = self._job, self.client
        if body is None and client.streams:
            await self._stream(response, response_headers(response.headers.raw, drop=(b"content-length",)))
            return
        if body is None:  # Spillway asked for a stream to watch, but the client wants one body
            headers = response_headers(response.headers.raw, drop=_OF_ONE_BODY)
            empty = completion_of("", self._identity, finish=None)
            original = BodyResponse(response.status_code, [*headers, AS_JSON], empty.body)
            await self._send(await self._joined(original, empty, response))
            return
        original = BodyResponse(response.status_code, response_headers(response.headers.raw), body)
        completion = read_answer(job, original)
        if completion is None:
            refused = _refused(job.dialect, original)
            await (self._end_with(refused) if client.streams else self._send(refused))
        elif not client.streams:
            await self._send(await self._joined(original, completion))
        elif not completion.choices:
            await self._end_with(original)
        else:
            headers = response_headers(response.headers.raw, drop=_OF_ONE_BODY)
            await self._stream(as_stream(completion, completion.choices), [*client.head, *headers])

    async def _stream(self, received: httpx.Response | Sequence[Piece], head: Headers) -> None:
        """Stream an answer; `head` are the backend's headers, which only clients of its own dialect get."""
        client = self.client
        if client.writer.native:
            client.head = head
        await self._driver().run(received)
        await client.end()

    def _driver(self) -> AnswerDriver:
        return AnswerDriver(self._job, self.client, self._replies.attempts, self._replies.ledger)

    async def _joined(
        self, original: BodyResponse, completion: Completion, stream: httpx.Response | None = None
    ) -> BodyResponse:
        """Make the body for a client that did not ask for a stream; unchanged unless the answer or its usage was changed.

        The first choice goes through a session, or comes in a `stream`; others stay as they are.
        """
        job, pieces, usage = self._job, completion.choices, completion.usage
        if pieces:
            driver = self._driver()
            await driver.run(stream or as_stream(completion, pieces[:1]))
            answer = driver.answer
            if answer.error is not None and (stream is not None or not (job.dialect.native and answer.has_output)):
                failed = original.with_body(dumps({"error": answer.error}), json=True)
                job.outcome.fail(failed.error_status, STREAM_FAILED)
                return _refused(job.dialect, failed)
            pieces = (_changed(answer, pieces[0]), *pieces[1:])
            if stream is not None or len(answer.attempts) > 1 or (usage is None and not job.dialect.native):
                usage = answer.usage()
        details = job.usage_details()
        if usage is not None and details is not None:
            usage = {**usage, "spillway": details}
        written = job.writer().body(completion, pieces, usage)  # a fresh writer: the client's has written a stream
        return original if written is original.body else original.with_body(written, json=not job.dialect.native)

    async def _send(self, reply: BodyResponse) -> None:
        if self.client.keep is not None and reply.status == 200:
            await self.client.keep(loads(reply.body))
        job = self._job
        await job.exchange.reply(reply.status, [*reply.headers, *job.outcome.headers()], reply.body)

    async def _end_with(self, reply: BodyResponse) -> None:
        """Reply with an error response unchanged, or end the stream with its error if that has been opened already."""
        job, client = self._job, self.client
        client.stop()
        if reply.status < 400 and not reply.body:
            raise UpstreamInvalid(f"The backend answered {reply.status} without a body: see its log.")
        job.outcome.fail(reply.error_status, "refused")
        if job.exchange.started:
            await client.end_with_error(reply.error())
        else:
            await self._send(replace(reply, status=reply.error_status))


def read_answer(job: Job, response: BodyResponse) -> Completion | None:
    """Read a body, or return None if it is an error.

    For a dialect other than the backend's, a beginning that the client gave is removed from the answer.

    Raises:
        UpstreamUnavailable: the body is neither an answer nor an error.
        UpstreamInvalid: an answer for another dialect has no choice, and would look like an empty answer.
    """
    if response.status != 200:
        return None
    completion = read_completion(response.body)
    if completion is None:
        raise UpstreamUnavailable(
            "The backend answered 200 with a body that is not JSON: check that its URL is that of an API."
        )
    if completion.is_error:
        return None
    job.outcome.add("first_byte")
    if job.dialect.native:
        return completion
    if not completion.choices:
        raise UpstreamInvalid(
            "The backend answered 200 with JSON that holds no answer: check that its URL is that of a chat API."
        )
    if not job.request.continues or not job.known_backend.repeats_prefill:
        return completion
    prefill = text_of(job.request.messages[-1])
    rest = tuple(replace(each, text=each.text.removeprefix(prefill)) for each in completion.choices)
    return replace(completion, choices=rest)


def _waiting_for(job: Job) -> str:
    return job.progress.waits_for or (reading(job.estimate.tokens) if job.outcome.counts["sent"] else "")


def _changed(answer: Answer, choice: Piece) -> Piece:
    """Return a choice as the session has it; the same object if nothing was changed."""
    joined = answer.joined()
    same = all(getattr(joined, name) == getattr(choice, name) for name in ("text", "thought", "calls", "finish"))
    if same or answer.attempt.errored:
        return choice
    finish = "length" if answer.attempt.searching else joined.finish or "length"
    said = {name: getattr(joined, name) for name in ("text", "thought", "calls", "extras")}
    return replace(choice, **said, finish=finish, bare=True)


def _refused(dialect: Dialect, original: BodyResponse) -> BodyResponse:
    """Return an error as the client gets it: translated to its dialect if need be, or rebuilt if it can't be parsed.

    An error sent with status 200 gets its own status when it is rebuilt. An error that can't be parsed is a proxy's page, or
    was cut off.
    """
    error = original.error()
    if original.status >= 400 and error == loads_or_none(original.body):
        translated = dialect.refused(original.body)
        return original if translated is original.body else original.with_body(translated)
    translated = dialect.refused(dumps(error))
    return replace(original, status=original.error_status).with_body(translated, json=True)

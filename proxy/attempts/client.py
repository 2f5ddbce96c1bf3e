"""The client's side of an answer: opened late, kept alive, and informed of what is going on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from proxy.core.dialect import Writer
from proxy.core.history.turns import is_user
from proxy.core.piece import NOBODY, Identity, Piece
from proxy.exchange import Exchange
from proxy.job import Job
from proxy.net.headers import Headers
from proxy.net.tasks import spawn
from proxy.stream import status
from proxy.stream.session import StreamSession

PROGRESS, LONGEST_PROGRESS = 2.0, 16.0
"""Seconds until the progress of a summary is shown, and between two times that it is shown at most."""
_TOO_MUCH = 0.6
"""Share of the window that system prompt and tools may take before users are warned."""


class ClientStream:
    """Writes server-sent events to one client.

    The response is opened with the first bytes, so that until then a real status code can be sent; or after
    `grace` seconds of silence, with a comment, so that neither the client nor a proxy between gives up.
    """

    def __init__(
        self,
        exchange: Exchange,
        writer: Writer,
        *,
        form: str,
        fallback: Identity,
        extra_headers: Callable[[], Headers],
        grace: float | None,
        heartbeat: float,
    ) -> None:
        """Prepare the stream; nothing is sent yet.

        Args:
            exchange: request and connection of the client.
            writer: writer of the answer, in the client's dialect.
            form: key of the status forms.
            fallback: identity under which notices go out while the backend has not given the answer an identity.
            extra_headers: gives Spillway's own headers when they are due.
            grace: seconds after which a silent response is opened, or None if nothing is streamed to this client.
            heartbeat: seconds between heartbeats on a silent stream.
        """
        self.exchange = exchange
        self.writer = writer
        self.streams = grace is not None
        self.keep: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        """Stores the complete answer, before the client has its end and may ask for more."""
        self.waiting: Callable[[], str] = str
        """Returns the status text of a silent stream, or an empty text if there is nothing to show."""
        self.identity: Identity | None = None
        """Identity of notices sent before the backend gave the answer one, or None if there were none."""
        self.head: Headers = ((b"content-type", writer.media_type.encode()), (b"cache-control", b"no-cache"))
        """Headers of the response: the backend's own, once it has answered in the client's dialect."""
        self._forms = status.FORMS[form]
        self.beside: Sequence[status.Form] = [form for form in self._forms if form in status.BESIDE]
        """Those of `status.BESIDE` that the client gets."""
        self._fallback, self._own_headers = fallback, extra_headers
        self._queued: list[bytes] = []
        """Notices to send when the response opens, written already: what a writer writes depends on what it wrote before."""
        self._open_notice = False
        """Whether the newest notice says that something has begun, and another has to say that it is over."""
        self._opening, self._waiting_for = False, ""
        """Whether the head is being sent, which takes until the client reads; and the waiting status that is shown."""
        self._latest: status.Notice | None = None
        """The newest notice of something that is over: some clients show the last line only."""
        self._session: StreamSession | None = None
        self._heartbeat, self._loop = heartbeat, asyncio.get_running_loop()
        self._beating: asyncio.Task[None] | None = None
        self._last, self.signs = self._loop.time(), 0  # of life
        self._timer = None if grace is None else self._loop.call_later(grace, self._tick)

    async def notify(self, notice: status.Notice) -> None:
        """Show a notice, at the latest when the response opens. One that ends nothing is left out, unless it is the last."""
        if not self._forms or (notice.done is not self._open_notice and not notice.last):
            return
        self._open_notice = not notice.done
        self._latest = notice if notice.done else self._latest
        written = self._begun() + self._written(notice, self._forms)
        if self.exchange.started:
            await self.write(written)
        else:
            self._queued.append(written)

    def _begun(self) -> bytes:
        """Begin the answer under the fallback identity, if notices are chunks of it and none has come."""
        self.identity = self._known_identity()
        if self.identity is not None or all(each is status.comment_form for each in self._forms):
            return b""
        self.identity = self._fallback
        if self._session is not None:
            self._session.adopt(self._fallback)
        return self.writer.insert(Piece(role=True), self._fallback)

    def _known_identity(self) -> Identity | None:
        return self.identity or (self._session.answer.identity if self._session is not None else None)

    def follow(self, session: StreamSession) -> None:
        """Share the answer's identity with the session that writes it."""
        self._session = session
        if self.identity is not None:
            session.adopt(self.identity)

    @asynccontextmanager
    async def progress(self, text: Callable[[], str]) -> AsyncIterator[None]:
        """Show the progress of the code inside, ever more rarely, by a `text` that is empty before there is any."""
        if not self.beside:
            yield
            return
        task = spawn(self._show_progress(text), name="progress")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _show_progress(self, text: Callable[[], str]) -> None:
        pause, shown = PROGRESS, ""
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PROGRESS)
            # Until the response opens there is one notice waiting, which says that it is being compacted.
            if self._open_notice and self.exchange.started and (now := text()) not in ("", shown):
                shown = now
                await self.write(self._written(status.Notice(now, done=False), self.beside))

    def write(self, data: bytes) -> Awaitable[None]:
        """Send bytes of the answer. No coroutine of its own: this runs for every chunk."""
        self._last = self._loop.time()
        if self._beating is not None or not self.exchange.started or (self.keep is not None and self.writer.final):
            return self._write_later(data)
        return self.exchange.write(data)

    async def _write_later(self, data: bytes) -> None:
        """Write after the latest heartbeat and the head, and after a complete answer is stored."""
        await self._beaten()
        if waiting_for := self._waiting_for:
            self._waiting_for = ""
            data = self._written(self._latest or status.Notice(waiting_for), self.beside) + data
        if self.keep is not None and self.writer.final is not None:
            keep, self.keep = self.keep, None
            await keep(self.writer.final)
        await self._open()
        await self.exchange.write(data)

    async def end(self) -> None:
        """End the answer, and a notice that is still open, so that no client shows it as running for ever."""
        await self.notify(status.IN_VAIN)
        self.stop()
        await self._beaten()
        await self._open()
        await self.exchange.end()

    async def end_with_error(self, body: dict[str, Any]) -> None:
        """End the answer with this error, in the client's dialect."""
        await self.notify(status.IN_VAIN)
        await self.write(self.writer.error(body))
        await self.end()

    def stop(self) -> None:
        """Stop the heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _open(self) -> None:
        if self.exchange.started:
            return
        queued, self._queued = self._queued, []
        self._opening = True
        await self.exchange.start(200, [*self.head, *self._own_headers()])
        self._opening = False
        if opening := b"".join(queued):
            await self.exchange.write(opening)

    def _written(self, notice: status.Notice, forms: Iterable[status.Form]) -> bytes:
        identity = self.identity or NOBODY
        pieces = [piece for form in forms for piece in status.pieces_of(notice, form)]
        return b"".join([self.writer.insert(piece, identity) for piece in pieces])

    async def _beaten(self) -> None:
        """Wait for a heartbeat that the client has not read yet: it would come inside a frame, or after the end."""
        if self._beating is not None:
            await asyncio.wait({self._beating})
            self._beating = None

    async def _beat(self) -> None:
        # The answer may have ended, or something else may own the response, since the timer went off.
        if self._timer is not None:
            self._last = self._loop.time()
            self.signs += 1
            patient = not self.exchange.started
            await self._open()
            await self.exchange.write(self._sign_of_life(patient=patient))

    def _sign_of_life(self, *, patient: bool) -> bytes:
        """Write a heartbeat, or once the status of what is waited for; `patient`: it is too early for that."""
        began = self._session is not None and self._session.answer.has_output
        waiting_for = "" if patient or began or self._open_notice or not self.beside else self.waiting()
        if not waiting_for or waiting_for == self._waiting_for:
            return self.writer.heartbeat(self._known_identity(), self._fallback)
        self._waiting_for = waiting_for
        return self._begun() + self._written(status.Notice(waiting_for, done=False), self.beside)

    def _tick(self) -> None:
        due = self._last + self._heartbeat - self._loop.time() if self.exchange.started else 0.0
        # One that waits until the client reads is enough, and the head comes first.
        if due <= 0 and not self._opening and (self._beating is None or self._beating.done()):
            self._beating = spawn(self._beat(), name="heartbeat")
        self._timer = self._loop.call_later(due if due > 0 else self._heartbeat, self._tick)


def final_notices(job: Job) -> list[status.Notice]:
    """Build the notices that are shown beside an answer at its end."""
    outcome, sent, budget = job.outcome, job.outcome.sent, job.budget
    notices = [status.affordable(sent.afforded)] if sent.afforded else []
    if sent.left_out:
        notices.append(status.omitted_from_message(sent.left_out, sent.left_out_of))
    if budget is not None and budget.fixed >= budget.window * _TOO_MUCH and any(outcome.each("compacting")):
        notices.append(status.too_much_fixed(round(100 * budget.fixed / budget.window)))
    # Open WebUI shows the newest line: this one would replace that of a compaction, on each step of a turn.
    if (
        sent.recalled
        and not outcome.shortened.compactions
        and not any(outcome.each("adopted"))
        and is_user(job.prompt.sent[-1])
    ):
        notices.append(status.recalled(sent.recalled))
    return [*notices, status.SILENT_CUT] if any(outcome.each("cut")) else notices

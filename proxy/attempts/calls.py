"""Tool calls of an answer: read from its text, counted, and recorded if faulty; calls of built-in tools are answered.

Records hold reasons, forms and names of tools, but never arguments or anything else from an answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from proxy.addon import AddOns
from proxy.backends.profile import ModelKey
from proxy.compaction.policy import prune_limits
from proxy.core.piece import CallPart, arguments_of
from proxy.core.request import Message
from proxy.emulation.forms import CallFault
from proxy.emulation.offer import Offer, faults_of, offer_of
from proxy.emulation.prompt import calls_as_text
from proxy.emulation.reader import WrittenCallReader
from proxy.job import Job
from proxy.stream.answer import Answer
from proxy.tokens.meter import Meter

MOST_SEARCHES = 4
"""Messages with calls of built-in tools in one answer; the last one only gets the reply that there will be no more."""
SEARCHES_AT_ONCE = 4
"""Calls in one message that are answered."""
NO_MORE = "Nothing more is looked up in this answer. Go on with what is above, or ask the user."
_ROOMY = 0.5
"""Share of recall's room that has to be left for searches, or an earlier recalled block gives way to them."""


class CallLedger:
    """Counts of emulated calls by outcome, per backend, model and form, since the start."""

    def __init__(self) -> None:
        self._counts: dict[ModelKey, dict[str, dict[str, int]]] = defaultdict(dict)

    def count(self, job: Job, form: str, outcome: str, number: int = 1) -> None:
        """Count calls: `called`, `repaired`, `malformed`, `retried` or `lost`."""
        if number:
            counts = self._counts[job.key].setdefault(form, {})
            counts[outcome] = counts.get(outcome, 0) + number
            job.outcome.add("called", form=form, became=outcome, number=number)

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """Return the counts of a model by form, for people."""
        return {form: dict(counts) for form, counts in self._counts.get(key, {}).items()}


class AnswerCalls:
    """Makes the readers of an answer's calls, and records what they find and what the answer ends in, each once."""

    def __init__(self, job: Job, answer: Answer, ledger: CallLedger) -> None:
        self._job = job
        self._answer = answer
        self._ledger = ledger
        self._reader: WrittenCallReader | None = None
        """Reader of the running attempt, until its calls are counted."""
        self._recorded = 0
        """Number of calls recorded so far."""

    def reader(self) -> WrittenCallReader | None:
        """Make the reader for the next attempt, or return None if calls in its text are not read."""
        job, answer, offer = self._job, self._answer, self._job.prompt.offer
        emulated = offer is not None
        if offer is not None:
            # Arguments of built-in tools are checked later, when the calls are answered.
            offer = offer.with_more(dict.fromkeys(job.prompt.builtin))
        # Text is read for calls, but not if the client asked for a format, or for a background task.
        disturbs = job.undisturbed or job.prompt.request.choices != 1
        if offer is None and job.settings.tool_mode != "native" and not disturbs:
            offer = _native_offer(job)
        if offer is not None:
            self._reader = WrittenCallReader(
                offer,
                make_call_id,
                emulated=emulated,
                count=answer.count,
                calls_before=len(answer.calls) if emulated else 0,
                text_before=answer.text,
            )
        return self._reader

    def record(self, *, over: bool = False) -> None:
        """Record what is known so far; calls of several choices only once all have ended (`over`)."""
        job, answer, reader = self._job, self._answer, self._reader
        mended = job.outcome.mended
        leaked, repeated = 0, answer.repeated_calls - mended["repeated"]
        if reader is not None:
            _record_faults(job, reader.faults)
            reader.faults.clear()
            leaked, reader.leaked = reader.leaked, 0
        for what, number in (("leaked", leaked), ("repeated", repeated)):
            if number:
                mended[what] += number
                job.outcome.add("calls_mended", what=what, number=number)
        finish = answer.attempt.finish
        if not finish or (job.prompt.request.choices > 1 and not over):
            return
        calls = answer.calls[self._recorded :]
        self._recorded += len(calls)
        if calls and (offer := _native_offer(job)) is not None:
            _record_faults(job, faults_of(calls, offer, cut=finish == "length"))
        elif reader is not None and not (answer.calls or job.outcome.malformed_calls):
            _record_faults(job, reader.unread(answer.text))

    def attempt_over(self) -> None:
        """Record the calls of an attempt, and count them."""
        self.record()
        if self._reader is None:
            return
        for (form, outcome), number in self._reader.stats.items():
            self._ledger.count(self._job, form, outcome, number)
        self._reader = None


def _native_offer(job: Job) -> Offer | None:
    """Return the tools that the request offers natively, or None if there are none, or they are emulated."""
    if job.prompt.offer is not None or not (job.offers_tools or job.prompt.builtin):
        return None
    offer = offer_of(job.prompt.request.body)
    return None if offer is None else offer.with_more({name: tool.schema for name, tool in job.prompt.builtin.items()})


def _record_faults(job: Job, faults: Iterable[CallFault]) -> None:
    kind = job.known_backend.kind
    for fault in faults:
        if fault.tool in job.prompt.builtin:
            continue  # Spillway's own tool, which clients do not know; the model learns of the fault from the result
        job.outcome.add("malformed_call", reason=fault.reason, tool=fault.tool, form=fault.form, provider=kind)


def make_call_id() -> str:
    """Make the id of a call."""
    return f"call_{uuid4().hex[:24]}"


async def answer_calls(
    job: Job, said: Answer, calls: Sequence[CallPart], meter: Meter, addons: AddOns, *, last: bool
) -> list[Message]:
    """Build the messages of an answer's calls of built-in tools with their results; `last` calls get a refusal instead."""
    most = 0.0 if job.budget is None else prune_limits(job.settings, job.budget.zone).recall

    def room_left() -> float:
        return min(most - sum(meter.costs(job.key, job.prompt.searched)), job.room)

    room = room_left()
    if not last and room < _ROOMY * most and await addons.make_way(job, refused=True):
        room = room_left()  # a passage that the model asks for matters more than one recalled on a guess
    results: list[str] = []
    for number, call in enumerate(calls):
        tool = job.prompt.builtin[call.name]
        none = last or number >= SEARCHES_AT_ONCE
        results.append(NO_MORE if none else await tool.answer(call, room, results))
        room -= meter.count_text(job.key, results[-1])
    ids = [call.id or make_call_id() for call in calls]
    requested = [
        {**call.extras, "id": each, "type": "function", "function": {"name": call.name, "arguments": _valid(call)}}
        for call, each in zip(calls, ids, strict=True)
    ]
    more = said.unplaced_thoughts if job.settings.restore else {}
    messages: list[Message] = [{"role": "assistant", "content": said.unplaced or None, "tool_calls": requested, **more}]
    for each, result in zip(ids, results, strict=True):
        messages.append({"role": "tool", "tool_call_id": each, "content": result})
    return messages if job.prompt.offer is None else calls_as_text(messages)


def _valid(call: CallPart) -> str:
    """Return the arguments unchanged if backends accept them, or else an empty object."""
    return call.arguments if arguments_of(call.arguments) else "{}"

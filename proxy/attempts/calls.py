"""The tool calls of an answer: read back where they stand in its text, counted, and recorded where they are wrong.

What is recorded are reasons, forms and names of tools; never arguments, nor anything else of an answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from proxy.backends.profile import ModelKey
from proxy.emulation import CallFault, Offer, WrittenCallReader, faults_of, offer_of
from proxy.job import Job
from proxy.stream.answer import Answer


class CallLedger:
    """Counts of emulated calls by their fate, per backend, model and form, since the start."""

    def __init__(self) -> None:
        self._counts: dict[ModelKey, dict[str, dict[str, int]]] = defaultdict(dict)

    def count(self, job: Job, form: str, outcome: str, number: int = 1) -> None:
        """Count calls: `called`, `repaired`, `malformed`, `retried` or `lost`."""
        if number:
            counts = self._counts[job.key].setdefault(form, {})
            counts[outcome] = counts.get(outcome, 0) + number
            job.outcome.add("called", form=form, became=outcome, number=number)

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """Counts of a model by form, for people."""
        return {form: dict(counts) for form, counts in self._counts.get(key, {}).items()}


class AnswerCalls:
    """Makes the readers of an answer's calls, and records what they find and what the answer ends in, each once."""

    def __init__(self, job: Job, answer: Answer, ledger: CallLedger) -> None:
        self._job = job
        self._answer = answer
        self._ledger = ledger
        self._readers: list[WrittenCallReader] = []
        """Of attempts whose counts are still to be taken."""
        self._recorded = self._repeated = self._attempts = 0
        """Calls, repeated calls, and attempts that were recorded."""

    def reader(self) -> WrittenCallReader | None:
        """Make the reader of the next attempt; None: it writes no calls as text."""
        job, answer, offer = self._job, self._answer, self._job.prompt.offer
        emulated = offer is not None
        if offer is None and _reads_leaks(job):
            offer = _native_offer(job)
        if offer is None:
            return None
        before, text = len(answer.calls), answer.text
        reader = WrittenCallReader(
            offer,
            make_id,
            emulated=emulated,
            count=answer.count,
            calls_before=before if emulated else 0,
            text_before=text,
        )
        self._readers.append(reader)
        return reader

    def record(self, *, over: bool = False) -> None:
        """Record what is known by now; calls of several choices when all have ended. `over`: nothing more comes."""
        job, answer = self._job, self._answer
        for reader in self._readers:
            _record_faults(job, reader.faults)
            reader.faults.clear()
            leaked, reader.leaked = reader.leaked, 0
            if leaked:
                job.outcome.leaked_calls += leaked
                job.outcome.add("calls_mended", what="leaked", number=leaked)
        repeated = sum(attempt.repeated_calls for attempt in answer.attempts) - self._repeated
        if repeated:
            self._repeated += repeated
            job.outcome.repeated_calls += repeated
            job.outcome.add("calls_mended", what="repeated", number=repeated)
        if not answer.attempt.finish or self._attempts == len(answer.attempts):
            return
        if job.prompt.request.choices > 1 and not over:
            return
        self._attempts = len(answer.attempts)
        calls = answer.calls[self._recorded :]
        self._recorded += len(calls)
        if calls and (offer := _native_offer(job)) is not None:
            _record_faults(job, faults_of(calls, offer, cut=answer.attempt.finish == "length"))

    def attempt_over(self) -> None:
        """Record the calls of an attempt, and count them."""
        self.record()
        while self._readers:
            for (form, outcome), number in self._readers.pop().stats.items():
                self._ledger.count(self._job, form, outcome, number)


def make_id() -> str:
    """The id of a call."""
    return f"call_{uuid4().hex[:24]}"


def _native_offer(job: Job) -> Offer | None:
    """Return what the request offers to a model that has tools of its own; None: nothing, or they are emulated."""
    if job.prompt.offer is not None or not (job.offers_tools or job.prompt.search):
        return None
    return offer_of(job.prompt.request.body)


def _reads_leaks(job: Job) -> bool:
    """Return whether text may be taken for calls; not where the client wants a format, or has a chore done."""
    return job.settings.tool_mode != "native" and not job.undisturbed and job.prompt.request.choices == 1


def _record_faults(job: Job, faults: Iterable[CallFault]) -> None:
    kind = "unknown" if job.known_backend is None else job.known_backend.kind
    for fault in faults:
        if fault.tool and fault.tool == job.prompt.search:
            continue  # Spillway's own: clients know of no such tool, and the model is told by the answer
        job.outcome.add("malformed_call", reason=fault.reason, tool=fault.tool, form=fault.form, provider=kind)

"""The tool calls of an answer: read back where they leaked into its text, left out where they repeat, and told where they are wrong.

What is told are reasons, forms and names of tools; never arguments, nor anything else that was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from proxy.attempts.emulating import make_id
from proxy.emulation import CallFault, Offer, WrittenCallReader, faults_of, offer_of
from proxy.job import Job
from proxy.outcome import MOST_MALFORMED, MalformedCall
from proxy.stream.answer import Answer

_UNKNOWN = "unknown"


@dataclass(slots=True)
class Judged:
    """Progress in recording the calls of an answer."""

    calls: int = 0
    attempts: int = 0
    merged: int = 0


def native_offer(job: Job) -> Offer | None:
    """Return what the request offers to a model that has tools of its own; None: nothing, or they are emulated."""
    if job.prompt.offer is not None or not (job.offers_tools or job.prompt.search):
        return None
    return offer_of(job.prompt.request.body)


def leaks_of(job: Job, offer: Offer | None, *, said: str) -> WrittenCallReader | None:
    """A reader of calls that leak into the text of the next attempt at an answer that `said` this; None where none is wanted."""
    alone = job.prompt.request.choices == 1
    wanted = offer is not None and alone and _reads_leaks(job)
    return WrittenCallReader(offer, make_id, emulated=False, text_before=said) if offer is not None and wanted else None


def _record_found(job: Job, found: WrittenCallReader) -> None:
    """Tell what a reader found since it was asked last."""
    _tell(job, found.faults)
    found.faults = []
    if found.leaked:
        job.outcome.leaked_calls += found.leaked
        job.outcome.add("calls_mended", what="leaked", number=found.leaked)
        found.leaked = 0


def _record_repeats(job: Job, number: int) -> None:
    """Tell that so many calls were left out, because they had been made before."""
    if number:
        job.outcome.repeated_calls += number
        job.outcome.add("calls_mended", what="repeated", number=number)


def judge(
    job: Job, answer: Answer, judged: Judged, readers: Sequence[WrittenCallReader], *, over: bool = False
) -> None:
    """Tell what is known by now of the calls of an answer that streams, each once; those of several choices when all have ended.

    `over`: nothing more comes.
    """
    for reader in readers:
        _record_found(job, reader)
    _record_repeats(job, answer.merged - judged.merged)
    judged.merged = answer.merged
    if not answer.attempt.finish or judged.attempts == len(answer.attempts):
        return
    if not over and answer.attempt.finished < job.prompt.request.choices:
        return
    judged.attempts = len(answer.attempts)
    calls = answer.calls.whole[judged.calls :]
    judged.calls += len(calls)
    if calls and (offer := native_offer(job)) is not None:
        _tell(job, faults_of(calls, offer, cut=answer.attempt.finish == "length"))


def _reads_leaks(job: Job) -> bool:
    """Return whether text may be taken for calls; not where the client wants a format, or has a chore done."""
    return job.settings.tool_mode != "native" and not job.undisturbed


def _tell(job: Job, faults: Iterable[CallFault]) -> None:
    backend = job.known_backend
    kind = _UNKNOWN if backend is None else backend.kind
    for fault in faults:
        if fault.tool and fault.tool == job.prompt.search:
            continue  # Spillway's own: clients know of no such tool, and the model is told by the answer
        call, outcome = MalformedCall(fault.reason, fault.tool, fault.form, kind), job.outcome
        outcome.malformed_calls = (*outcome.malformed_calls, call)[:MOST_MALFORMED]
        outcome.add("malformed_call", **asdict(call))

"""Tools for models that have none: requests in which they become text, and answers in which they are read back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from proxy.answer.answer import first_choice
from proxy.answer.events import ChunkReceived
from proxy.answer.frames import encoded, object_of
from proxy.answer.rewriting import calls_of, content_of, with_content
from proxy.backends.profile import ModelKey, ModelProfile
from proxy.emulation import (
    NO_TOOLS,
    EmulatedStream,
    FormCount,
    Malformed,
    Offer,
    as_text,
    complaint,
    emulated_message,
    offer_of,
)
from proxy.emulation.protocol import call_text
from proxy.history.turns import RESULT_ROLES
from proxy.neutral.request import Message, Request
from proxy.options import Options
from proxy.stages.job import Job
from proxy.telemetry.events import Called
from proxy.wire import sse

_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call")


def offer_to_emulate(
    request: Request, profile: ModelProfile, options: Options, *, now: bool, drops_functions: bool = False
) -> Offer | None:
    """What a request offers to a model that has no tools of its own; None where nothing is to be emulated.

    `now`: the backend has just refused them. `drops_functions`: it does not know their older form. A history of
    calls is rewritten although none is offered any more.
    """
    lacks = profile.tools is not None and not profile.tools.value
    lacks = lacks or (
        drops_functions and bool(request.body.get("functions")) and not request.body.get("tools")
    )
    if not options.emulate_tools or not (lacks or now):
        return None
    offer = offer_of(request.body)
    if offer is None and any(
        message.get("tool_calls") or message.get("function_call") or message["role"] in RESULT_ROLES
        for message in request.messages
    ):
        return NO_TOOLS
    return offer


def emulated(request: Request, offer: Offer, messages: Sequence[Message], *, system: bool) -> Request:
    """The request with its tools, and the calls and results in these messages, as text.

    `system`: the model's template may know the role, so that a system message may be added.
    """
    gone = {name: None for name in _FIELDS if name in request.body}
    return request.changed(messages=as_text(messages, offer, system=system), **gone)


@dataclass(frozen=True, slots=True)
class Correction:
    """A call that can't be made: ask the model once more, or send what it wrote as text."""

    malformed: tuple[Malformed, ...]
    written: str
    complaint: str
    instead: bytes
    """Frames to send when nobody corrects it."""
    ending: bytes = b""
    """Those of them that are the end of the answer, where that ended for its length: no fault of the model's."""


class Reader:
    """Reads the calls in one attempt at an answer."""

    def __init__(
        self, offer: Offer, count: Callable[[str], int], *, calls_before: int = 0, said: str = ""
    ) -> None:
        """`count` counts tokens of a text; `calls_before` calls were made, and `said` was said, by earlier attempts."""
        self._stream = EmulatedStream(offer, _make_id, calls_before=calls_before, said=said)
        self._count = count
        self._measured = (0, 0)

    def read(self, data: bytes) -> ChunkReceived:
        """Bytes of the backend as an event for the session."""
        out = self._stream.feed(data)
        return ChunkReceived(out, unseen=self._unseen())

    def end(self) -> tuple[bytes, Correction | None]:
        """The rest of the attempt; and what would have to be corrected in it."""
        rest, stream = self._stream.close(), self._stream
        if not stream.malformed:
            return rest, None
        written = "\n".join(filter(None, (stream.written_calls, stream.held)))
        calls = tuple(stream.malformed)
        instead = stream.give_up()
        return rest, Correction(calls, written, complaint(calls), instead, _ending(instead))

    def _unseen(self) -> int:
        """Tokens that are held; counted anew when they are half as many again, so that a long call costs its length."""
        size = self._stream.held_size
        if size == 0:
            return 0
        length, tokens = self._measured
        if not length <= size < length * 1.5:
            length, tokens = self._measured = size, max(1, self._count(self._stream.held))
        return max(1, tokens * size // length)

    @property
    def stats(self) -> dict[str, FormCount]:
        """What became of calls, by the form they were written in."""
        return self._stream.stats


@dataclass(frozen=True, slots=True)
class WholeRead:
    """A whole answer whose calls were read.

    `before` and `written` are its text up to a call that can't be made, and from there on; all of it and nothing
    where there is none.
    """

    parsed: dict[str, Any]
    stats: list[dict[str, FormCount]]
    malformed: tuple[Malformed, ...]
    before: str
    written: str


def read_whole(offer: Offer, parsed: dict[str, Any]) -> WholeRead:
    """Read the calls in every choice of a whole answer; the first choice's may be asked for once more."""
    choices: list[Any] = []
    stats: list[dict[str, FormCount]] = []
    wrong: list[tuple[Malformed, ...]] = []
    for choice in parsed.get("choices") or ():
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            return WholeRead(parsed, [], (), "", "")
        made, finish, malformed, counts = emulated_message(
            message, choice.get("finish_reason"), offer, _make_id
        )
        choices.append({**choice, "message": made, "finish_reason": finish})
        stats.append(counts)
        wrong.append(tuple(malformed))
    first = str(choices[0]["message"].get("content") or "") if choices else ""
    text = wrong[0][0].text if wrong and wrong[0] else ""
    at = len(first[: first.find(text)].rstrip()) if text else len(first)
    return WholeRead({**parsed, "choices": choices}, stats, wrong[0] if wrong else (), first[:at], first[at:])


def ended_in_calls(read: WholeRead) -> dict[str, Any]:
    """A whole answer that the window ended after calls were made: they stand, what came after them goes."""
    first, *others = read.parsed["choices"]
    message = {**first["message"], "content": read.before or None}
    finish = "function_call" if message.get("function_call") else "tool_calls"
    return {**read.parsed, "choices": [{**first, "message": message, "finish_reason": finish}, *others]}


def correction_of(read: WholeRead) -> Correction:
    """What has to be corrected in a whole answer."""
    choice = read.parsed["choices"][0]
    made = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    shown = [call_text(function["name"], function["arguments"]) for function in made]
    instead = {"index": 0, "delta": {"content": read.written}, "finish_reason": choice.get("finish_reason")}
    chunk = {name: read.parsed.get(name) for name in ("id", "created", "model")}
    frame = sse.encode({**chunk, "choices": [instead]})
    written = "\n".join(filter(None, (*shown, read.written)))
    return Correction(read.malformed, written, complaint(read.malformed), frame)


def _ending(frames: bytes) -> bytes:
    """The frames after what is said, if the answer ended for its length; nothing otherwise."""
    cut, ending = False, b""
    for frame in sse.frames(frames):
        chunk = object_of(sse.data_of(frame)) or {}
        finish = (first_choice(chunk) or {}).get("finish_reason")
        cut = cut or finish == "length"
        if not content_of(chunk) and not calls_of(chunk):
            ending += frame
        elif finish:
            ending += encoded(with_content(chunk, ""))
    return ending if cut else b""


class CallLedger:
    """What became of emulated calls, per backend and model and form, since the start."""

    def __init__(self) -> None:
        self._counts: dict[ModelKey, dict[str, dict[str, int]]] = defaultdict(dict)

    def add(self, job: Job, stats: dict[str, FormCount]) -> None:
        """Count an attempt."""
        for form, counted in stats.items():
            for outcome, number in asdict(counted).items():
                self.count(job, form, outcome, number)

    def count(self, job: Job, form: str, outcome: str, number: int = 1) -> None:
        """Count calls: `called`, `repaired`, `malformed`, `retried` or `lost`."""
        if not number:
            return
        counts = self._counts[job.key].setdefault(form, {})
        counts[outcome] = counts.get(outcome, 0) + number
        job.journal.tell(Called(form, outcome, number))

    def outcome(self, job: Job, malformed: Iterable[Malformed], *, retried: bool) -> None:
        """What was done about calls that could not be made."""
        for call in malformed:
            self.count(job, call.form, "retried" if retried else "lost")

    def describe(self, key: ModelKey) -> dict[str, Any]:
        """Counts of a model by form, for people."""
        return {form: dict(counts) for form, counts in self._counts.get(key, {}).items()}


def _make_id() -> str:
    return f"call_{uuid4().hex[:24]}"

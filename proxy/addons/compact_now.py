"""Compaction on demand, by a user message `/compact` or by the conversation's id; both may name a focus."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.types import Message as AsgiMessage
from typing_extensions import override

from proxy.addon import AddOn
from proxy.addons.conversation_summary import check_idle
from proxy.addons.history import Conversation
from proxy.compaction.budget import NEXT
from proxy.compaction.summary import focused
from proxy.core.errors import ClientError, NotFound
from proxy.core.request import CompactionRequest, Message, Request, is_text_part, text_of
from proxy.core.settings import Settings
from proxy.dialects.chat import CHAT
from proxy.dialects.chat.answers import read_completion
from proxy.exchange import Exchange
from proxy.job import Job
from proxy.outcome import Outcome, Telemetry
from proxy.pipeline import Pipeline
from proxy.routing import Route

_COMMAND: Final = "/compact"
_LONGEST_FOCUS: Final = 2_000
"""Most characters of a focus; a longer message is not a command."""
_DONE, _IN_VAIN = "Conversation compacted:", "Nothing was compacted:"
"""Marks that recognise one of these answers when the client sends it back in a history."""
_HOW = {
    "written": "A summary by the model replaces what came before, from your next message on.",
    "": "Old tool results and repetitions are cut from your next message on.",
    "extract": "An extract made by code replaces what came before, because the model's summary failed its check.",
}
_DROPPED: Final = frozenset((b"content-encoding", b"content-length", b"x-request-id"))
"""Headers of a request that would be wrong on a new request made from its messages."""


class CompactNow(AddOn):
    """Compacts a conversation when a user asks for it, and answers in the model's place."""

    def __init__(self, telemetry: Telemetry, pipeline: Pipeline) -> None:
        self._telemetry, self._pipeline = telemetry, pipeline

    @override
    def shape(self, request: Request, route: Route, settings: Settings, outcome: Outcome) -> Request:
        """Take commands and their answers out of the history; a command at its end asks for a compaction."""
        history, focus = without_commands(request.messages)
        if focus is not None and request.structured:  # Spillway's own answer would not have the required format
            history, focus = [*history, request.messages[-1]], None
        if focus is not None:
            return _compacting(request, history, focus)
        return request if len(history) == len(request.messages) else request.changed(messages=history)

    @override
    async def before_room(self, job: Job) -> None:
        """Load the model if its window is not known for certain; if it stays unknown, do nothing: the result could not be stored."""
        wanted = job.request.compaction
        if wanted is None or wanted.sealed or job.window_is_known:
            return
        await job.read_profile(load=True)
        if not job.window_is_known:
            job.request = replace(job.request, compaction=replace(wanted, now=False))

    @override
    def answer(self, job: Job) -> str:
        """Say what was done, if a user asked for a compaction."""
        wanted, outcome, after = job.request.compaction, job.outcome, job.prompt.estimate.tokens
        if wanted is None or wanted.sealed:
            return ""
        done = outcome.shortened
        outcome.add("compacted_on_demand", became="compacted" if done.compactions else "useless")
        if not wanted.now:
            return (
                f"⚠️ {_IN_VAIN} the context window of this model is not known. Load the model, or set `window` for it "
                "in SPILLWAY_MODELS."
            )
        if not done.compactions:
            return f"⚠️ {_IN_VAIN} these {after} tokens can't be made fewer."
        before, after = outcome.sent.tokens_before or 0, after - job.prompt.recalled.tokens
        return f"✅ {_DONE} {before} → {after} tokens. {_HOW[done.summary]}"

    async def compact(self, conversation: Conversation, focus: str) -> dict[str, Any]:
        """Compact a conversation as its newest request sent it, with that client's own credentials.

        Raises:
            Conflict: a request of the conversation is being served.
            NotFound: its messages are no longer in memory.
        """
        check_idle(conversation)
        records = reversed(conversation.records)
        record = next((each for each in records if each.bodies.received and not each.background), None)
        if record is None:
            raise NotFound(
                "The messages of this conversation are no longer in memory: send `/compact` as a message in it, or "
                "try again after its next request.",
                code="not_kept",
            )
        received, answer = record.bodies.received, bytearray()

        def read(wire: bytes) -> Request:
            request = CHAT.read(wire) if isinstance(received, bytes) else received
            history, _ = without_commands(request.messages)
            return replace(_compacting(request, history, focus), stream=False, structured=False, keeping=None)

        async def nobody() -> AsgiMessage:
            raise ConnectionError("nothing more is sent")

        async def collect(message: AsgiMessage) -> None:
            answer.extend(message.get("body", b""))

        headers = [header for header in record.bodies.headers if header[0] not in _DROPPED]
        exchange = Exchange({"method": "POST", "path": CHAT.path, "headers": headers}, nobody, collect)
        exchange.tenant, exchange.trusted = record.outcome.credential, True
        outcome = self._telemetry.open(exchange.id, headers, dialect=record.outcome.dialect, credential=exchange.tenant)
        try:
            wire = received if isinstance(received, bytes) else b""
            await self._pipeline.serve(exchange, outcome, replace(CHAT, read=read), wire)
        except ClientError as error:
            outcome.fail(error.status, error.code or error.type)
            raise
        finally:
            outcome.close(exchange.status)
        completion = read_completion(bytes(answer))
        return {
            "compacted": outcome.shortened.compactions > 0,
            "tokens_before": outcome.sent.tokens_before,
            "tokens_after": outcome.sent.tokens_after,
            "summary": outcome.shortened.summary or None,
            "message": completion.choices[0].text if completion is not None else "",
            "request": outcome.id,
        }


def without_commands(messages: Sequence[Message]) -> tuple[Sequence[Message], str | None]:
    """Return the history without commands and Spillway's answers to them, and the focus of a command at its end, or None.

    A command that the model answered stays, with that answer.
    """
    focuses = {at: focus for at, message in enumerate(messages) if (focus := _focus_of(message)) is not None}
    if not focuses:
        return messages, None
    gone: set[int] = set()
    for at in focuses:
        following = messages[at + 1] if at + 1 < len(messages) else {"role": "user"}
        if following.get("role") == "user":
            gone.add(at)
        elif following.get("role") == "assistant" and any(mark in text_of(following) for mark in (_DONE, _IN_VAIN)):
            gone |= {at, at + 1}
    return [message for at, message in enumerate(messages) if at not in gone], focuses.get(len(messages) - 1)


def _compacting(request: Request, history: Sequence[Message], focus: str) -> Request:
    """Return a request to compact a history; after an answer, a placeholder for the user's next message is added."""
    last = history[-1] if history else {}
    following = [{"role": "user", "content": NEXT}] if last.get("role") == "assistant" else []
    wanted = CompactionRequest(instructions=focused(focus), now=True, sealed=False)
    return replace(request.changed(messages=[*history, *following]), compaction=wanted)


def _focus_of(message: Message) -> str | None:
    """Return the focus of a command, which may be empty, or None for any other message.

    A command is the whole message and one line: lines pasted from a log may begin with one.
    """
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and is_text_part(content[0]):
        content = content[0]["text"]
    if message.get("role") != "user" or not isinstance(content, str):
        return None
    text = content.strip()
    command, focus = text[: len(_COMMAND)], text[len(_COMMAND) :]
    if command != _COMMAND or len(focus) > _LONGEST_FOCUS or focus[:1].strip() or not {"\n", "\r"}.isdisjoint(focus):
        return None
    return focus.strip()

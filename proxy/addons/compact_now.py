"""Compaction on demand, by a user message `/compact` or by the conversation's id; both may name a focus."""

from dataclasses import replace
from typing import Any, Final

from starlette.types import Message as AsgiMessage

from proxy.addon import AddOn, Command, MakeRoom
from proxy.addons.conversation_summary import check_idle
from proxy.addons.history import Conversation
from proxy.compaction.summary import focused
from proxy.core.errors import ClientError, NotFound
from proxy.core.request import CompactionRequest, Request
from proxy.dialects.chat import CHAT
from proxy.dialects.chat.answers import read_completion
from proxy.exchange import Exchange
from proxy.job import Job
from proxy.outcome import Telemetry
from proxy.pipeline import Pipeline

_COMMAND: Final = "/compact"
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
        self.commands = {_COMMAND: Command(self._answer, (_DONE, _IN_VAIN))}

    async def _answer(self, job: Job, focus: str, make_room: MakeRoom) -> str:
        """Compact the history as far as it goes, and say what was done."""
        if job.profile.provisional:
            await self._pipeline.preparer.load(job)
        if not job.window_is_known:
            await job.read_profile(load=True)
        outcome = job.outcome
        if known := job.window_is_known:  # or else the result could not be stored
            wanted = CompactionRequest(instructions=focused(focus), now=True, sealed=False)
            job.request = replace(job.request, compaction=wanted)
            await make_room()
        done, after = outcome.shortened, job.estimate.tokens
        outcome.add("compacted_on_demand", became="compacted" if done.compactions else "useless")
        if not known:
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
        record = conversation.received()
        if record is None:
            raise NotFound(
                "The messages of this conversation are no longer in memory: send `/compact` as a message in it, or "
                "try again after its next request.",
                code="not_kept",
            )
        received, answer = record.bodies.received, bytearray()

        def read(wire: bytes) -> Request:
            request = CHAT.read(wire) if isinstance(received, bytes) else received
            return replace(request, command=(_COMMAND, focus), stream=False, structured=False, keeping=None)

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

"""Fields of answers that clients drop, remembered and put back in the conversation's next request (see `proxy.shaping.dropped`).

A record holds the newest answers to one history, and is found by that history's link. So nothing is put back after an edit, for
another credential or for another model. Records are bounded in bytes and time by the store, like checkpoints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from typing_extensions import override

from proxy.addon import AddOn
from proxy.core.jsontext import dumps
from proxy.job import Job
from proxy.net.tasks import spawn
from proxy.outcome import Outcome
from proxy.shaping.dropped import answer_digest, completed, dropped_fields
from proxy.store import Store
from proxy.tokens.cache import Cache, CacheMemory

MOST_ANSWERS = 200
"""Most answers of a conversation that are completed, the newest; records of older ones are deleted."""
_LARGEST = 2**20
"""Most bytes of one answer's fields that are remembered."""
_VERSIONS = 4
"""Most answers remembered for one history: a client may regenerate an answer, and go on with either."""

_Answers: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Dropped fields by digest of the answer."""


class DroppedFields(AddOn):
    """Remembers the fields of answers that clients drop, and completes their messages."""

    def __init__(self, store: Store, memory: CacheMemory) -> None:
        self._store = store
        self._known = Cache[tuple[str, bytes], _Answers](memory)
        """Answers by scope and link of the history before them; empty if the store has none."""

    @override
    async def complete(self, job: Job) -> None:
        """Put back what the client left out of each remembered answer."""
        prompt = job.prompt
        places = [at for at, message in enumerate(prompt.sent) if message.get("role") == "assistant"][-MOST_ANSWERS:]
        if not places or not _applies(job):
            return
        changes = {}
        for at in places:
            message = prompt.sent[at]
            answers = await self._find(job.scope, prompt.links[at - 1] if at else b"")
            if answers and (dropped := answers.get(answer_digest(message))) is not None:
                changes[at] = completed(message, dropped)
        changes = {at: message for at, message in changes.items() if message is not prompt.sent[at]}
        if changes:
            capped = prompt.shown is not prompt.sent
            shown = [changes.get(at, message) for at, message in enumerate(prompt.shown)]
            sent = [changes.get(at, message) for at, message in enumerate(prompt.sent)] if capped else shown
            job.prompt = replace(prompt, sent=sent, shown=shown, as_received=False)
            job.outcome.sent.restored = len(changes)
            job.outcome.add("restored", messages=len(changes))

    @override
    def after_answer(self, job: Job) -> None:
        """Remember the fields of a complete answer that a client may drop."""
        join = job.joined_answer
        if join is None or job.ahead or job.request.continues or not _applies(job):
            return
        answer = join()
        if not (answer.extras or answer.calls or answer.text.lstrip().startswith("<")):
            return
        dropped = dropped_fields(answer)
        size = len(dumps(dropped))
        if not dropped or size > _LARGEST:
            return
        answer_message = {
            "content": answer.text,
            "tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}} for call in answer.calls],
        }
        link = job.prompt.links[-1] if job.prompt.links else b""
        key, digest = (job.scope, link), answer_digest(answer_message)
        earlier = [*(self._known.get(key) or {}).items()]
        answers = dict([*((name, each) for name, each in earlier if name != digest)][1 - _VERSIONS :]) | {
            digest: dropped
        }
        self._known.put(key, answers, len(answers) * size)
        places = [at for at, message in enumerate(job.prompt.sent) if message.get("role") == "assistant"]
        oldest = job.prompt.links[places[-MOST_ANSWERS] - 1] if len(places) >= MOST_ANSWERS else None
        spawn(self._remember(job.scope, link, answers, oldest), name="dropped-fields")

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Delete records of answers in a history of this chain."""
        for link in (b"", *links):
            self._known.remove((scope, link))
            await self._store.drop_document(_owner(scope), link.hex())

    async def _find(self, scope: str, link: bytes) -> _Answers:
        answers = self._known.get((scope, link))
        if answers is None:
            document = await self._store.document(_owner(scope), link.hex())
            found: _Answers = {} if document is None else document["answers"]
            if not self._store.healthy:
                return found
            answers = self._known.put((scope, link), found, len(dumps(found)))
        return answers

    async def _remember(self, scope: str, link: bytes, answers: _Answers, oldest: bytes | None) -> None:
        await self._store.put_document(_owner(scope), link.hex(), {"answers": answers})
        if oldest is not None:
            await self._store.drop_document(_owner(scope), oldest.hex())


def _applies(job: Job) -> bool:
    """Return whether this job's answers are completed: not if tools are emulated as text, nor if the server refuses such fields."""
    return job.settings.restore and job.prompt.offer is None and not job.template_rules.no_extras


def _owner(scope: str) -> str:
    return f"{scope}|answers"

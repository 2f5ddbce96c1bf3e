"""Compactions that clients make themselves: each is served whole, and none twice.

A client that is told a small window may compact again and again, because what it keeps is all that its window holds.
What a model wrote for one is remembered, so that another one that would win nothing costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from proxy.addon import AddOn
from proxy.compaction.extract import extract_of
from proxy.compaction.policy import prune_limits
from proxy.compaction.source import form_of
from proxy.compaction.verification import SummaryReply, checked
from proxy.core.dialect import Completion
from proxy.core.history.client_compaction import SINCE, grown, marks_of, plainly
from proxy.core.jsontext import is_heavy
from proxy.core.request import text_of
from proxy.dialects import CHAT
from proxy.dialects.chat.reading import completion
from proxy.job import Job
from proxy.net.tasks import offload_if, spawn
from proxy.store import Documents
from proxy.tokens.meter import Meter

_NAME = "own compactions"
_REMEMBERED = 8
"""Of one credential and model, the newest."""
_LONGEST = 100_000
"""Characters of one."""
_SHORT = 800
"""Characters in which is told what happened since."""
_GROWN = 8
"""Times that one is told again with what happened since, until it is written anew."""
_UNKNOWN_WINDOW = 8_192


class ClientCompactions(AddOn):
    """Remembers what models wrote for clients' own compactions."""

    def __init__(self, *, documents: Documents, meter: Meter, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since the epoch."""
        self._documents = documents
        self._meter = meter
        self._clock = clock

    @override
    async def answer(self, job: Job) -> Completion | None:
        """Repeat a compaction that was written before, or over which another one would win nothing."""
        if not job.managed.hands_over or not job.prompt.links:
            return None
        entries = await self._entries(job)
        text = next((entry["text"] for entry in entries if entry["of"] == _of(job)), None)
        if text is None and entries:
            text = await offload_if(is_heavy(job.prompt.sent), self._extended, job, entries)
            if text is not None:
                await self._remember(job, text, entries)
        if text is None:
            return None
        job.outcome.action = "repeated"
        job.outcome.add("handed_over")
        return completion(text, CHAT.id_prefix + job.state.unique, job.prompt.request.model, int(self._clock()))

    @override
    def after_answer(self, job: Job) -> None:
        """Remember what a model wrote for one, if it did; the client may have left as soon as it had it."""
        if not job.managed.hands_over:
            return
        answer = None if job.state.joined_answer is None else job.state.joined_answer()
        if answer is None or answer.finish != "stop" or not job.prompt.links:
            return
        if 0 < len(answer.text) <= _LONGEST:
            spawn(self._keep(job, answer.text), name="own-compaction")

    async def _keep(self, job: Job, text: str) -> None:
        if await offload_if(is_heavy(job.prompt.sent), _is_one, job, text):
            await self._remember(job, text, await self._entries(job))

    def _extended(self, job: Job, entries: Sequence[dict[str, str]]) -> str | None:
        """The one that this history goes on from, with what happened since in a few words, if that is little."""
        sent = job.prompt.sent
        brought = [(i, plainly(text_of(m))) for i, m in enumerate(sent) if m.get("role") == "user"]
        for entry in entries:
            begin, end = marks_of(entry["text"])
            at = next((i for i, plain in reversed(brought) if begin in plain and end in plain), None)
            if at is None or not begin or entry["text"].count(SINCE) >= _GROWN:
                continue
            new = list(sent[at + 1 : -1])
            won = sum(self._meter.costs(job.key, new))
            written = sum(self._meter.costs(job.key, [{"role": "assistant", "content": entry["text"]}]))
            window = _UNKNOWN_WINDOW if job.budget is None else job.budget.zone
            if won > max(prune_limits(job.settings, window).minimum_gain, written):
                return None
            since = extract_of(new, limit=_SHORT)
            return grown(entry["text"], since) if since else entry["text"]
        return None

    async def _entries(self, job: Job) -> list[dict[str, str]]:
        """The newest first."""
        found = await self._documents.fetch(job.scope, _NAME) or {}
        entries: list[dict[str, str]] = found.get("entries", [])
        return entries

    async def _remember(self, job: Job, text: str, entries: Sequence[dict[str, str]]) -> None:
        others = [entry for entry in entries if entry["of"] != _of(job)]
        document: dict[str, Any] = {"entries": [{"of": _of(job), "text": text}, *others][:_REMEMBERED]}
        await self._documents.keep(job.scope, _NAME, document)


def _of(job: Job) -> str:
    """The history that is to be compacted, with the words in which that is asked for."""
    return job.prompt.links[-1].hex()


def _is_one(job: Job, text: str) -> bool:
    """Return whether a text is a model's summary, and not its prompt, an earlier answer, or nothing but "Sorry"."""
    *history, request = job.prompt.sent
    if plainly(text) in plainly(text_of(request)):
        return False
    return bool(checked(SummaryReply(text), form_of(history), tokens=_LONGEST).text)

"""Clients' own management of their histories: context editing, and sealed compactions that they send back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from secrets import token_bytes
from typing import Any

from proxy.backends.profile import ModelProfile
from proxy.compaction.budget import ContextBudget
from proxy.compaction.results import edited
from proxy.compaction.summary import foreign, in_words
from proxy.core.history.sealed import KEY_BYTES, is_sealed, opened, seal
from proxy.core.jsontext import HEAVY, is_heavy
from proxy.core.managing import (
    COMPACTION,
    Cleared,
    CompactionRequest,
    Edit,
    SealedCompaction,
    SealedHistory,
    fingerprint,
)
from proxy.core.request import Message, Request, leading_system
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.routing import Route, with_backend_options
from proxy.store import Store
from proxy.tokens.counting import Counting


def requested_goal(job: Job, budget: ContextBudget) -> int | None:
    """Return the prompt tokens to compact to on the client's request; None: it asks for nothing, or not yet."""
    wanted, tokens = job.asked.compaction, job.prompt.estimate.tokens
    if job.managed.hands_over and job.is_due:
        # As much as may be is read as it is, and room is left for a long answer.
        return int(budget.zone * (budget.target + budget.trigger) / 2)
    if wanted is None:
        return None
    if wanted.now:
        return min(budget.goal, int(tokens * budget.target))
    if wanted.trigger is None or tokens < wanted.trigger:
        return None
    return min(budget.goal, int(wanted.trigger * budget.target))


class ClientHistories:
    """Edits client histories as asked; hands out sealed compactions, and restores the history behind one."""

    def __init__(self, *, sealer: Sealer, counting: Counting) -> None:
        self._sealer = sealer
        self._counting = counting

    async def restore(self, tenant: str, item: SealedCompaction | None) -> Sequence[Message]:
        """Open a compaction into the messages it replaces; only its words, if it is none of this tenant's."""
        if item is None:
            return ()
        under = SealedHistory.read(await self._sealer.open(tenant, COMPACTION, item.seal))
        if under is not None:
            return under.messages
        return foreign(item.words) if item.words else ()

    async def attach_compaction(self, job: Job, words: str = "") -> None:
        """Attach the current history to the answer as a sealed compaction, with these words or those of its summary."""
        history, wanted, sent = list(job.prompt.history), job.asked.compaction, job.asked.messages
        carried = wanted or CompactionRequest()
        lead = leading_system(sent)
        fingerprints = (fingerprint(message) for message in sent if message.get("role") == "user")
        under = SealedHistory(
            messages=history,
            lead=sent[lead - carried.lead : lead],
            fingerprints=list(dict.fromkeys([*carried.fingerprints, *fingerprints])),
        )
        seal = await self._sealer.seal(job.exchange.tenant, COMPACTION, under.written())
        job.managed.sealed_compaction = SealedCompaction(seal, words or in_words(history))

    async def edit(
        self, job: Job, request: Request, system: Sequence[Message], sent: Sequence[Message]
    ) -> Sequence[Message]:
        """Apply the client's context edits to its history; the number of messages stays the same."""
        if not request.edits:
            return sent
        body = {**request.body, "messages": [*system, *sent]}
        done, job.managed.cleared = await self._edited(job.route, job.profile, body, request.edits, sent)
        return done if job.managed.cleared else sent

    async def body_to_count(self, tenant: str, request: Request, route: Route) -> tuple[dict[str, Any], bool]:
        """Build the body to count for a request: with the client's own edits, without Spillway's changes.

        The second value is whether the edits left anything out.
        """
        request = await with_backend_options(request, route)
        lead = leading_system(request.messages)
        system, sent = request.messages[:lead], request.messages[lead:]
        sent = [*await self.restore(tenant, request.sealed_compaction), *sent]
        body = {**request.body, "messages": [*system, *sent]}
        if not request.edits:
            return body, False
        profile = await route.profile(request.body)
        done, cleared = await self._edited(route, profile, body, request.edits, sent)
        return {**body, "messages": [*system, *done]}, bool(cleared)

    async def _edited(
        self, route: Route, profile: ModelProfile, body: dict[str, Any], edits: Sequence[Edit], sent: Sequence[Message]
    ) -> tuple[Sequence[Message], list[Cleared]]:
        """Apply edits after measuring the prompt: what is left out depends on its size."""
        tokens = (await self._counting.measure(route, profile, body)).tokens
        meter, key = self._counting.meter, route.key
        heavy = is_heavy(list(sent))
        return await offload_if(heavy, partial(edited, sent, edits, tokens=tokens, cost=lambda m: meter.costs(key, m)))


_NAME = "sealing"


class Sealer:
    """Seals values, and opens what it, or a replica, has sealed.

    While the store has no key to tell, one of this process alone is used. It becomes the store's if that has none; else
    what was sealed with it opens until the process ends.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = [token_bytes(KEY_BYTES)]
        """The one to seal with first."""
        self._shared = False

    async def seal(self, owner: str, purpose: str, value: Any) -> str:
        """A JSON value that only this owner gets opened, for this purpose: see `proxy.core.history.sealed`.

        Raises:
            TypeError, ValueError: it is not JSON.
        """
        keys = await self._known()
        return await offload_if(is_heavy(value), seal, keys[0], owner, purpose, value)

    async def open(self, owner: str, purpose: str, text: Any) -> Any:
        """The value under a seal; None for what was sealed by somebody else, for another, or for something else."""
        if not is_sealed(text):
            return None
        keys = await self._known()
        return await offload_if(len(text) > HEAVY, opened, keys, owner, purpose, text)

    async def _known(self) -> list[bytes]:
        if not self._shared and (key := await self._store.value(_NAME, self._keys[0], once=True)) is not None:
            self._shared = True
            self._keys = [key, *(known for known in self._keys if known != key)]
        return self._keys

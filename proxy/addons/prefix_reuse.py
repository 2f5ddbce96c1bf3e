"""Length of the prefix that a prompt shares with the one before it in the conversation, and of what the backend reused of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from typing_extensions import override

from proxy.addon import AddOn
from proxy.job import Job
from proxy.tokens.meter import Estimate, Meter

CONVERSATIONS = 1024
"""That are remembered, by what was sent last; the least recently used go first."""
_MOST_MESSAGES = 2000
"""Messages of a prompt from which it is not remembered."""


class PrefixReuse(AddOn):
    """Tells of every prompt how it goes on from the one before. For one thread."""

    def __init__(self, meter: Meter, *, limit: int = CONVERSATIONS) -> None:
        self._meter = meter
        self._limit = limit
        self._known: OrderedDict[tuple[str, str, bytes], Estimate] = OrderedDict()

    @override
    def before_sending(self, job: Job, *, again: bool) -> None:
        """Compare a prompt with the one before it in the conversation, and remember it."""
        links, now = job.prompt.links, job.prompt.estimate
        if not links:
            return
        # Two conversations may begin alike, with what an agent tells of its surroundings.
        key = (job.scope, job.outcome.conversation, links[0])
        before = self._known.get(key)
        if not again:
            tokens, why = (0, "first") if before is None else self._compared(job, before, now)
            job.outcome.record_repeated(tokens, now.tokens, why)
        if len(now.digests) <= _MOST_MESSAGES:
            self._known[key] = now
            self._known.move_to_end(key)
            if before is None and len(self._known) > self._limit:
                self._known.popitem(last=False)

    def _compared(self, job: Job, before: Estimate, now: Estimate) -> tuple[int, str]:
        """Tokens that are the same, and why no more are; no reason: all of the prompt before are."""
        if before.scope != now.scope:
            return 0, "tools"
        if before.system_digest != now.system_digest:
            return 0, "system"
        known, digests = before.digests, now.digests
        # Behind a link that differs all do.
        if not known or (len(known) <= len(digests) and known[-1] == digests[len(known) - 1]):
            return min(before.tokens, now.tokens), ""
        prompt, common = job.prompt, _common(known, digests)
        costs = self._meter.costs(job.key, prompt.messages)
        same = now.tokens - sum(costs[len(prompt.system) + common :])
        return max(0, round(same)), "edited" if prompt.checkpoint is None else "shortened"


def _common(before: Sequence[bytes], now: Sequence[bytes]) -> int:
    """Count the leading links that two chains share."""
    return bisect_left(range(min(len(before), len(now))), True, key=lambda at: before[at] != now[at])

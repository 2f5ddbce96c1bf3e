"""A notice, once a conversation, that what no compaction can shorten is the problem: system prompt and tools."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from proxy.addon import AddOn
from proxy.job import Job
from proxy.stream.status import Notice

TOO_MUCH = 0.6
"""Share of the window that system prompt and tools may take before users are told."""
MOST_WARNED = 4096
"""Conversations of which it is known that they were."""


class FixedPart(AddOn):
    """Tells users whose conversation had to be compacted."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, bytes], None] = {}

    @override
    def notices(self, job: Job) -> Sequence[Notice]:
        """Tell the percentage of the window, if it is too much and was not told yet."""
        budget = job.budget
        if budget is None or budget.fixed < budget.window * TOO_MUCH or not job.prompt.links:
            return ()
        conversation = job.scope, job.prompt.links[0]
        if conversation in self._told or not any(job.outcome.each("compacting")):
            return ()
        self._told[conversation] = None
        while len(self._told) > MOST_WARNED:
            del self._told[next(iter(self._told))]
        return [Notice(done=True, fixed=round(100 * budget.fixed / budget.window))]

"""Telling users, once a conversation, that what no compaction can shorten is the problem."""

from __future__ import annotations

from proxy.stages.job import Job

TOO_MUCH = 0.6
"""Share of the window that system prompt and tools may take before users are told."""
MOST_TOLD = 4096
"""Conversations of which it is known that they were."""


class FixedPart:
    """Who was told."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, bytes], None] = {}

    def to_tell(self, job: Job) -> int:
        """Percent of the window that system prompt and tools take, if that is too much and was not told yet; else 0."""
        budget = job.budget
        if budget is None or budget.fixed < budget.window * TOO_MUCH or not job.prompt.links:
            return 0
        conversation = job.scope, job.prompt.links[0]
        known = conversation in self._told
        self._told[conversation] = None
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        return 0 if known else round(100 * budget.fixed / budget.window)

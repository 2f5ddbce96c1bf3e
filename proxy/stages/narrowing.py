"""Tools that a session does not use say less of themselves where tools take too much of the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.emulation import Offer
from proxy.history.checkpoint import Checkpoint
from proxy.neutral.request import Message, Request
from proxy.shaping.shape import narrowed
from proxy.stages.job import Job


def narrowing(
    job: Job, request: Request, offer: Offer | None, sent: Sequence[Message], checkpoint: Checkpoint | None
) -> dict[str, Any]:
    """Options with fewer words, for a history of which the beginning is covered; none where nothing is to be gained.

    What was called is looked up in the covered part alone: so the tools change only where the prompt does anyway.
    """
    window = job.profile.window
    if checkpoint is None or offer is not None or window is None:
        return {}
    return narrowed(request, sent[: checkpoint.covered], job.settings, window.value)

"""Checkpoints: stored prefix rewrites, and the chain of digests that finds them again.

A checkpoint says "a history that begins with these k messages may begin with these others instead".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from proxy.core.history.marks import is_extract, is_summary

By: TypeAlias = Literal["written", "extract"]
"""Author of a summary: a model, or code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A prefix rewrite.

    `scope` names who may see it and where it holds (credential, backend, model; opaque here);
    `digest` is the chain digest of the covered prefix, 16 bytes; `covered` counts the messages after the
    leading system messages that it covers; `replacement` are the messages that stand for them (parsed
    JSON). Token figures are estimates at the time of making. `kind` is `pruned`, `compacted` or `trimmed`.
    `window` is the context window in tokens that it was made for; 0: not recorded, by an earlier version.
    """

    scope: str
    digest: bytes
    covered: int
    replacement: tuple[dict[str, Any], ...]
    tokens_before: int
    tokens_after: int
    kind: str
    created: float
    """Seconds since the epoch, from the clock of whoever made it."""
    window: int = 0

    @property
    def by(self) -> By | None:
        """Author of the summary in it; None: there is no summary."""
        if not any(map(is_summary, self.replacement)):
            return None
        return "extract" if any(map(is_extract, self.replacement)) else "written"

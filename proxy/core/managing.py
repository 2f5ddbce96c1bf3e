"""Client-requested history management: context edits, compactions, and their results.

Contracts: Anthropic's context editing and compaction (PyPI `anthropic` 2.12.0, `types/beta/`), OpenAI's compaction
(PyPI `openai` 3.54.0, `types/responses/`). Figures are prompt tokens unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from proxy.core.jsontext import dumps

COMPACTION = "compaction"
"""Purpose under which histories are sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearResults:
    """Leave out old tool results, once the prompt has more than so many tokens, or the history more than so many results."""

    over_tokens: int | None = None
    over_results: int | None = None
    keep: int = 3
    """The newest ones, which stay."""
    at_least: int = 0
    """Tokens to be won; nothing is left out for less."""
    spared: frozenset[str] = frozenset()
    """Tools whose results stay."""
    arguments: frozenset[str] | bool = False
    """Tools whose calls lose their arguments too; True: all."""


@dataclass(frozen=True, slots=True)
class ClearThoughts:
    """Leave out what the model thought, but for that of the newest `keep` turns in which it did."""

    keep: int


Edit: TypeAlias = ClearResults | ClearThoughts


@dataclass(frozen=True, slots=True)
class Cleared:
    """Result of one edit: the number of results, or of turns whose thoughts were removed, and their tokens."""

    what: Literal["results", "thoughts"]
    number: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """Client's request to compact its history; it gets the compaction, and sends that back."""

    trigger: int | None = None
    """Tokens from which on it is, though the window may be larger; None: where Spillway does it anyway."""
    instructions: str = ""
    """Instructions for the summary, instead of Spillway's; empty: those."""
    pauses: bool = False
    """Whether the answer ends behind a compaction."""
    now: bool = False
    """Whether the request is for a compaction and nothing else."""
    worded: bool = True
    """Whether the client is given the compaction in words, too."""
    lead: int = 0
    """How many of the leading system messages, the last ones, are part of the history: clients leave them out with it."""
    fingerprints: Sequence[str] = ()
    """Fingerprints of messages that earlier compactions replaced, which this one builds on."""


@dataclass(frozen=True, slots=True)
class SealedCompaction:
    """A compaction that a client sends back: it replaces all of the history before it."""

    seal: str
    """Of the messages that take the place of those before (`proxy.core.history.sealed`); empty: there is none."""
    words: str
    """The same in words, for who can't open the seal; empty: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedHistory:
    """Content of a seal: the history as it was when it was compacted."""

    messages: Sequence[dict[str, Any]]
    """Those that take the place of the history."""
    lead: Sequence[dict[str, Any]] = ()
    """System messages in front of it that were part of it."""
    fingerprints: Sequence[str] = ()
    """Fingerprints of the user's messages that it stands for."""

    @classmethod
    def read(cls, value: Any) -> SealedHistory | None:
        """Parse the opened value of a seal; None for anything else."""
        if not isinstance(value, dict) or not all(_messages(value.get(name)) for name in ("messages", "lead")):
            return None
        return cls(messages=value["messages"], lead=value["lead"], fingerprints=value.get("said") or ())

    def written(self) -> dict[str, Any]:
        """Build the value to seal."""
        return {"messages": list(self.messages), "lead": list(self.lead), "said": list(self.fingerprints)}


def fingerprint(message: Mapping[str, Any]) -> str:
    """Compute the digest by which a message that was sent before is recognised."""
    return blake2b(dumps([message.get("role"), message.get("content")]), digest_size=8).hexdigest()


def _messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


@dataclass(slots=True)
class Managed:
    """Results of a client's edits and compaction, as its answer reports them."""

    cleared: Sequence[Cleared] = ()
    sealed_compaction: SealedCompaction | None = None
    """The compaction that the answer begins with."""
    ended: bool = False
    """Whether the answer holds nothing else."""
    spent: tuple[int, int] = (0, 0)
    """Prompt and completion tokens of the summaries for it."""
    hands_over: bool = False
    """Whether the client asks for a compaction of its own."""
    restored: Sequence[dict[str, Any]] = ()
    """Messages opened from the client's sealed compaction, which come before those that it sent."""

"""The prompt to send for a request: a value that `proxy.preparing` builds, and the tools that it offers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

from proxy.backends.profile import RepairRules
from proxy.core.history.checkpoint import MOST_KNOWN, Checkpoint, digests_in, entries, links
from proxy.core.piece import CallPart
from proxy.core.request import Message, Request
from proxy.emulation.offer import Offer
from proxy.recall.block import NOTHING, RecalledBlocks
from proxy.shaping.repair import with_demanded
from proxy.shaping.shape import ShapedPart, tool_name
from proxy.tokens.meter import Estimate


@dataclass(frozen=True, slots=True)
class BuiltinTool:
    """A tool whose calls Spillway answers inside the same answer; the client sees neither a call nor its result."""

    answer: Callable[[CallPart, float, Sequence[str]], Awaitable[str]]
    """Returns the result of a call, within so many tokens, less what the results before it hold."""
    schema: Any = None
    """JSON schema of its parameters, where it is not among the tools of the request."""
    passed: Callable[[CallPart], CallPart | None] = lambda _: None
    """Returns a call, once it is complete, as the client gets it all the same; None: it is answered."""


@dataclass(slots=True)
class OfferedTools:
    """A request as the policy has it, whose tools add-ons change."""

    request: Request
    parts: list[ShapedPart]
    """What was shortened."""
    builtin: dict[str, BuiltinTool] = field(default_factory=dict)
    """By name; one that is not among the request's tools may be called all the same."""

    def free_name(self, name: str) -> str:
        """Return a name that none of the client's tools has: this one, or one with a number."""
        names = {tool_name(tool) for tool in self.request.body.get("tools") or ()}
        return next(each for each in chain([name], (f"{name}_{n}" for n in count(2))) if each not in names)


@dataclass(kw_only=True)
class Prompt:
    """Prompt to send for a request.

    `history` are the messages after the leading system messages as they will be sent; `sent` the same part as
    the client sent it, without status text, `digests` those of its messages, and `links` its chain: that of the whole
    conversation, where it is known that the client left out or replaced earlier messages.
    """

    request: Request
    """As the policy has it, and with its tools as text where they are emulated."""
    offer: Offer | None
    """Tools described in the prompt, for a model that has none of its own."""
    builtin: Mapping[str, BuiltinTool]
    """Tools that Spillway answers, by name."""
    system: Sequence[Message]
    sent: Sequence[Message]
    digests: Sequence[bytes]
    links: Sequence[bytes]
    shown: Sequence[Message]
    """The same as shown to the model where nothing covers it: with the client's edits, its results within limits."""
    history: Sequence[Message]
    untouched: bool
    """Whether the body can go upstream byte for byte."""
    fields: dict[str, Any]
    """Options that differ from the client's."""
    estimate: Estimate = field(init=False)
    capped: frozenset[int] = frozenset()
    """Indexes of messages that were sent whose results are shown within limits, covered or not."""
    checkpoint: Checkpoint | None = None
    run_ends: Mapping[bytes, int] = field(default_factory=dict)
    """Digests by which a later history may be recognised, and where in what was sent the run of each ends."""
    run: Sequence[str] = ()
    """The conversation up to `run_end` in what was sent, with what the client left out; empty: it was not recognised so."""
    run_end: int = 0
    first: int = 0
    """Messages in front of those that were left out."""
    archived: Sequence[Message] = ()
    """Messages from before those that were sent, which can be recalled; they are no part of the history."""
    recalled: RecalledBlocks = NOTHING
    """What was brought back of what the checkpoint covers or was archived; it is no part of the history."""
    searched: list[Message] = field(default_factory=list)
    """The searches of this answer with what they found, behind the history."""
    rules: RepairRules
    """Demands on messages, which hold for those of Spillway's own too."""
    answer_bound: int | None = None
    """`max_tokens` of Spillway's own, sized to the room there is: an answer that it ends is not at its end."""

    @property
    def messages(self) -> list[Message]:
        """All messages as they will be sent."""
        return with_demanded([*self.system, *self.recalled.put(self.history), *self.searched], self.rules)

    @property
    def conversation(self) -> Sequence[Message]:
        """All messages that are known of the conversation."""
        return [*self.archived, *self.sent] if self.archived else self.sent

    @property
    def lost(self) -> int:
        """How many of these the model sees no more, as they are archived or covered by the checkpoint."""
        return len(self.archived) + (0 if self.checkpoint is None else self.checkpoint.covered)

    def body(self) -> dict[str, Any]:
        """Build the body to send, as parsed JSON."""
        return {**self.request.body, "messages": self.messages, **self.fields}

    def with_checkpoint(self, checkpoint: Checkpoint) -> Sequence[Message]:
        """Return the history as it is with a checkpoint applied."""
        return [*checkpoint.replacement, *self.shown[checkpoint.covered :]]

    def resume(self, run: Sequence[str], end: int, first: int) -> Sequence[bytes]:
        """Go on with the run of another history (see `overlap`); return the chain of the whole conversation."""
        self.run, self.run_end, self.first = run, end, first
        whole = links([*digests_in(run), *self.digests[end:]])
        self.links = [*whole[:first], *whole[first + len(run) - end :]]
        return whole

    def placed(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint with what it covers counted in what was sent."""
        elsewhere = self.first if self.run else checkpoint.covered
        at = self.links.index(checkpoint.digest) + 1 if checkpoint.digest in self.links else elsewhere
        return replace(checkpoint, covered=at)

    def recognised_by(self, checkpoint: Checkpoint, until: int) -> Checkpoint:
        """Return a checkpoint with the run by which it is found, of at most `until` messages of what was sent."""
        ends = {end: key for key, end in self.run_ends.items() if end <= until}
        new = slice(self.run_end, end := max(ends, default=0))
        run = [*self.run, *entries(self.sent[new], self.digests[new])]
        return replace(checkpoint, run=run, alias=ends[end].hex()) if end and len(run) <= MOST_KNOWN else checkpoint

    def begin_with(self, checkpoint: Checkpoint) -> None:
        """Let the history begin with a checkpoint."""
        checkpoint = self.placed(checkpoint)
        self.history = self.with_checkpoint(checkpoint)
        self.checkpoint, self.recalled, self.untouched = checkpoint, NOTHING, False

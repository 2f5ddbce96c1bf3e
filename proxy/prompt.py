"""The prompt to send for a request: a value that `proxy.preparing` builds, and the tools that it offers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import Any

from proxy.backends.profile import RepairRules
from proxy.compaction.compaction import Compaction
from proxy.core.history.checkpoint import MOST_KNOWN, Checkpoint, Digests, digests_in, entries, links
from proxy.core.history.layout import beginning_of_answer, laid_out
from proxy.core.history.turns import is_result, newest_place
from proxy.core.piece import CallPart
from proxy.core.request import Message, Request
from proxy.emulation.offer import Offer
from proxy.recall.block import NOTHING, RecalledBlocks
from proxy.shaping.repair import with_demanded
from proxy.shaping.shape import ShapedPart, tool_name
from proxy.stream.watch import UNBOUND


@dataclass(frozen=True, slots=True)
class BuiltinTool:
    """A tool whose calls Spillway answers inside the same answer; the client sees neither a call nor its result."""

    answer: Callable[[CallPart, float, Sequence[str]], Awaitable[str]]
    """Returns the result of a call, given the most tokens it may have and the results before it, which it need not repeat."""
    schema: Any = None
    """JSON schema of its parameters, for a tool that is not among those of the request."""
    passed: Callable[[CallPart], CallPart | None] = lambda _: None
    """Returns a complete call in the form in which the client gets it after all, or None if Spillway answers it."""


@dataclass(slots=True)
class OfferedTools:
    """A request shaped by the policy, whose tools add-ons may change."""

    request: Request
    parts: list[ShapedPart]
    """Parts that were shortened."""
    builtin: dict[str, BuiltinTool] = field(default_factory=dict)
    """Built-in tools by name; they may be called even if they are not among the request's tools."""

    def free_name(self, name: str) -> str:
        """Return a name that none of the client's tools has: this one, or one with a number."""
        names = {tool_name(tool) for tool in self.request.body.get("tools") or ()}
        return next(each for each in chain([name], (f"{name}_{n}" for n in count(2))) if each not in names)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Prompt to send for a request. It never changes; another one takes its place.

    Each sequence of messages follows from the one before it. `sent` is what the client sent after its leading `system`
    messages, without status text; `shown` is the same, message by message, as the model would see it without a checkpoint:
    with the client's edits, and results within limits. In `history` the checkpoint's replacement takes the place of those
    that it covers. `messages` are all that go out: `system`, `history` with what was `recalled`, and `searched`.

    `digests` are those of the messages sent, and `links` is their chain: that of the whole conversation, where it is known that
    the client left out or replaced earlier ones.
    """

    request: Request
    """Request as shaped by the policy, without native tools if they are emulated."""
    offer: Offer | None
    """Tools described in the prompt, for a model without native tool calls."""
    builtin: Mapping[str, BuiltinTool]
    """Tools that Spillway answers, by name."""
    system: Sequence[Message]
    sent: Sequence[Message]
    digests: Sequence[bytes]
    links: Sequence[bytes]
    shown: Sequence[Message]
    as_received: bool
    """Whether `system` and `sent` are the messages of the request itself."""
    known: Digests = field(default_factory=dict)
    """Digests of messages as the client sent them."""
    fields: dict[str, Any]
    """Options that differ from the client's."""
    # The one part that is filled in place, by add-ons that choose where in the backend it is read: with another prompt, a
    # count of this one that is still on its way would be thrown away.
    capped: frozenset[int] = frozenset()
    """Indexes in `sent` of messages whose results are shortened to the limits, whether or not a checkpoint covers them."""
    checkpoint: Checkpoint | None = None
    run_ends: Mapping[bytes, int] = field(default_factory=dict)
    """Digests by which a later history may be recognised, and where in what was sent the run of each ends."""
    run: Sequence[str] = ()
    """The conversation up to `run_end` in what was sent, with what the client left out; empty if it was not recognised by that."""
    run_end: int = 0
    first: int = 0
    """Messages in front of those that were left out."""
    archived: Sequence[Message] = ()
    """Earlier messages that the client no longer sends. They can be recalled, but are not part of the history."""
    recalled: RecalledBlocks = NOTHING
    """Passages recalled from covered or archived messages; they are not part of the history."""
    searched: Sequence[Message] = ()
    """Searches of this answer with their results, placed after the history."""
    rules: RepairRules
    """Demands of the chat template on messages, Spillway's own included."""
    thinking_bound: int = UNBOUND
    """Completion tokens at which a model that is still thinking is made to answer."""
    spare: int = 0
    """Tokens that a pause could take out of it; 0 where the figure would decide nothing."""

    @cached_property
    def history(self) -> Sequence[Message]:
        """Messages after the leading system messages, without recalled passages."""
        return self.shown if self.checkpoint is None else self.with_checkpoint(self.checkpoint)

    @property
    def untouched(self) -> bool:
        """Return whether the body can go upstream byte for byte."""
        # By identity: what shortens a history returns the same list where there is nothing to shorten, and comparing all
        # messages of a long one would cost more than sending them unread.
        return self.as_received and self.history is self.sent and not (self.recalled.blocks or self.searched)

    @property
    def answer_bound(self) -> int | None:
        """`max_tokens` set by Spillway to fit the room there is, or None; an answer that it ends is not complete."""
        return min((self.fields[name] for name in self.request.bounds if name in self.fields), default=None)

    @cached_property
    def messages(self) -> list[Message]:
        """All messages as they will be sent."""
        history = self.recalled.put(self.history)
        return with_demanded([*self.laid_out(history), *self.searched], self.rules)

    def laid_out(self, history: Sequence[Message]) -> list[Message]:
        """Return the system messages and the history, or one that begins with it, in the order in which they are sent."""
        place, began = (0, "") if self.checkpoint is None else (self.checkpoint.place, self.checkpoint.began)
        step = 0 < place < len(self.history) and is_result(self.history[place])
        tools = self.offer is not None or bool(self.request.body.get("tools"))
        return laid_out(self.system, history, place, began, step=step, tools=tools)

    @property
    def beginning(self) -> str:
        """Digest of the checkpoint that it begins with, in hexadecimal digits; empty if there is none."""
        return "" if self.checkpoint is None else self.checkpoint.digest.hex()

    @property
    def conversation(self) -> Sequence[Message]:
        """All known messages of the conversation, the archived ones first."""
        return [*self.archived, *self.sent] if self.archived else self.sent

    @property
    def lost(self) -> int:
        """Number of these that the model no longer sees, because they are archived or covered by the checkpoint."""
        return len(self.archived) + (0 if self.checkpoint is None else self.checkpoint.covered)

    @property
    def answered(self) -> bytes:
        """Digest of the history that the newest answer replied to, or of the whole history if it has no answer.

        It is the same before and after the client's next message, so that replicas recognise each other's work ahead of time.
        """
        end = len(self.sent)
        while end and self.sent[end - 1].get("role") != "assistant":
            end -= 1
        while end and self.sent[end - 1].get("role") == "assistant":
            end -= 1
        return self.links[end - 1]

    @property
    def misses_messages(self) -> bool:
        """Return whether the client no longer sends some of the messages of the conversation."""
        return len(self.run) != self.run_end

    def body(self) -> dict[str, Any]:
        """Build the body to send, as parsed JSON."""
        return {**self.request.body, "messages": self.messages, **self.fields}

    def with_checkpoint(self, checkpoint: Checkpoint) -> Sequence[Message]:
        """Return the history with a checkpoint applied."""
        return [*checkpoint.replacement, *self.shown[checkpoint.covered :]]

    def resumed(self, run: Sequence[str], end: int, first: int, link: bytes) -> "Prompt | None":
        """Return the prompt as it goes on with the run of another history (see `overlap`), or None if that has no such `link`."""
        whole = links([*digests_in(run), *self.digests[end:]])
        if link not in whole:
            return None
        return replace(
            self, run=run, run_end=end, first=first, links=[*whole[:first], *whole[first + len(run) - end :]]
        )

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

    def rewritten(
        self, done: Compaction, until: int, *, scope: str, window: int, created: float, after_tail: bool
    ) -> Checkpoint:
        """Build the checkpoint of a rewritten history in terms of the client's own messages, so that its next request finds it.

        `until`: the number of messages that the client has sent, of those in `sent`; `after_tail`: whether a summary is sent there.
        """
        old, covered, replaced = self.checkpoint, done.covered, done.replaced
        if old is not None:
            # A rewrite that ends inside the earlier replacement still covers all that the earlier one did.
            beyond = max(0, len(old.replacement) - covered)
            covered, replaced = covered + beyond, replaced + beyond
            covered += old.covered - len(old.replacement)
        # Pruning leaves the summary as it was, so it keeps its place.
        place = old.place if old and done.kind == "pruned" else newest_place(done.messages) or 0
        checkpoint = Checkpoint(
            scope=scope,
            digest=self.links[covered - 1] if covered or old is None else old.digest,
            covered=covered,
            replacement=tuple(done.messages[:replaced]),
            tokens_before=int(done.before) + (0 if old is None else old.tokens_before - old.tokens_after),
            tokens_after=int(done.after),
            kind=done.kind,
            created=created,
            window=window,
            # A client has its own summary where it put it.
            place=place if after_tail and not self.request.compaction else 0,
            began=(old.began if old else "") or beginning_of_answer(done.messages, self.sent),
        )
        return self.recognised_by(checkpoint, until)

    def begun_with(self, checkpoint: Checkpoint) -> "Prompt":
        """Return the prompt with a checkpoint applied to the history, and without what was recalled before."""
        return replace(self, checkpoint=self.placed(checkpoint), recalled=NOTHING)

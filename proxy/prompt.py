"""The prompt that a request becomes: shaped by the policy, repaired, and with tools as text where they are emulated. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from proxy.compaction.continuation import with_resume_flags
from proxy.compaction.ladder import within_limits
from proxy.compaction.policy import prune_limits
from proxy.core.history.checkpoint import Checkpoint, chain
from proxy.core.request import Message, Request, leading_system
from proxy.emulation import Offer
from proxy.emulation.offer import offer_to_emulate
from proxy.emulation.prompt import emulated
from proxy.recall.block import NOTHING, RecalledBlocks, with_search
from proxy.shaping.repair import RepairRules, repair, tidied
from proxy.shaping.shape import ShapedPart, narrowed, shaped
from proxy.tokens.meter import Estimate

if TYPE_CHECKING:
    from proxy.job import Job


@dataclass(kw_only=True)
class Prompt:
    """Prompt to send for a request.

    `history` are the messages after the leading system messages as they will be sent; `sent` the same part as
    the client sent it, without status text, and `links` its chain digests.
    """

    request: Request
    """As the policy has it, and with its tools as text where they are emulated."""
    offer: Offer | None
    """Tools described in the prompt, for a model that has none of its own."""
    search: str
    """Name of the tool with which the model can search the conversation; empty: it has none."""
    system: Sequence[Message]
    sent: Sequence[Message]
    links: Sequence[bytes]
    shown: Sequence[Message]
    """The same as shown to the model where nothing covers it: with the client's edits, its results within limits."""
    history: Sequence[Message]
    untouched: bool
    """Whether the body can go upstream byte for byte."""
    fields: dict[str, Any]
    """Options that differ from the client's."""
    estimate: Estimate = field(init=False)
    checkpoint: Checkpoint | None = None
    recalled: RecalledBlocks = NOTHING
    """What was brought back of what the checkpoint covers; it is no part of the history."""
    searched: list[Message] = field(default_factory=list)
    """The searches of this answer with what they found, behind the history."""
    answer_bound: int | None = None
    """`max_tokens` of Spillway's own, sized to the room there is: an answer that it ends is not at its end."""

    @property
    def messages(self) -> list[Message]:
        """All messages as they will be sent."""
        return [*self.system, *self.recalled.put(self.history), *self.searched]

    def body(self) -> dict[str, Any]:
        """Build the body to send, as parsed JSON."""
        return {**self.request.body, "messages": self.messages, **self.fields}

    def with_checkpoint(self, checkpoint: Checkpoint) -> Sequence[Message]:
        """Return the history as it is with a checkpoint applied."""
        return [*checkpoint.replacement, *self.shown[checkpoint.covered :]]


def build_prompt(job: Job, *, emulate: bool) -> tuple[Prompt, Sequence[ShapedPart], Sequence[str]]:
    """Build the prompt of a job, with what the policy shortened, and the kinds of repairs that its history needed.

    `emulate`: the backend has refused tools. May take long; usable from a thread.
    """
    model, settings, restored = job.route.model, job.settings, job.request.restored
    request, parts = shaped(job.request, settings, job.window)
    search = ""
    if settings.recall == "tool" and not job.background:
        request, search = with_search(request, job.profile, alone=not emulate)
    offer = offer_to_emulate(request, job.profile, settings, now=emulate)
    # An answer that the client wants continued stays, even if empty.
    rules = replace(job.template_rules, keep_last=request.continues)
    # Where tools become text, calls and results are repaired before that, while they are distinct; roles afterwards.
    messages, repairs = tidied(request.messages, rules if offer is None else RepairRules())
    if offer is not None:
        request = emulated(request, offer, messages, system=not rules.alternate)
        messages, more = repair(request.messages, rules)
        repairs = (*repairs, *more)
    untouched = messages is request.messages and not restored
    if request.continues:
        request = with_resume_flags(request, job.ways[0])
    lead = leading_system(messages)
    sent = messages[lead:]
    if restored:
        sent, _ = repair([*restored, *sent], rules)
    shown = limited(job, sent)
    prompt = Prompt(
        request=request,
        offer=offer,
        search=search,
        system=messages[:lead],
        sent=sent,
        links=chain(sent),
        shown=shown,
        history=shown,
        untouched=untouched and shown is sent,
        fields={} if model == request.model else {"model": model},
    )
    return prompt, parts, repairs


def limited(job: Job, messages: Sequence[Message]) -> Sequence[Message]:
    """Bring the results of a history within the limits, where these hold from the first request on."""
    limits = None if job.profile.window is None else prune_limits(job.settings, job.profile.window.value)
    if limits is None or not limits.from_the_first:
        return messages
    return within_limits(messages, limits)


def rewrite(job: Job, checkpoint: Checkpoint) -> None:
    """Let the history begin with a checkpoint, and shorten the tools by what was called in the part that it covers.

    Only that part counts, so the tools change only where the prompt does anyway.
    """
    prompt, window = job.prompt, job.profile.window
    prompt.history = prompt.with_checkpoint(checkpoint)
    prompt.checkpoint, prompt.recalled, prompt.untouched = checkpoint, NOTHING, False
    if prompt.offer is None and window is not None:
        prompt.fields |= narrowed(prompt.request, prompt.sent[: checkpoint.covered], job.settings, window.value)

"""One client's request on its way through the stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from proxy.backends.base import Backend
from proxy.backends.profile import Continuation, Fact, ModelKey, ModelProfile, Trust
from proxy.backends.remedy import Spent
from proxy.dialects import CHAT
from proxy.emulation import Offer
from proxy.exchange import Exchange, unique
from proxy.history.checkpoint import Checkpoint
from proxy.history.turns import is_user
from proxy.neutral.dialect import Dialect, Writer
from proxy.neutral.managing import Managed
from proxy.neutral.piece import Piece
from proxy.neutral.request import Message, Request
from proxy.recall.recalled import NOTHING, RecalledBlocks
from proxy.settings import Settings
from proxy.shortening.budget import ContextBudget, budget_for
from proxy.stages.addon import AddOn
from proxy.stages.routing import Route
from proxy.status import Notice
from proxy.telemetry.outcome import COMPACTING, Outcome
from proxy.tokens.meter import Estimate
from proxy.wire.jsontext import dumps


@dataclass(kw_only=True)
class Prompt:
    """What will be sent for a request. What most requests have not stands in the class until they do.

    `history` are the messages after the leading system messages as they will be sent; `sent` the same part as
    the client sent it, without status text, and `links` its chain digests.
    """

    request: Request
    """As the policy has it, and with its tools as text where they are emulated."""
    offer: Offer | None
    """Tools that the model is told of in the prompt, because it has none of its own."""
    system: Sequence[Message]
    sent: Sequence[Message]
    links: Sequence[bytes]
    shown: Sequence[Message]
    """The same as the model is shown it where nothing covers it: without what the client wishes out, its results within limits."""
    history: Sequence[Message]
    checkpoint: Checkpoint | None
    search: str
    """Name of the tool with which the model can search the conversation; empty: it has none."""
    searched: list[Message] = field(default_factory=list)
    """The searches of this answer with what they found, behind the history."""
    recalled: RecalledBlocks = field(default=NOTHING, init=False)
    """What was brought back of what the checkpoint covers; it is no part of the history."""
    estimate: Estimate
    untouched: bool
    """Whether the body can go upstream byte for byte."""
    shaped: Sequence[tuple[str, int]] = field(default=(), init=False)
    """Tokens that the policy saved on parts of the prompt, see `Shaped`."""
    saved: int
    """Tokens by which it was shortened, over all compactions."""
    fields: dict[str, Any]
    """Options that differ from the client's."""
    answer_bound: int | None = field(default=None, init=False)
    """`max_tokens` of Spillway's own, sized to the room there is: an answer that it ends is not at its end."""

    @property
    def messages(self) -> list[Message]:
        """All messages as they will be sent."""
        return [*self.system, *self.recalled.put(self.history), *self.searched]


@dataclass(slots=True)
class Progress:
    """How far a summary has come that somebody waits for."""

    written: int = 0
    """Tokens of it, thoughts included; 0: it has not begun."""


@dataclass(slots=True)
class JobState:
    """Mutable state of a job's attempts and summaries."""

    unique: str = field(default_factory=unique)
    usage_asked: bool = False
    """Whether usage was asked for in the stream."""
    assumed: Fact[int] | None = None
    """Tokens of a window that nobody reported: for this answer alone, which showed that so much fits."""
    cut: bool = False
    """Whether the backend was found to have cut this prompt in silence."""
    spent: Spent = field(default_factory=Spent)
    """Account of the attempts."""
    posted: bytes = b""
    """Body that was sent last, and how often one was."""
    posts: int = 0
    opened: httpx.Response | None = None
    """Stream that was opened last: closed with the job, wherever it ends."""
    alone: asyncio.Lock | None = None
    """Held by the one request that may go on after its slots were cleared."""
    said: Callable[[], Piece] | None = None
    """Joins the whole answer, once it has ended in good order."""
    progress: Progress = field(default_factory=Progress)
    """Of the job's summary, or of the one that it waits for."""
    unsummarised: int = 0
    """Summaries in a row that were asked for and not written."""
    budget: ContextBudget | None = None
    """Budget for the window and the estimate beside it: it is looked up again and again."""
    window: Fact[int] | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """How the history begins of a job that no client has asked for yet: as it was when it was answered last."""

    messages: int
    """After the leading system messages."""
    link: bytes

    def begins(self, links: Sequence[bytes]) -> bool:
        """Whether a history of this chain begins so."""
        return len(links) >= self.messages and links[self.messages - 1] == self.link

    def goes_on(self, links: Sequence[bytes]) -> bool:
        """Whether a history of this chain begins so, and there is more of it."""
        return len(links) > self.messages and self.begins(links)


@dataclass(kw_only=True)
class Job:
    """A request that is being served: whose it is, where it goes, and what it has come to. What it has not yet stands in the class."""

    exchange: Exchange
    outcome: Outcome
    dialect: Dialect
    """In which the client asked, and is answered."""
    asked: Request
    """As the client sent it."""
    route: Route
    settings: Settings
    profile: ModelProfile
    prompt: Prompt = field(init=False)
    """Set when the job is prepared, and once more if its tools have to become text."""
    managed: Managed = field(default_factory=Managed, init=False)
    """Results of the client's wishes for its history."""
    state: JobState = field(default_factory=JobState, init=False)
    expected: Expected | None = None
    """Set where it is done ahead of time, in the background."""
    addons: Sequence[AddOn] = ()

    @property
    def unique(self) -> str:
        """Part of the ids in its answer."""
        return self.state.unique

    @property
    def scope(self) -> str:
        """Credential's digest, backend and model: nothing is shared across it."""
        return f"{self.exchange.tenant}|{self.route.upstream.name}|{self.route.model}"

    @property
    def is_task(self) -> bool:
        """Whether the client says in a header that it is a chore of its own.

        Open WebUI names the chore where its connection is set up so (`X-Task: {{TASK}}`, 0.12).
        """
        return bool((self.exchange.header(b"x-task") or "").strip())

    @property
    def native(self) -> bool:
        """Whether the client is answered in the backend's own dialect."""
        return self.dialect is CHAT

    def writer(self) -> Writer:
        """Of the answer, in the client's dialect."""
        writer = self.dialect.writer(self.asked, self.unique)
        writer.manage(self.managed)
        return writer

    @property
    def key(self) -> ModelKey:
        """Under which tokens are counted: backend and model."""
        return self.route.key

    @property
    def budget(self) -> ContextBudget | None:
        """None while the window is not known: then nothing is managed."""
        state, estimate = self.state, self.prompt.estimate
        window = self.profile.window or state.assumed
        if window is not state.window or estimate is not state.estimate:
            state.window, state.estimate = window, estimate
            state.budget = None if window is None else budget_for(self.settings, window.value, estimate.fixed)
        return state.budget

    @property
    def window_is_known(self) -> bool:
        """Whether a loaded model, or the user, tells the window, so that what is made for it may be stored."""
        window = self.profile.window
        return window is not None and window.trust > Trust.FALLBACK and not self.profile.provisional

    @property
    def is_due(self) -> bool:
        """Whether the prompt has to be shortened before it is sent, by all that is known of it."""
        estimate, budget, recalled = self.prompt.estimate, self.budget, self.prompt.recalled
        return budget is not None and (
            budget.needs_compaction(estimate.tokens, estimate.upper, passing=recalled.newest_tokens)
            or recalled.cramped
        )

    def goes_on_with(self, other: Job) -> bool:
        """Whether it is what another job, done ahead of time, was done for."""
        if other.expected is None or self.expected is not None or self.scope != other.scope:
            return False
        return other.expected.goes_on(self.prompt.links)

    @property
    def wish(self) -> str:
        """What the client wants asked for in a summary, instead of what Spillway asks for; empty: that."""
        return "" if self.asked.compaction is None else self.asked.compaction.instructions

    @property
    def compacted(self) -> bool:
        """Whether its history was compacted for it, and not merely pruned."""
        outcome = self.outcome
        return outcome.compactions > 0 and outcome.kind != "pruned"

    @property
    def offers_tools(self) -> bool:
        """Whether the client offers tools, or sends calls and results, in the forms for it."""
        body = self.asked.body
        return bool(body.get("tools") or body.get("functions"))

    @property
    def resumable(self) -> bool:
        """What can't be joined without a seam isn't paused: it runs to the window's end and ends honestly.

        Several choices share one window; a format and log-probabilities hold for one generation only; a client's own
        chores are left as they are.
        """
        request = self.prompt.request
        return request.choices == 1 and not self.undisturbed and not request.body.get("logprobs")

    @property
    def undisturbed(self) -> bool:
        """Whether nothing of Spillway's may be written into the answer."""
        return self.prompt.request.structured or self.background

    @property
    def loads_window(self) -> bool:
        """Whether the request has the model loaded with a window of its own, which teaches nothing about others."""
        return self.profile.window is not None and self.profile.window.trust is Trust.REQUESTED

    @property
    def may_emulate(self) -> bool:
        """Whether there is anything to emulate, and it is not done yet."""
        emulates = self.offers_tools and self.settings.tool_mode != "native"
        return self.prompt.offer is None and bool(emulates or self.prompt.search)

    @property
    def background(self) -> bool:
        """Whether it is a chore of the client's own (a title, tags), into which nothing may be written."""
        return self.prompt.request.background or self.is_task

    @property
    def known_backend(self) -> Backend | None:
        """The kind of backend as far as it is known, without asking."""
        return self.route.upstream.prober.known_backend

    @property
    def ways(self) -> list[Continuation]:
        """Ways to have an answer gone on with, best first."""
        backend = self.known_backend
        return self.profile.ways(() if backend is None else backend.continuations)

    @property
    def cancels(self) -> bool:
        """Whether leaving a stream ends the generation, so that it may be paused at any word."""
        backend = self.known_backend
        return backend is None or backend.stops_when_left(self.prompt.request.body, self.profile)

    def body(self) -> dict[str, Any]:
        """The body as it will be sent, as parsed JSON."""
        return {**self.prompt.request.body, "messages": self.prompt.messages, **self.changed_fields()}

    def changed_fields(self) -> dict[str, Any]:
        """Options that go upstream with another value than the client gave them."""
        renamed = self.route.model != self.prompt.request.model
        return {**self.prompt.fields, "model": self.route.model} if renamed else self.prompt.fields

    def measured(self) -> None:
        """Tell how large the prompt is now."""
        window = self.profile.window or self.state.assumed
        self.outcome.record_measured(
            self.prompt.estimate.tokens,
            None if window is None else window.value,
            "" if self.prompt.offer is None else "emulated",
        )

    def afterwards(self) -> list[Notice]:
        """What is told beside an answer when that is over."""
        outcome = self.outcome
        cut, whole = outcome.left_out, outcome.left_out_of
        notices = [Notice(done=True, left_out=cut, left_out_of=whole)] if cut else []
        # Open WebUI shows the newest line: this one would replace that of a compaction, on each step of a turn.
        if outcome.recalled and not outcome.compactions and is_user(self.prompt.sent[-1]):
            notices.append(Notice(done=True, recalled=outcome.recalled))
        notices += [notice for addon in self.addons for notice in addon.notices(self)]
        return [*notices, Notice(done=True, cut=True)] if self.state.cut else notices

    def summed_up(self) -> str:
        """What was done, for a comment behind an answer whose headers may have gone out too early; empty if nothing was."""
        outcome, told = self.outcome, self.told()
        return "" if not outcome.handled or told is None else f"spillway {dumps(told).decode()}"

    def told(self) -> dict[str, Any] | None:
        """What was done, for the usage of the answer; None: nothing, or none of it may be told there.

        Token figures are prompt tokens.
        """
        outcome = self.outcome
        if not (outcome.handled or outcome.mended_calls or self.prompt.saved) or self.undisturbed:
            return None
        told: dict[str, Any] = {
            "attempts": outcome.attempts,
            "action": outcome.action,
            "saved_tokens": self.prompt.saved,
        }
        if outcome.summary:
            told["summary"] = outcome.summary
        if outcome.reduced:
            told["compactions"] = list(map(asdict, outcome.reduced))
        if outcome.searches:
            told["searches"] = outcome.searches
        if outcome.mended_calls:
            malformed = [{"reason": call.reason, "tool": call.tool} for call in outcome.malformed_calls]
            calls = {
                "malformed": malformed,
                "leaked": outcome.leaked_calls,
                "repeated": outcome.repeated_calls,
            }
            told["tool_calls"] = {name: value for name, value in calls.items() if value}
        if outcome.recalled:
            told["recalled"] = {"passages": outcome.recalled, "tokens": outcome.recalled_tokens}
        if outcome.left_out or outcome.cut_earlier[0]:
            earlier, of = outcome.cut_earlier
            told["left_out"] = {"tokens": outcome.left_out + earlier, "of": outcome.left_out_of + of}
        if outcome.repeated is not None:
            # How much of it was used again stands in the usage beside it.
            told["repeated_tokens"] = outcome.repeated
        if (fill := outcome.fill) is not None:
            told |= {"fill": round(fill, 4), "window": outcome.window}
        return told

    def spillway_headers(self) -> list[tuple[bytes, bytes]]:
        """What the client is told about this request: what is known when they are sent.

        While the history is being shortened the fill is not: it is told at the end, beside the answer.
        """
        outcome = self.outcome
        action = outcome.action
        headers = [
            (b"x-spillway-action", action.encode()),
            (b"x-spillway-backend", self.route.upstream.label),
        ]
        if self.prompt.offer is not None:
            headers.append((b"x-spillway-tools", b"emulated"))
        if outcome.recalled:
            headers.append((b"x-spillway-recalled", str(outcome.recalled).encode()))
        if outcome.shaped:
            told = ", ".join([f"{kind}={tokens}" for kind, tokens in outcome.shaped.items()])
            headers.append((b"x-spillway-shaped", told.encode()))
        if left_out := outcome.left_out + outcome.cut_earlier[0]:
            headers.append((b"x-spillway-left-out", str(left_out).encode()))
        if cache := _told_of_cache(outcome):
            headers.append((b"x-spillway-cache", ", ".join(cache).encode()))
        if (budget := self.budget) is not None:
            if action != COMPACTING:
                headers.append((b"x-spillway-fill", b"%.4f" % budget.fill(self.prompt.estimate.tokens)))
            headers.append((b"x-spillway-window", b"%d" % budget.window))
        return headers


def _told_of_cache(outcome: Outcome) -> list[str]:
    """How the prompt goes on from the one before it, as far as that is known by now; in tokens."""
    told = [] if outcome.repeated is None else [f"repeated={outcome.repeated}"]
    if outcome.reused is not None:
        told.append(f"reused={outcome.reused}")
    if outcome.unlike:
        told.append(f"why={outcome.unlike}")
    return told

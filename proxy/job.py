"""One client's request on its way through the pipeline."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

from proxy.backends.base import Backend
from proxy.backends.profile import Continuation, Fact, ModelKey, ModelProfile, RepairRules, Trust, value_of
from proxy.backends.refusals import Spent
from proxy.compaction.budget import USUAL_ANSWER, ContextBudget, budget_for
from proxy.compaction.decision import Compact, Facts, decide
from proxy.core.dialect import Dialect, Writer
from proxy.core.piece import Piece
from proxy.core.request import Managed, Request
from proxy.core.settings import Settings
from proxy.exchange import Exchange, unique
from proxy.net.headers import AS_JSON, Headers, is_credential
from proxy.outcome import Outcome, SentAs
from proxy.prompt import Prompt
from proxy.routing import Route
from proxy.shaping.repair import rules_for
from proxy.tokens.meter import Estimate


@dataclass(slots=True)
class Progress:
    """Progress of what a request waits for before its prompt is read."""

    waits_for: str = ""
    """Status text while it waits; empty once its prompt is being read."""
    written: int = 0
    """Tokens of a summary written so far, thinking included; 0 before it has begun."""
    failed: int = 0
    """Number of consecutive summaries that were requested and failed."""
    own_slot: bool | None = None
    """Whether the slot chosen for it holds an earlier prompt of its conversation; None if the server chooses."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Run of a job while no client waits for it, in expectation of the next request."""

    expected: bytes
    """Digest of the history at its last answer."""
    displaced: bool = False
    """Whether the backend has read another prompt since, so that its cache of this prompt is lost to a summary."""
    rewrites: bool = False
    """Whether it is to replace extracts by a model's summary."""


@dataclass(kw_only=True)
class Job:
    """A request being served: its client and its route, which are final, and what is known and decided about it so far."""

    exchange: Final[Exchange]
    outcome: Final[Outcome]
    dialect: Final[Dialect]
    """Dialect of the request and of the answer."""
    received: Final[Request]
    """Request as the client sent it."""
    route: Final[Route]
    settings: Final[Settings]
    managed: Final[Managed] = field(default_factory=Managed)
    """Results of the client's own edits and compactions of its history."""
    unique: Final[str] = field(init=False, default_factory=unique)
    """Unique part of the ids in its answer."""
    held: Final[AsyncExitStack] = field(init=False, default_factory=AsyncExitStack)
    """Releases what it holds at its end: its slot, its turn on shared slots, and the streams it opened."""
    spent: Final[Spent] = field(init=False, default_factory=Spent)
    """Remedies that this request has used up."""
    request: Request
    """Request as shaped by add-ons."""
    profile: ModelProfile = field(init=False)
    prompt: Prompt = field(init=False)
    """Prompt to send. It is set, like the profile, when the job is prepared, and replaced as more is known or decided."""
    estimate: Estimate = field(init=False)
    """Size of the prompt when it was last counted."""
    # Not a field of the prompt: a count may come in the background, and of several prompts with more and fewer recalled
    # passages, all but one are only tried.
    progress: Progress = field(init=False, default_factory=Progress)
    """Its own progress, or while it waits for another job's summary that job's."""
    posted: bytes = field(init=False, default=b"")
    """Body sent last."""
    assumed: Fact[int] | None = field(init=False, default=None)
    """Window assumed for this answer alone, in tokens, if none is reported: the answer showed that as much fits."""
    joined_answer: Callable[[], Piece] | None = field(init=False, default=None)
    """Returns the whole answer; None unless it has ended in good order."""
    moved_from: "Final[Job | None]" = None
    """Job for the model that the client asked for, if this one is for a model with a larger window."""
    may_move: bool = False
    """Whether its conversation moves to a larger window once it is due, instead of being compacted."""
    ahead: Ahead | None = None
    """Set where the job is run ahead of its request, or None if a client is waiting."""

    @cached_property
    def scope(self) -> str:
        """Credential's digest, backend and model. Nothing is shared between different scopes."""
        return f"{self.exchange.tenant}|{self.route.upstream.key}|{self.route.model}"

    @cached_property
    def key(self) -> ModelKey:
        """Backend and model, the key of token counts."""
        return self.route.key

    @property
    def displaced(self) -> bool:
        """Return whether the backend's cache of this prompt is lost to a summary."""
        return self.ahead is not None and self.ahead.displaced

    @property
    def rewrites(self) -> bool:
        """Return whether it replaces extracts by a model's summary, so that checkpoints with extracts are ignored."""
        return self.ahead is not None and self.ahead.rewrites

    def writer(self) -> Writer:
        """Build the writer of the answer, in the client's dialect."""
        return self.dialect.writer(self.request, self.unique, self.managed)

    @property
    def window(self) -> int | None:
        """Tokens of the window, or None if unknown; then Spillway manages nothing."""
        return value_of(self.profile.window or self.assumed)

    @property
    def budget(self) -> ContextBudget | None:
        """Budget for the window, or None while that is unknown."""
        window = self.window
        if window is None:
            return None
        in_one_go = not (self.resumable or self.background)
        answer = in_one_go and (self.prompt.request.max_tokens or int(window * USUAL_ANSWER))
        return budget_for(self.settings, window, self.estimate.fixed, answer)

    @property
    def window_is_known(self) -> bool:
        """Return whether the window comes from a loaded model or the user, so that checkpoints for it may be stored."""
        window = self.profile.window
        return window is not None and window.trust > Trust.FALLBACK and not self.profile.provisional

    @property
    def loads_window(self) -> bool:
        """Return whether the request loads the model with a window of its own, which teaches nothing about others."""
        return self.profile.window is not None and self.profile.window.trust is Trust.REQUESTED

    @property
    def facts(self) -> Facts:
        """Facts that a decision about the prompt rests on."""
        estimate, recalled = self.estimate, self.prompt.recalled
        return Facts(
            estimate.tokens,
            estimate.upper,
            estimate.counted,
            self.prompt.history,
            passing=recalled.newest_tokens,
            cramped=recalled.cramped,
            cuts=self.known_backend.shifts_silently,
        )

    @property
    def lasting_tokens(self) -> int:
        """Tokens of the prompt without recalled passages, which no rewrite of the history covers."""
        return self.estimate.tokens - self.prompt.recalled.tokens

    @property
    def is_due(self) -> bool:
        """Return whether the prompt itself has to be shortened before it is sent, by the current estimate."""
        return isinstance(decide(self.budget, self.facts), Compact)

    @property
    def room(self) -> int:
        """Tokens that the prompt may still take, by its best estimate and by its upper bound."""
        estimate, budget = self.estimate, self.budget
        return 0 if budget is None else min(budget.due - estimate.tokens, budget.limit - estimate.upper)

    @cached_property
    def background(self) -> bool:
        """Return whether it is a background task of the client's own (a title, tags), into which nothing may be written.

        Open WebUI names the task where its connection is set up so (`X-Task: {{TASK}}`, 0.12).
        """
        return self.request.background or bool((self.exchange.header(b"x-task") or "").strip())

    @property
    def undisturbed(self) -> bool:
        """Return whether Spillway may not write anything of its own into the answer."""
        return self.prompt.request.structured or self.background

    @property
    def resumable(self) -> bool:
        """Return whether the answer may be paused and resumed. Others run until the window is full, and say so.

        Several choices share one window; a format and log-probabilities are only valid within one generation; a client's own
        background tasks are left as they are.
        """
        request = self.prompt.request
        return request.choices == 1 and not self.undisturbed and not request.body.get("logprobs")

    @property
    def template_rules(self) -> RepairRules:
        """Demands of the model's chat template, as far as they are known."""
        return rules_for(self.route.model, self.profile.demands)

    @property
    def offers_tools(self) -> bool:
        """Return whether the client offers tools."""
        return bool(self.request.body.get("tools"))

    @property
    def may_emulate(self) -> bool:
        """Return whether there are tools to emulate that are not emulated yet."""
        emulates = self.offers_tools and self.settings.tool_mode != "native"
        return self.prompt.offer is None and bool(emulates or self.prompt.builtin)

    @property
    def streams(self) -> bool:
        """Return whether to ask for a stream: not if the backend has refused one, now or recently."""
        known = self.profile.streams
        return "streams" not in self.spent.without and (known is None or known.value)

    @property
    def known_backend(self) -> Backend:
        """Kind of the backend as far as it is known, without probing."""
        return self.route.prober.known_backend

    @property
    def closes_gaps(self) -> bool:
        """Return whether the backend need not read again what follows a part that is left out of the prompt."""
        rolls_back, closes = self.profile.rolls_back, self.known_backend.closes_gaps and self.settings.stabilise
        return closes and rolls_back is not None and rolls_back.value

    @property
    def ways(self) -> list[Continuation]:
        """Ways to continue an answer, best first."""
        return self.profile.ways(self.known_backend.continuations)

    @property
    def cancels(self) -> bool:
        """Return whether disconnecting from a stream ends the generation, so that it may be paused at any token."""
        return self.known_backend.stops_on_disconnect(self.prompt.request.body, self.profile)

    def surely_below(self, bound: int) -> int:
        """Return the predicted tokens at which an upper bound like that of the prompt is `bound`.

        The margin of a long prompt grows with it, that of a short one is mostly fixed.
        """
        tokens, upper = self.estimate.tokens, self.estimate.upper
        return max(int(bound * tokens / max(1, upper)), bound - (upper - tokens))

    @property
    def client_headers(self) -> Headers:
        """Client's headers as the backend may see them: a key for the one that was asked is not for one that it moved to."""
        headers, first = self.exchange.headers, self.moved_from
        if first is None or first.route.upstream is self.route.upstream:
            return headers
        return [header for header in headers if not is_credential(header[0])]

    def backend_headers(self, route: Route) -> list[tuple[bytes, bytes]]:
        """Build the headers of Spillway's own requests: the trace, and for the same backend also the client's credentials."""
        same = route.upstream is self.route.upstream
        credentials = [(name, value) for name, value in self.client_headers if same and is_credential(name)]
        return [*self.outcome.traced([AS_JSON]), *credentials]

    def fresh(self, **changes: Any) -> "Job":
        """Return an unprepared copy with these fields changed."""
        return replace(self, managed=Managed(), **changes)

    async def read_profile(self, *, fresh: bool = False, load: bool = False) -> None:
        """Read what is known of the model now; `fresh` and `load` as for `Route.profile`."""
        self.profile = await self.route.profile(self.request.body, fresh=fresh, load=load)

    def record_measured(self) -> None:
        """Record the prompt's current size, and whether it is the client's, unless the request has gone to another model since."""
        if self.outcome.key != self.key:
            return
        prompt, outcome = self.prompt, self.outcome
        moved = bool(prompt.system) and "no_system" in self.profile.demands  # when it is sent
        changed = moved or not prompt.untouched or prompt.request.body is not self.received.body
        found, done = prompt.checkpoint, outcome.shortened
        if not done.compactions:
            outcome.sent.covered, done.summary, done.saved = 0, "", 0
            if found is not None:
                outcome.sent.covered, done.summary = found.covered, found.by or ""
                done.saved = max(0, found.tokens_before - found.tokens_after)
        tools: Literal["", "emulated"] = "" if prompt.offer is None else "emulated"
        sent_as: SentAs = "continued" if found is not None else "shaped" if changed else "forwarded"
        sent_as = "moved" if found is None and self.moved_from is not None else sent_as
        outcome.record_measured(self.estimate.tokens, self.window, tools, sent_as)

    def usage_details(self) -> dict[str, Any] | None:
        """Describe what was done, for the usage of the answer, or return None if nothing was done, or may be written there."""
        outcome, sent, done = self.outcome, self.outcome.sent, self.outcome.shortened
        if self.undisturbed or not (outcome.handled or outcome.mended_calls or done.saved or sent.recalled):
            return None
        calls = {
            "malformed": [{"reason": call["reason"], "tool": call["tool"]} for call in outcome.malformed_calls],
            "leaked": outcome.mended["leaked"],
            "repeated": outcome.mended["repeated"],
        }
        earlier, earlier_of = done.cut_earlier
        cut = {"tokens": sent.left_out + earlier, "of": sent.left_out_of + earlier_of}
        optional = {
            "summary": done.summary,
            "compactions": outcome.reduced,
            "searches": outcome.counts["searched"],
            "tool_calls": {name: value for name, value in calls.items() if value},
            "recalled": sent.recalled and {"passages": sent.recalled, "tokens": sent.recalled_tokens},
            "left_out": cut["tokens"] and cut,
        }
        details: dict[str, Any] = {
            "attempts": outcome.counts["sent"],
            "action": outcome.action,
            "saved_tokens": outcome.tokens_saved,
            **{name: value for name, value in optional.items() if value},
        }
        if sent.repeated is not None:
            # The tokens that the backend reused are a standard field of the usage.
            details["repeated_tokens"] = sent.repeated
        if (fill := outcome.fill) is not None:
            details |= {"fill": round(fill, 4), "window": sent.window}
        return details

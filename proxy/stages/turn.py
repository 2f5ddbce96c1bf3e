"""One chat request on its way through the stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.core.budget import ContextBudget
from proxy.core.checkpoint import Checkpoint
from proxy.core.options import Options
from proxy.core.profile import ModelProfile
from proxy.core.request import ChatRequest, Message
from proxy.core.splice import ask_usage
from proxy.exchange import Exchange
from proxy.stages.routing import Route
from proxy.tokens.meter import Estimate


@dataclass(slots=True, kw_only=True)
class Turn:
    """What is known about a request, and what will be sent for it.

    `history` are the messages after the leading system messages as they will be sent; `sent` the same part as
    the client sent it, without status text, and `links` its chain digests.
    """

    exchange: Exchange
    request: ChatRequest
    route: Route
    options: Options
    profile: ModelProfile
    scope: str
    """Credential digest, backend and model: nothing is shared across it."""
    system: Sequence[Message]
    sent: Sequence[Message]
    links: Sequence[bytes]
    history: Sequence[Message]
    checkpoint: Checkpoint | None = None
    estimate: Estimate
    untouched: bool = True
    """Whether the body can go upstream byte for byte."""
    action: str = "forwarded"
    usage_asked: bool = False
    cut: bool = False
    """Whether the backend was found to have cut this prompt in silence."""
    answer_bounded: bool = False
    """Whether `max_tokens` was lowered to the room there is: an answer it ends is not at its end."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the body that differ from the client's."""

    @property
    def key(self) -> tuple[str, str]:
        """Under which tokens are counted: backend and model."""
        return (self.route.upstream.name, self.route.model)

    @property
    def budget(self) -> ContextBudget | None:
        """None while the window is not known: then nothing is managed."""
        window = self.profile.window
        return None if window is None else self.options.budget(window.value)

    @property
    def messages(self) -> list[Message]:
        """All messages as they will be sent."""
        return [*self.system, *self.history]

    def body(self) -> dict[str, Any]:
        """The body as it will be sent, as parsed JSON."""
        return {**self.request.body, "messages": self.messages, **self._changed_fields()}

    def outgoing(self, *, may_ask_usage: bool) -> bytes:
        """The bytes to send: the client's own where nothing was changed.

        Usage is asked for on streams whose client said nothing about it.
        """
        body = self.request.body
        ask = may_ask_usage and self.request.stream and "stream_options" not in body
        self.usage_asked = ask
        changed = self._changed_fields()
        if self.untouched and not changed:
            return ask_usage(self.request.raw) if ask else self.request.raw
        raw = self.request.rewritten(None if self.untouched else self.messages, **changed)
        return ask_usage(raw) if ask else raw

    def _changed_fields(self) -> dict[str, Any]:
        """Fields that go upstream with another value than the client gave them, but for the messages."""
        renamed = self.route.model != self.request.model
        return {**self.fields, "model": self.route.model} if renamed else self.fields

    def spillway_headers(self) -> list[tuple[bytes, bytes]]:
        """What the client is told about this request."""
        headers = [
            (b"x-spillway-action", self.action.encode()),
            (b"x-spillway-backend", self.route.upstream.name.encode("latin-1", "replace")),
        ]
        if (budget := self.budget) is not None:
            headers.append((b"x-spillway-fill", f"{budget.fill(self.estimate.tokens):.4f}".encode()))
            headers.append((b"x-spillway-window", str(budget.window).encode()))
        return headers

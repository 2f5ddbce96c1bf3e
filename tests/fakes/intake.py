"""Chat requests coming in: read, checked, rendered, and held against the window."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from tests.fakes.base import HttpFake
from tests.fakes.history import check_history
from tests.fakes.http import Exchange
from tests.fakes.model import FakeModel, Message, Prompt, Refused

CACHES = 4
"""Prompts remembered per model, to tell how much of the next one is cached."""


class Intake(HttpFake):
    """From the body of a chat request to a prompt that fits; a kind overrides its own rules."""

    @override
    def add_routes(self) -> None:
        self.caches: dict[str, deque[list[str]]] = {}

    def count(self, body: dict[str, Any]) -> int:
        prompt = self.parse(body, self.find_model(body))
        return self.template(prompt.model).count(self.parts(prompt))

    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        """Read the request; raise `Refused` for what this kind does not take."""
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise Refused(400, self.error(400, "'messages' must be an array", "invalid_request_error"))
        prompt = Prompt(
            model, self.reply_name(body, model), body, list(messages), list(body.get("tools") or ()), limit=self.limit(body),
            stop=_stops(body), stream=body.get("stream") is True,
        )  # fmt: skip
        if not self.closes_turn:
            self.continuation(prompt)
        return prompt

    def find_model(self, body: dict[str, Any]) -> FakeModel:
        name = body.get("model")
        model = next((model for model in self.models if self.same_name(model, name)), None)
        if model is None:
            raise self.no_model(name)
        return model

    def same_name(self, model: FakeModel, name: object) -> bool:
        """Whether a request that names `name` means this model."""
        return model.id == name

    def reply_name(self, body: dict[str, Any], model: FakeModel) -> str:
        return str(body.get("model") or model.id)

    def no_model(self, name: object) -> Refused:
        text = f"The model `{name}` does not exist"
        return Refused(404, self.error(404, text, "invalid_request_error", code="model_not_found"))

    def limit(self, body: dict[str, Any]) -> int | None:
        for name in ("max_completion_tokens", "max_tokens"):
            if isinstance(body.get(name), int):
                return max(1, int(body[name]))
        return None

    def choices(self, body: dict[str, Any]) -> int:
        return int(body.get("n") or 1)

    closes_turn: bool = False
    """Whatever is asked for, the chat template makes a finished turn of a trailing assistant message."""

    def continuation(self, prompt: Prompt) -> None:
        """Decide what becomes of a trailing assistant message; here it is a finished turn."""

    def take_trailing(self, prompt: Prompt) -> None:
        """Make the trailing assistant message the prefix of the answer."""
        last = prompt.messages.pop()
        content = last.get("content")
        prompt.prefix = content if isinstance(content, str) else ""
        prompt.prefix_reasoning = str(last.get("reasoning_content") or last.get("reasoning") or "")

    def parts(self, prompt: Prompt) -> list[str]:
        return self.template(prompt.model).render(
            prompt.messages, prompt.tools, prefix=prompt.prefix, reasoning=prompt.prefix_reasoning
        )

    def fit(self, prompt: Prompt) -> None:
        """Hold the prompt against the window: refuse it or shorten it, and say how much room is left."""
        if prompt.tokens >= prompt.window:
            raise self.overflow(prompt)
        prompt.room = prompt.window - prompt.tokens

    def overflow(self, prompt: Prompt) -> Refused:
        raise NotImplementedError

    def load(self, model: FakeModel) -> None:
        """The first request loads the model."""
        model.loaded = True

    def take(self, exchange: Exchange) -> Prompt:
        """Everything between the body and the first token."""
        return self.take_body(exchange.json_object())

    def take_body(self, body: dict[str, Any]) -> Prompt:
        """Same, of a body already read."""
        self._check(body.get("messages"))
        model = self.find_model(body)
        self.load(model)
        prompt = self.parse(body, model)
        parts = self.parts(prompt)
        prompt.tokens = self.template(model).count(parts)
        self.fit(prompt)
        self._remember(prompt, parts)
        return prompt

    def _check(self, messages: Any) -> None:
        for flaw in check_history(messages) if isinstance(messages, list) else ():
            (self.invalid_histories if flaw.severity == "error" else self.history_notes).append(flaw.text)

    def _remember(self, prompt: Prompt, parts: list[str]) -> None:
        """Tell how much of the prompt is cached, and cache it."""
        caches = self.caches.setdefault(prompt.model.id, deque(maxlen=CACHES))
        best = max(caches, key=lambda cache: _common(cache, parts), default=None)
        if best is not None and (shared := _common(best, parts)) > 1:
            caches.remove(best)
            counted = self.template(prompt.model).count(parts[:shared])
            prompt.cached = min(counted, prompt.tokens - 1)  # the last token is always read again
        caches.append(parts)


def last_is_assistant(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[-1].get("role") == "assistant"


def _common(cache: list[str], parts: list[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(cache, parts, strict=False)) if a != b), min(len(cache), len(parts)))


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    return (stop,) if isinstance(stop, str) else tuple(stop or ())

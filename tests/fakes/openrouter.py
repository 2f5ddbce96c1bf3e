"""OpenRouter: many providers behind one API, under `/api`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import orjson
from typing_extensions import override

from tests.fakes.extras import Extras
from tests.fakes.generation import Delta, Generation
from tests.fakes.http import Exchange
from tests.fakes.intake import last_is_assistant
from tests.fakes.model import FakeModel, Prompt, Refused
from tests.fakes.openrouter_catalog import Catalog, chosen

COMPRESSED_UP_TO = 8192
"""Endpoints of at most this window shorten prompts without being asked."""
ROUTING = "To learn more about provider routing, visit: https://openrouter.ai/docs/guides/routing/provider-selection"
NO_PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."


class OpenRouterFake(Catalog, Extras):
    """The window is that of the provider that serves the request; `max_tokens` counts against it at admission.

    Small endpoints drop the middle of a prompt that does not fit, unless the request forbids it.
    """

    kind: ClassVar[str] = "openrouter"
    root: ClassVar[str] = "/api"
    reasoning_field: str = "reasoning"
    usage_always = True
    comment = b": OPENROUTER PROCESSING\n\n"
    comments = 1
    id_prefix = "gen-"

    compression: bool = True
    """Context compression is on for small endpoints, as it is by default."""
    provider_errors: bool = False
    """A prompt that does not fit is refused by the provider, whose own error is quoted."""
    provider_status: int = 400
    """Status around a provider's error."""
    error_types: bool = False
    """Errors tell their kind in `metadata.error_type`."""
    usage_on_choice: bool = False
    """The usage chunk has a choice, with the finish reason again."""
    forced_choice: bool = True
    """Providers take a `tool_choice` that forces a call."""
    cancels: bool = True
    """The provider stops when the client of a stream leaves."""

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.add_catalog_routes()
        self.add_extra_routes("completions", "embeddings", "responses", "messages", "rerank")

    @override
    def unauthorized(self) -> Refused:
        return Refused(401, self.error(401, "No auth credentials found"))

    @override
    def open_paths(self) -> set[str]:
        return {"/api/v1/models", "/api/v1/models/count"}

    @override
    def no_model(self, name: object) -> Refused:
        return Refused(400, self.error(400, f"{name} is not a valid model ID"))

    @override
    def common_headers(self) -> list[tuple[str, str]]:
        return [("x-generation-id", f"gen-{self.kind}{self.served:06d}")]

    # Taking a request in

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        tools = body.get("tools")
        if tools and not chosen(model, body).tools:
            name = (tools[0].get("function") or {}).get("name")
            text = f'No endpoints found that support tool use. Try disabling "{name}". {ROUTING}'
            raise Refused(404, self.error(404, text))
        if tools and not self.forced_choice and body.get("tool_choice", "auto") not in ("auto", "none"):
            text = f"No endpoints found that support the provided 'tool_choice' value. {ROUTING}"
            raise Refused(404, self.error(404, text))
        return super().parse(body, model)

    @override
    def continuation(self, prompt: Prompt) -> None:
        prefill = prompt.model.prefill or "continue"
        if not last_is_assistant(prompt.messages) or prefill == "new":
            return
        if prefill == "refuse":
            raw = {"type": "error", "error": {"type": "invalid_request_error", "message": NO_PREFILL}}
            raise self._by_provider(prompt, 400, raw)
        self.take_trailing(prompt)
        prompt.echo = prefill == "echo"

    @override
    def fit(self, prompt: Prompt) -> None:
        wanted = prompt.limit or 0
        provider = chosen(prompt.model, prompt.body, prompt.tokens + wanted)
        prompt.window = provider.window
        limits = [prompt.window - wanted, provider.max_prompt or prompt.window]
        if prompt.tokens > min(limits) and self._compresses(prompt):
            self._compress(prompt, min(limits))
        if prompt.tokens > min(limits) or prompt.tokens >= prompt.window:
            raise self.overflow(prompt)
        prompt.room = min(prompt.window - prompt.tokens, provider.max_output or prompt.window)

    def _compresses(self, prompt: Prompt) -> bool:
        plugins = prompt.body.get("plugins") or []
        plugin = next((plugin for plugin in plugins if plugin.get("id") == "context-compression"), None)
        if plugin is not None:
            return plugin.get("enabled", True) is True
        return self.compression and prompt.window <= COMPRESSED_UP_TO

    def _compress(self, prompt: Prompt, most: int) -> None:
        """Drop messages from the middle until the prompt has at most this many tokens."""
        template = self.template(prompt.model)
        while prompt.tokens > most and len(prompt.messages) > 2:
            dropped = prompt.messages.pop(len(prompt.messages) // 2)
            prompt.tokens -= template.count([template.message(dropped)])
            prompt.lossy = True
        self.cuts += prompt.lossy

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        if self.provider_errors:
            text = f"prompt is too long: {prompt.tokens} tokens > {prompt.window} maximum"
            raw = {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
            return self._by_provider(prompt, self.provider_status, raw, overflow=True)
        wanted = prompt.limit or 0
        tools = self.tool_tokens(prompt)
        text = (
            f"This endpoint's maximum context length is {prompt.window} tokens. However, you requested about "
            f"{prompt.tokens + wanted} tokens ({prompt.tokens - tools} of text input, {tools} of tool input, "
            f"{wanted} in the output). Please reduce the length of either one, or use the context-compression "
            "plugin to compress your prompt automatically."
        )
        metadata: dict[str, Any] = {"provider_name": None}
        if self.error_types:
            metadata["error_type"] = "context_length_exceeded"
        return Refused(400, self.error(400, text, metadata=metadata), overflow=True)

    def tool_tokens(self, prompt: Prompt) -> int:
        """Tokens of the tool schemas in a prompt."""
        template = self.template(prompt.model)
        return template.count(template.render([], prompt.tools)) - template.count(template.render([]))

    def _by_provider(self, prompt: Prompt, status: int, raw: Any, *, overflow: bool = False) -> Refused:
        name = chosen(prompt.model, prompt.body).name
        metadata = {"raw": orjson.dumps(raw).decode(), "provider_name": name}
        body = self.error(status, "Provider returned error", metadata=metadata)
        return Refused(status, body, overflow=overflow)

    # Answering

    @override
    async def chat(self, exchange: Exchange) -> None:
        body = exchange.json_object()
        exchange.sticky = body.get("stream") is not True or not self.cancels
        await super().chat(exchange)

    @override
    def head(self, prompt: Prompt, object_: str) -> dict[str, Any]:
        head = super().head(prompt, object_)
        return {"id": head.pop("id"), "provider": chosen(prompt.model, prompt.body, prompt.tokens).name, **head}

    @override
    def delta(self, delta: Delta) -> dict[str, Any]:
        if delta.kind == "reasoning":
            details = [{"type": "reasoning.text", "text": delta.text, "format": "unknown", "index": 0}]
            return {"role": "assistant", "content": "", "reasoning": delta.text, "reasoning_details": details}
        content = {} if delta.kind == "content" else {"content": None}
        return {"role": "assistant", **content, **super().delta(delta)}

    @override
    def choice(self, index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        own = delta or {"role": "assistant", "content": ""}
        return {**super().choice(index, own, finish), "native_finish_reason": finish, "logprobs": None}

    @override
    def whole_choice(self, index: int, message: dict[str, Any], finish: str) -> dict[str, Any]:
        choice = super().whole_choice(index, {**message, "refusal": None}, finish)
        return {"logprobs": None, "native_finish_reason": finish, **choice}

    @override
    def usage_details(self, prompt: Prompt, generations: Sequence[Generation]) -> dict[str, Any]:
        reasoning = sum(generation.reasoning_tokens for generation in generations)
        return {
            "cost": 0.0001,
            "is_byok": False,
            "prompt_tokens_details": {"cached_tokens": prompt.cached, "cache_write_tokens": 0},
            "cost_details": {"upstream_inference_cost": None},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    @override
    def usage_choices(self, generations: Sequence[Generation]) -> list[dict[str, Any]]:
        return [self.choice(0, {}, generations[0].finish)] if self.usage_on_choice else []

    @override
    def error_frame(self, message: str, head: dict[str, Any]) -> bytes:
        metadata = {"error_type": "provider_unavailable", "provider_code": None}
        choices = [self.choice(0, {}, "error")]
        chunk = {**head, **self.error(502, message, metadata=metadata), "choices": choices}
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

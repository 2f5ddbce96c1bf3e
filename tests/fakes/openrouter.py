"""OpenRouter: many providers behind one API, under `/api`."""

from collections.abc import Sequence
from typing import Any, ClassVar

import orjson
from typing_extensions import override

from tests.fakes.chat import CREATED, FakeBackend
from tests.fakes.generation import Delta, Generation
from tests.fakes.http import Exchange
from tests.fakes.intake import last_is_assistant
from tests.fakes.model import FakeModel, Prompt, Provider, Refused

COMPRESSED_UP_TO = 8192
"""Endpoints of at most this window shorten prompts without being asked."""
ROUTING = "To learn more about provider routing, visit: https://openrouter.ai/docs/guides/routing/provider-selection"
NO_PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."


class OpenRouterFake(FakeBackend):
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
    cancels: bool = True
    """The provider stops when the client of a stream leaves."""

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.routes["GET /v1/models"] = self.model_list
        self.routes["GET /v1/models/user"] = self.model_list
        self.prefix_routes["GET /v1/models/"] = self.endpoints

    @override
    def unauthorized(self) -> Refused:
        return Refused(401, self.error(401, "No auth credentials found"))

    @override
    def open_paths(self) -> set[str]:
        return {"/api/v1/models"}

    @override
    def no_model(self, name: object) -> Refused:
        return Refused(400, self.error(400, f"{name} is not a valid model ID"))

    @override
    def common_headers(self) -> list[tuple[str, str]]:
        return [("x-generation-id", f"gen-{self.kind}{self.served:06d}")]

    # Telling of itself

    async def model_list(self, exchange: Exchange) -> None:
        data = [entry(model) for model in self.models]
        await exchange.answer(200, {"data": data, "total_count": len(data), "links": {"next": None}})

    async def endpoints(self, exchange: Exchange) -> None:
        name = exchange.request.path.removeprefix("/api/v1/models/").removesuffix("/endpoints")
        model = self.find_model({"model": name})
        listed = [_endpoint(model, provider) for provider in providers(model)]
        whole = {"id": model.id, "name": model.id, "created": CREATED, "architecture": _architecture(model)}
        await exchange.answer(200, {"data": {**whole, "endpoints": listed}})

    # Taking a request in

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        tools = body.get("tools")
        if tools and not chosen(model, body).tools:
            name = (tools[0].get("function") or {}).get("name")
            text = f'No endpoints found that support tool use. Try disabling "{name}". {ROUTING}'
            raise Refused(404, self.error(404, text))
        return super().parse(body, model)

    @override
    def continuation(self, prompt: Prompt) -> None:
        prefill = prompt.model.prefill or "continue"
        if not last_is_assistant(prompt.messages) or prefill == "new":
            return
        if prefill == "refuse":
            raw = {"type": "error", "error": {"type": "invalid_request_error", "message": NO_PREFILL}}
            metadata = {"raw": orjson.dumps(raw).decode(), "provider_name": chosen(prompt.model, prompt.body).name}
            raise Refused(400, self.error(400, "Provider returned error", metadata=metadata))
        self.take_trailing(prompt)
        prompt.echo = prefill == "echo"

    @override
    def fit(self, prompt: Prompt) -> None:
        wanted = prompt.limit or 0
        provider = chosen(prompt.model, prompt.body, prompt.tokens + wanted)
        prompt.window = provider.window
        most = prompt.window - wanted
        if prompt.tokens > most and self._compresses(prompt):  # it drops messages from the middle
            prompt.tokens, prompt.lossy = most, True
            self.cuts += 1
        if prompt.tokens > most or prompt.tokens >= prompt.window:
            raise self.overflow(prompt)
        prompt.room = min(prompt.window - prompt.tokens, provider.max_output or prompt.window)

    def _compresses(self, prompt: Prompt) -> bool:
        plugins = prompt.body.get("plugins") or []
        plugin = next((plugin for plugin in plugins if plugin.get("id") == "context-compression"), None)
        if plugin is not None:
            return plugin.get("enabled", True) is True
        return self.compression and prompt.window <= COMPRESSED_UP_TO

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        wanted = prompt.limit or 0
        tools = self.tool_tokens(prompt)
        text = (
            f"This endpoint's maximum context length is {prompt.window} tokens. However, you requested about "
            f"{prompt.tokens + wanted} tokens ({prompt.tokens - tools} of text input, {tools} of tool input, "
            f"{wanted} in the output). Please reduce the length of either one, or use the context-compression "
            "plugin to compress your prompt automatically."
        )
        return Refused(400, self.error(400, text, metadata={"provider_name": None}), overflow=True)

    def tool_tokens(self, prompt: Prompt) -> int:
        template = self.template(prompt.model)
        return template.count(template.render([], prompt.tools)) - template.count(template.render([]))

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
    def error_frame(self, message: str, head: dict[str, Any]) -> bytes:
        metadata = {"error_type": "provider_unavailable", "provider_code": None}
        choices = [self.choice(0, {}, "error")]
        chunk = {**head, **self.error(502, message, metadata=metadata), "choices": choices}
        return b"data: " + orjson.dumps(chunk) + b"\n\n"


def providers(model: FakeModel) -> tuple[Provider, ...]:
    return model.providers or (Provider("Fake", model.window, model.max_output, tools=model.tools),)


def chosen(model: FakeModel, body: dict[str, Any], tokens: int = 0) -> Provider:
    """The endpoint that serves a request: the first allowed one whose window takes it, else the largest."""
    wishes = body.get("provider") or {}
    known = {_slug(provider.name): provider for provider in providers(model)}
    order = [_slug(name) for name in wishes.get("order") or ()]
    names = order if order and wishes.get("allow_fallbacks") is False else [*order, *known]
    only = [_slug(name) for name in wishes.get("only") or known]
    ignored = [_slug(name) for name in wishes.get("ignore") or ()]
    allowed = [known[name] for name in names if name in known and name in only and name not in ignored]
    allowed = allowed or [providers(model)[0]]
    taking = (provider for provider in allowed if tokens < provider.window)
    return next(taking, max(allowed, key=lambda provider: provider.window))


def entry(model: FakeModel) -> dict[str, Any]:
    """A model in the list: the advertised window, and that of the first provider."""
    top = providers(model)[0]
    return {
        "id": model.id,
        "canonical_slug": model.id,
        "name": model.id,
        "created": CREATED,
        "context_length": model.trained_window,
        "architecture": _architecture(model),
        "pricing": {"prompt": "0.000001", "completion": "0.000002"},
        "top_provider": {"context_length": top.window, "max_completion_tokens": top.max_output, "is_moderated": False},
        "per_request_limits": None,
        "supported_parameters": _parameters(any(provider.tools for provider in providers(model)), model.thinking),
        "default_parameters": {},
        "expiration_date": None,
        "links": {"details": f"/api/v1/models/{model.id}/endpoints"},
    }


def _endpoint(model: FakeModel, provider: Provider) -> dict[str, Any]:
    return {
        "name": f"{provider.name} | {model.id}", "context_length": provider.window,
        "max_completion_tokens": provider.max_output, "max_prompt_tokens": None, "provider_name": provider.name,
        "tag": _slug(provider.name), "quantization": "unknown", "supported_parameters": _parameters(provider.tools),
        "status": 0, "uptime_last_30m": 99.9, "pricing": {"prompt": "0.000001", "completion": "0.000002"},
    }  # fmt: skip


def _architecture(model: FakeModel) -> dict[str, Any]:
    inputs = ["text", "image"] if model.vision else ["text"]
    return {"input_modalities": inputs, "output_modalities": ["text"], "tokenizer": "Other"}


def _parameters(tools: bool, thinking: bool = False) -> list[str]:
    more = [*(["tools", "tool_choice"] if tools else []), *(["reasoning"] if thinking else [])]
    return ["max_tokens", "temperature", "stop", *more]


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")

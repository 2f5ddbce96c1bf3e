"""OpenRouter's catalogue: models, their endpoints, and the choice among those."""

from __future__ import annotations

from typing import Any

from tests.fakes.chat import CREATED, FakeBackend
from tests.fakes.http import Exchange
from tests.fakes.model import FakeModel, Provider, Refused


def providers(model: FakeModel) -> tuple[Provider, ...]:
    """The endpoints of a model; one of its own window if the test named none."""
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


class Catalog(FakeBackend):
    """`/v1/models` and what hangs below it. Pages only when asked for."""

    def add_catalog_routes(self) -> None:
        """Routes of this class."""
        self.routes |= {
            "GET /v1/models": self.model_list,
            "GET /v1/models/user": self.model_list,
            "GET /v1/models/count": self.model_count,
            "GET /v1/key": self.key,
            "GET /v1/credits": self.credits,
            "GET /v1/generation": self.generation_stats,
        }
        self.prefix_routes["GET /v1/models/"] = self.endpoints
        self.prefix_routes["GET /v1/model/"] = self.one_model

    async def model_list(self, exchange: Exchange) -> None:
        """`GET /v1/models`, with `offset` and `limit` in parts."""
        params = exchange.request.params
        offset = int(params.get("offset", 0))
        end = offset + int(params["limit"]) if "limit" in params else len(self.models)
        following = f"/api/v1/models?offset={end}&limit={params.get('limit')}"
        links = {"next": following if end < len(self.models) else None}
        data = [entry(model) for model in self.models[offset:end]]
        await exchange.answer(200, {"data": data, "total_count": len(self.models), "links": links})

    async def model_count(self, exchange: Exchange) -> None:
        """`GET /v1/models/count`."""
        await exchange.answer(200, {"data": {"count": len(self.models)}})

    async def one_model(self, exchange: Exchange) -> None:
        """`GET /v1/model/{author}/{slug}`."""
        model = self._named(exchange.request.path.removeprefix("/api/v1/model/"))
        await exchange.answer(200, {"data": entry(model)})

    async def endpoints(self, exchange: Exchange) -> None:
        """`GET /v1/models/{author}/{slug}/endpoints`."""
        name = exchange.request.path.removeprefix("/api/v1/models/").removesuffix("/endpoints")
        model = self._named(name)
        listed = [_endpoint(model, provider) for provider in providers(model)]
        whole = {"id": model.id, "name": model.id, "created": CREATED, "architecture": _architecture(model)}
        await exchange.answer(200, {"data": {**whole, "endpoints": listed}})

    async def key(self, exchange: Exchange) -> None:
        """`GET /v1/key`."""
        await exchange.answer(200, {"data": {"label": "fake", "usage": 0, "limit": None}})

    async def credits(self, exchange: Exchange) -> None:
        """`GET /v1/credits`."""
        await exchange.answer(200, {"data": {"total_credits": 10, "total_usage": 0}})

    async def generation_stats(self, exchange: Exchange) -> None:
        """`GET /v1/generation?id=`."""
        name = exchange.request.params.get("id", "")
        await exchange.answer(200, {"data": {"id": name, "native_tokens_prompt": 1}})

    def _named(self, name: str) -> FakeModel:
        model = next((model for model in self.models if model.id == name), None)
        if model is None:
            raise Refused(404, self.error(404, f"No endpoints found for {name}."))
        return model


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
        "name": f"{provider.name} | {model.id}",
        "context_length": provider.window,
        "max_completion_tokens": provider.max_output,
        "max_prompt_tokens": provider.max_prompt,
        "provider_name": provider.name,
        "tag": _slug(provider.name),
        "quantization": "unknown",
        "supported_parameters": _parameters(provider.tools),
        "status": 0,
        "uptime_last_30m": 99.9,
        "pricing": {"prompt": "0.000001", "completion": "0.000002"},
    }


def _architecture(model: FakeModel) -> dict[str, Any]:
    inputs = ["text", "image"] if model.vision else ["text"]
    return {"input_modalities": inputs, "output_modalities": ["text"], "tokenizer": "Other"}


def _parameters(tools: bool, thinking: bool = False) -> list[str]:
    more = [*(["tools", "tool_choice"] if tools else []), *(["reasoning"] if thinking else [])]
    return ["max_tokens", "temperature", "stop", *more]


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")

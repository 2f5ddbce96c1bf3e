"""LiteLLM's proxy in front of other fakes: shapes recorded from 1.106.2, without a database, in front of these fakes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson
from typing_extensions import override

from tests.fakes.base import CHAT, HttpFake
from tests.fakes.forwarding import Forwarding
from tests.fakes.http import Exchange
from tests.fakes.model import Refused

_CREATED = 1677610602
"""What it writes for every model."""
_NO_FALLBACK = "LiteLLM: model group '{name}' failed with the error above. No fallback was attempted."
_TOO_LONG = (
    "context_window_fallbacks=None. fallbacks=None.\n\n"
    "Set 'context_window_fallback' - https://docs.litellm.ai/docs/routing#fallbacks\n\n"
)


@dataclass
class Deployment:
    """A line of its `model_list`: a name for what another server calls `model`."""

    server: HttpFake
    model: str
    provider: str = "openai"
    max_input_tokens: int | None = None
    """Of `model_info`, or of LiteLLM's own list of models; None: neither knows it."""


class LiteLlmFake(Forwarding):
    """`deployments` by the names that clients use. Fields of an answer that it does not know are left as they are."""

    kind: ClassVar[str] = "litellm"

    def __init__(self, deployments: Mapping[str, Deployment], **options: Any) -> None:
        self.deployments = dict(deployments)
        super().__init__([], **options)

    @override
    def add_routes(self) -> None:
        self.routes |= {"GET /v1/models": self.model_list, "GET /models": self.model_list, f"POST {CHAT}": self.chat}

    @override
    async def unknown(self, exchange: Exchange) -> None:
        await exchange.answer(404, {"detail": "Not Found"})

    @override
    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        own = type_ or ("invalid_request_error" if status < 500 else "internal_server_error")
        return {"error": {"message": message, "type": own, "param": None, "code": str(status), **extra}}

    async def model_list(self, exchange: Exchange) -> None:
        data = []
        for name, one in self.deployments.items():
            entry: dict[str, Any] = {"id": name, "object": "model", "created": _CREATED, "owned_by": "openai"}
            if one.max_input_tokens is not None:
                entry["max_input_tokens"] = one.max_input_tokens
            data.append(entry)
        await exchange.answer(200, {"data": data, "object": "list"})

    async def chat(self, exchange: Exchange) -> None:
        """`POST /v1/chat/completions`: to the server behind the name, with the server's name for the model."""
        body = exchange.json_object()
        name = str(body.get("model"))
        one = self.deployments.get(name)
        if one is None:
            text = (
                f"/chat/completions: Invalid model name passed in model={name}. Call `/v1/models` to view available "
                "models for your key."
            )
            raise Refused(400, self.error(400, text, provider_specific_fields={"error": text}))
        headers = [
            ("x-litellm-call-id", "0241288f-0b09-4d37-9cae-2405b5128434"), ("x-litellm-model-id", f"{name}-id"),
            ("x-litellm-model-api-base", one.server.url + "/v1"), ("x-litellm-version", "1.106.2"),
            ("x-litellm-model-group", name),
        ]  # fmt: skip
        await self.hand_on(exchange, one.server.url + CHAT, orjson.dumps({**body, "model": one.model}), headers)

    @override
    def told_piece(self, exchange: Exchange, piece: bytes) -> bytes:
        name = str(exchange.request.json["model"])
        return piece.replace(self._named(self.deployments[name].model), self._named(name))

    @override
    def told(self, exchange: Exchange, status: int, body: bytes) -> tuple[int, bytes]:
        name = str(exchange.request.json["model"])
        one = self.deployments[name]
        if status < 400:
            return status, body.replace(self._named(one.model), self._named(name))
        said = _said(one, body)
        tail = _NO_FALLBACK.format(name=name)
        provider = {"openai": "OpenAIException", "hosted_vllm": "Hosted_vllmException"}[one.provider]
        if status >= 500:
            text = f"litellm.InternalServerError: InternalServerError: {provider} - {said}\n\n{tail}"
        elif "context" in said:
            text = (
                f"litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: {provider} - "
                f"{said}\nmodel={name}. {_TOO_LONG}{tail}"
            )
        else:
            text = f"litellm.BadRequestError: {provider} - {said}\n\n{tail}"
        return status, orjson.dumps(self.error(status, text))

    @staticmethod
    def _named(model: str) -> bytes:
        return b'"model":' + orjson.dumps(model)


def _said(one: Deployment, body: bytes) -> str:
    """The server's message; of vLLM the whole body."""
    error = orjson.loads(body).get("error") if one.provider == "openai" else None
    return str(error["message"]) if isinstance(error, dict) else body.decode()

"""LM Studio 0.4."""

from collections.abc import Sequence
from typing import Any, ClassVar

import orjson
from typing_extensions import override

from proxy.core.request import text_of
from tests.fakes.chat import FakeBackend
from tests.fakes.generation import Generation
from tests.fakes.http import EVENT_STREAM, Exchange
from tests.fakes.intake import last_is_assistant
from tests.fakes.model import FakeModel, Prompt, Refused


class LmStudioFake(FakeBackend):
    """Unknown paths answer 200 with an error; a stream that does not fit answers 200 with an error event.

    Before a model is loaded the lists tell its trained window only; the first request loads it with `window`.
    """

    kind: ClassVar[str] = "lmstudio"

    parallel: int = 4
    fits: int | None = None
    """Tokens of the largest window for which there is memory, and that for one instance only; None: there is enough."""

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.defaults = {model.id: model.window for model in self.models}
        """Windows with which a request loads them."""
        self.routes["GET /v1/models"] = self.openai_list
        self.routes["GET /api/v0/models"] = self.v0_list
        self.routes["GET /api/v1/models"] = self.v1_list
        self.routes["POST /api/v1/models/load"] = self.load_model
        self.routes["POST /api/v1/models/unload"] = self.unload_model

    @override
    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        return {"error": message}

    @override
    def unauthorized(self) -> Refused:
        error = {"message": "Invalid API token", "type": "invalid_request_error", "code": "invalid_api_key"}
        return Refused(401, {"error": error})

    @override
    async def unknown(self, exchange: Exchange) -> None:
        request = exchange.request
        text = f"Unexpected endpoint or method. ({request.method} {request.path})"
        await exchange.answer(200, {"error": text})

    @override
    def no_model(self, name: object) -> Refused:
        error = {"message": f'Model "{name}" not found', "type": "invalid_request_error", "param": "model"}
        return Refused(404, {"error": {**error, "code": "model_not_found"}})

    # Telling of itself

    async def openai_list(self, exchange: Exchange) -> None:
        data = [{"id": model.id, "object": "model", "owned_by": "organization_owner"} for model in self.models]
        await exchange.answer(200, {"data": data, "object": "list"})

    async def v0_list(self, exchange: Exchange) -> None:
        await exchange.answer(200, {"object": "list", "data": [v0_entry(model) for model in self.models]})

    async def v1_list(self, exchange: Exchange) -> None:
        await exchange.answer(200, {"models": [self._v1_entry(model) for model in self.models]})

    def _v1_entry(self, model: FakeModel) -> dict[str, Any]:
        config = {"context_length": model.window, "eval_batch_size": 512, "parallel": self.parallel}
        instance = {"id": model.id, "config": {**config, "flash_attention": True, "offload_kv_cache_to_gpu": True}}
        # Only models that can be told to think, or not, have it (0.4.8 and later).
        reasoning = {"reasoning": {"allowed_options": ["off", "on"], "default": "on"}} if model.thinking else {}
        return {
            "type": "embedding" if model.embedding else "llm",
            "publisher": "fake",
            "key": model.id,
            "display_name": model.id,
            "architecture": "qwen2",
            "quantization": {"name": "Q4_K_M", "bits_per_weight": 4},
            "format": "gguf",
            "size_bytes": 1_000_000,
            "params_string": "1B",
            "max_context_length": model.trained_window,
            "loaded_instances": [instance] if model.loaded else [],
            "capabilities": {"vision": model.vision, "trained_for_tool_use": model.tools, **reasoning},
        }

    async def load_model(self, exchange: Exchange) -> None:
        body = exchange.json_object()
        model = self.find_model(body)
        window = min(int(body.get("context_length") or model.window), model.trained_window)
        if self.fits is not None and (model.loaded or window > self.fits):
            text = "Model loading was stopped due to insufficient system resources."
            raise Refused(500, {"error": {"type": "model_load_failed", "message": text}})
        model.loaded, model.window = True, window
        whole = {"type": "llm", "instance_id": model.id, "load_time_seconds": 0.1, "status": "loaded"}
        config = {"load_config": {"context_length": model.window}} if body.get("echo_load_config") else {}
        await exchange.answer(200, {**whole, **config})

    async def unload_model(self, exchange: Exchange) -> None:
        name = exchange.json_object().get("instance_id")
        model = self.find_model({"model": name})
        model.loaded, model.window = False, self.defaults[model.id]
        await exchange.answer(200, {"instance_id": name})

    # Taking a request in

    @override
    def continuation(self, prompt: Prompt) -> None:
        prefill = prompt.model.prefill or "continue"
        if not last_is_assistant(prompt.messages) or prompt.messages[-1].get("tool_calls") or prefill == "new":
            return
        if prefill == "refuse":
            text = "Multi-part or consecutive assistant responses are not supported."
            raise Refused(400, {"error": text})
        prefix = text_of(prompt.messages[-1])
        self.take_trailing(prompt)
        prompt.prefix = prefix
        prompt.echo = prefill == "echo"

    @override
    def fit(self, prompt: Prompt) -> None:
        super().fit(prompt)
        if prompt.model.shifts:
            prompt.room = None

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        text = (
            f"Input does not fit in context length. The input has {prompt.tokens} tokens, "
            f"but the context length only supports {prompt.model.window} tokens."
        )
        return Refused(400, {"error": text}, overflow=True)

    @override
    async def refuse(self, exchange: Exchange, refused: Refused) -> None:
        body = exchange.request.json
        if not (refused.overflow and isinstance(body, dict) and body.get("stream")):
            await super().refuse(exchange, refused)
            return
        await exchange.open(200, EVENT_STREAM)
        await exchange.write(_error_event(refused.body["error"]))
        await exchange.close()

    # Answering

    @override
    def completion(self, prompt: Prompt, choices: list[dict[str, Any]], generations: Sequence[Generation]) -> dict[str, Any]:
        whole = {**super().completion(prompt, choices, generations), "stats": {}}
        return {**whole, "system_fingerprint": prompt.name}

    @override
    def error_frame(self, message: str, head: dict[str, Any]) -> bytes:
        return _error_event(message)


def _error_event(message: str) -> bytes:
    data = {"error": {"message": message}, "message": message}
    return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"


def v0_entry(model: FakeModel) -> dict[str, Any]:
    entry = {
        "id": model.id,
        "object": "model",
        "type": "embeddings" if model.embedding else ("vlm" if model.vision else "llm"),
        "publisher": "fake",
        "arch": "qwen2",
        "compatibility_type": "gguf",
        "quantization": "Q4_K_M",
        "state": "loaded" if model.loaded else "not-loaded",
        "max_context_length": model.trained_window,
    }
    loaded = {"loaded_context_length": model.window} if model.loaded else {}
    return {**entry, **loaded, "capabilities": ["tool_use"] if model.tools else []}

"""What llama-server tells of itself, and its router mode."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from tests.fakes import llamacpp_wire as wire
from tests.fakes.chat import CREATED, FakeBackend
from tests.fakes.http import Exchange
from tests.fakes.model import FakeModel, Refused

BUILD = "b11549-fake"
"""What `/props` tells of a file that has no template, as b11549 does."""


class LlamaCppInfo(FakeBackend):
    """Listing, properties, slots, and exact counts."""

    slots: int = 1
    """Number of slots reported; each has the model's window."""
    loading: bool = False
    """Every path answers 503 until it is set to False."""
    list_n_ctx: bool = True
    """Older builds leave `meta.n_ctx` out of the list."""

    def add_info_routes(self) -> None:
        """Routes of this class."""
        self._ids: dict[str, int] = {}
        gets = {
            "/health": self.health,
            "/v1/health": self.health,
            "/props": self.props,
            "/slots": self.slot_list,
            "/models": self.model_list,
            "/v1/models": self.model_list,
            "/metrics": self.metrics,
        }
        posts = {
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/apply-template": self.apply_template,
            "/v1/chat/completions/input_tokens": self.input_tokens,
            "/v1/messages/count_tokens": self.input_tokens,
            "/chat/completions": self.chat,
        }
        self.routes |= {f"GET {path}": handler for path, handler in gets.items()}
        self.routes |= {f"POST {path}": handler for path, handler in posts.items()}

    @override
    def precheck(self, exchange: Exchange) -> None:
        if self.loading:
            raise Refused(503, self.error(503, "Loading model", "unavailable_error"))

    @override
    def same_name(self, model: FakeModel, name: object) -> bool:
        return True  # one model, whatever name the request gives

    @override
    def reply_name(self, body: dict[str, Any], model: FakeModel) -> str:
        return model.id

    async def health(self, exchange: Exchange) -> None:
        """`GET /health`."""
        await exchange.answer(200, {"status": "ok"})

    async def metrics(self, exchange: Exchange) -> None:
        """`GET /metrics`."""
        text = f"llamacpp:requests_processing {self.active - 1}\n".encode()
        await exchange.answer(200, text, [("content-type", "text/plain; version=0.0.4")])

    async def props(self, exchange: Exchange) -> None:
        """`GET /props`."""
        await exchange.answer(200, self.properties(self.models[0]))

    def properties(self, model: FakeModel) -> dict[str, Any]:
        """The object of `/props`."""
        told = wire.properties(model.id, model.window, slots=self.slots, tools=model.tools, vision=model.vision)
        return told | {
            "endpoint_slots": True,
            "endpoint_props": True,
            "endpoint_metrics": True,
            "chat_template": "{%- for m in messages -%}{{- m.content -}}{%- endfor -%}",
            "bos_token": "<|bos|>",
            "eos_token": "<|end|>",
            "build_info": BUILD,
        }

    async def slot_list(self, exchange: Exchange) -> None:
        """`GET /slots`."""
        busy = self.active - 1
        window = self.models[0].window
        slots = [wire.slot(number, window, busy=number < busy) for number in range(self.slots)]
        await exchange.answer(200, slots)

    async def model_list(self, exchange: Exchange) -> None:
        """`GET /v1/models`."""
        model = self.models[0]
        empty = dict.fromkeys(("modified_at", "size", "digest", "description", "parameters"), "")
        ollama_like: dict[str, Any] = {"name": model.id, "model": model.id, **empty, "type": "model", "tags": [""]}
        ollama_like |= {"capabilities": ["completion"], "details": {"format": "gguf", "family": ""}}
        data = [{**wire.model_object(model.id, CREATED), "meta": self.meta(model)}]
        await exchange.answer(200, {"models": [ollama_like], "object": "list", "data": data})

    def meta(self, model: FakeModel) -> dict[str, Any]:
        """What a loaded model tells."""
        meta = {"vocab_type": 2, "n_vocab": 32000, "n_ctx": model.window, "n_ctx_train": model.trained_window}
        if not self.list_n_ctx:
            del meta["n_ctx"]
        return {**meta, "n_embd": 128, "n_params": 1_000_000, "size": 2_000_000, "ftype": "F16"}

    async def input_tokens(self, exchange: Exchange) -> None:
        """`POST /v1/chat/completions/input_tokens` and `/v1/messages/count_tokens`."""
        count = self.count(exchange.json_object())
        whole = {"input_tokens": count, "object": "response.input_tokens"}
        anthropic = exchange.request.path.endswith("count_tokens")
        await exchange.answer(200, {"input_tokens": count} if anthropic else whole)

    async def tokenize(self, exchange: Exchange) -> None:
        """`POST /tokenize`."""
        body = exchange.json_object()
        pieces = self.template(self.models[0]).tokenizer.pieces(str(body.get("content", "")))
        ids = [self._ids.setdefault(piece, len(self._ids) + 1) for piece in pieces]
        pairs = [{"id": id_, "piece": piece} for id_, piece in zip(ids, pieces, strict=True)]
        await exchange.answer(200, {"tokens": pairs if body.get("with_pieces") else ids})

    async def detokenize(self, exchange: Exchange) -> None:
        """`POST /detokenize`: of tokens that `/tokenize` gave."""
        known = {id_: piece for piece, id_ in self._ids.items()}
        tokens = exchange.json_object().get("tokens") or []
        await exchange.answer(200, {"content": "".join(known.get(token, "") for token in tokens)})

    async def apply_template(self, exchange: Exchange) -> None:
        """`POST /apply-template`."""
        body = exchange.json_object()
        prompt = self.parse(body, self.find_model(body))
        await exchange.answer(200, {"prompt": "".join(self.parts(prompt))})


class LlamaCppRouter(LlamaCppInfo):
    """Router mode: started without a model, it loads those that are asked for."""

    router: bool = False
    autoload: bool = True

    def add_router_routes(self) -> None:
        """Routes of this class."""
        self.loads: list[str] = []
        """Models loaded since the start, by whatever request."""
        if self.router:
            self.routes["POST /models/load"] = self.load_model
            self.routes["POST /models/unload"] = self.unload_model

    @override
    def same_name(self, model: FakeModel, name: object) -> bool:
        return not self.router or model.id == name

    @override
    def no_model(self, name: object) -> Refused:
        return Refused(400, self.error(400, f"model '{name}' not found"))

    @override
    def load(self, model: FakeModel) -> None:
        if self.router and not model.loaded:
            if not self.autoload:
                raise Refused(400, self.error(400, "model is not loaded"))
            self.loads.append(model.id)
        super().load(model)

    @override
    async def props(self, exchange: Exchange) -> None:
        if not self.router:
            await super().props(exchange)
            return
        name = exchange.request.params.get("model")
        if name is None:
            settings = {"params": None, "n_ctx": 0}
            whole = {"role": "router", "max_instances": 4, "default_generation_settings": settings}
            await exchange.answer(200, {**whole, "model_alias": "llama-server", "build_info": BUILD})
            return
        model = self.find_model({"model": name})
        if not model.loaded and exchange.request.params.get("autoload") == "false":
            raise Refused(400, self.error(400, "model is not loaded"))
        self.load(model)
        await exchange.answer(200, self.properties(model))

    @override
    async def model_list(self, exchange: Exchange) -> None:
        if not self.router:
            await super().model_list(exchange)
            return
        await exchange.answer(200, {"object": "list", "data": [self._routed(model) for model in self.models]})

    def _routed(self, model: FakeModel) -> dict[str, Any]:
        state = {"value": "loaded" if model.loaded else "unloaded", "args": ["llama-server"]}
        entry = {**wire.model_object(model.id, CREATED), "status": state}
        return {**entry, "meta": self.meta(model)} if model.loaded else entry

    async def load_model(self, exchange: Exchange) -> None:
        """`POST /models/load`."""
        model = self.find_model(exchange.json_object())
        self.loads.append(model.id)
        model.loaded = True
        await exchange.answer(200, {"success": True})

    async def unload_model(self, exchange: Exchange) -> None:
        """`POST /models/unload`."""
        self.find_model(exchange.json_object()).loaded = False
        await exchange.answer(200, {"success": True})

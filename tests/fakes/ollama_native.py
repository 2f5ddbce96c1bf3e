"""Ollama's own API: NDJSON streams, what is installed, what is loaded."""

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from tests.fakes.chat import CREATED, FakeBackend, joined, vector
from tests.fakes.generation import Broken, Delta, Dropped, Generation, grouped
from tests.fakes.http import NDJSON, Exchange
from tests.fakes.model import FakeModel, Prompt, Refused
from tests.fakes.stream import pace
from tests.fakes.waiting import HEADERS

"""Namespace of names without one."""
VERSION = "0.33.0"
WHEN = "2026-01-01T00:00:00Z"
GEOMETRY = {
    "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8, "llama.block_count": 32,
    "llama.embedding_length": 4096,
}  # fmt: skip
"""Of Llama 3 8B, as `/api/show` has it (docs/api.md)."""
CACHE = 2 * 32 * 8 * (128 + 128)
"""Bytes for one token of its window, in 16 bits."""


def _size(model: FakeModel, window: int) -> int:
    return model.size + CACHE * window


class OllamaNative(FakeBackend):
    """`/api/*`, and the lists of `/v1`."""

    lists_capabilities: bool = True
    """As the older versions do not: there only the template tells."""

    memory: tuple[int, int] | None = None
    """Bytes of the GPU and of the machine; what needs more than both is not loaded. None: enough for everything."""

    names_calls: bool = True
    """Calls have ids, as since 0.12."""

    def num_ctx(self, model: FakeModel, body: dict[str, Any]) -> int:
        raise NotImplementedError

    def add_native_routes(self) -> None:
        self.running: dict[str, int] = {}
        """Window of each loaded model, in tokens."""
        self.reloads = 0
        """Times a loaded model was loaded again because a request asked for another window."""
        gets = {
            "/": self.hello, "/api/version": self.version, "/api/tags": self.tags, "/api/ps": self.loaded_list,
            "/v1/models": self.openai_list,
        }  # fmt: skip
        posts = {
            "/api/show": self.show, "/api/chat": self.native_chat, "/api/generate": self.generate, "/api/embed": self.embed,
        }  # fmt: skip
        self.routes |= {f"GET {path}": handler for path, handler in gets.items()}
        self.routes |= {f"POST {path}": handler for path, handler in posts.items()}
        for model in self.models:
            if model.loaded:
                self.running[model.id] = self.num_ctx(model, {})

    def run(self, model: FakeModel, body: dict[str, Any]) -> None:
        """Load the model with the window of this request, again if it is another one."""
        window = self.num_ctx(model, body)
        if self.memory is not None and _size(model, window) > sum(self.memory):
            text = "model requires more system memory (9.9 GiB) than is available (5.5 GiB)"
            raise Refused(500, self.error(500, text))
        self.reloads += self.running.get(model.id, window) != window
        self.running[model.id] = window
        model.loaded = True

    # Telling of itself

    async def hello(self, exchange: Exchange) -> None:
        await exchange.answer(200, b"Ollama is running", [("content-type", "text/plain; charset=utf-8")])

    async def version(self, exchange: Exchange) -> None:
        await exchange.answer(200, {"version": VERSION})

    async def tags(self, exchange: Exchange) -> None:
        """`GET /api/tags`: trained windows."""
        models = [
            {
                **_entry(model), "modified_at": WHEN, "details": {**_details(), "context_length": model.trained_window},
                **self._told(model),
            }
            for model in self.models
        ]  # fmt: skip
        await exchange.answer(200, {"models": models})

    async def loaded_list(self, exchange: Exchange) -> None:
        """`GET /api/ps`: effective windows of loaded models."""
        models = [
            {**_entry(model), "details": _details(), "expires_at": WHEN, **self._sizes(model), **self._loaded_window(model)}
            for model in self.models
            if model.loaded
        ]
        await exchange.answer(200, {"models": models})

    def _sizes(self, model: FakeModel) -> dict[str, int]:
        size = _size(model, self.running.get(model.id, 0))
        return {"size": size, "size_vram": size if self.memory is None else min(size, self.memory[0])}

    def _loaded_window(self, model: FakeModel) -> dict[str, int]:
        return {"context_length": self.running.get(model.id, self.num_ctx(model, {}))}

    async def show(self, exchange: Exchange) -> None:
        body = exchange.json_object()
        model = self.find_model({"model": body.get("model") or body.get("name")})
        lines = ['stop                           "<|end|>"']
        if model.num_ctx is not None:
            lines.insert(0, f"num_ctx                        {model.num_ctx}")
        info = {"general.architecture": "llama", "llama.context_length": model.trained_window, **GEOMETRY}
        template = ("{{ .Tools }}" if model.tools else "") + "{{ .Prompt }}{{ .Response }}"
        whole = {"modelfile": "", "parameters": "\n".join(lines), "template": template}
        shown = {"details": _details(), "model_info": info, **self._told(model)}
        await exchange.answer(200, {**whole, **shown, "modified_at": WHEN})

    def _told(self, model: FakeModel) -> dict[str, list[str]]:
        return {"capabilities": capabilities(model)} if self.lists_capabilities else {}

    async def openai_list(self, exchange: Exchange) -> None:
        await exchange.answer(200, {"object": "list", "data": [_openai_entry(model) for model in self.models]})

    # Chat and generate

    async def native_chat(self, exchange: Exchange) -> None:
        body = exchange.json_object()
        model = self.find_model(body)
        if not body.get("messages"):
            done = {"message": {"role": "assistant", "content": ""}, **self._load_or_unload(model, body)}
            await exchange.answer(200, {"model": model.id, "created_at": WHEN, **done})
            return
        await self._answer_natively(exchange, self._native_prompt(body), self._chat_fields)

    async def generate(self, exchange: Exchange) -> None:
        """`POST /api/generate`: the brain is shown the prompt as a user message."""
        body = exchange.json_object()
        if not body.get("prompt"):
            model = self.find_model(body)
            done = {"response": "", **self._load_or_unload(model, body)}
            await exchange.answer(200, {"model": model.id, "created_at": WHEN, **done})
            return
        system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        messages = [*system, {"role": "user", "content": str(body.get("prompt", ""))}]
        prompt = self._native_prompt({**body, "messages": messages})
        await self._answer_natively(exchange, prompt, _generate_fields)

    def _load_or_unload(self, model: FakeModel, body: dict[str, Any]) -> dict[str, Any]:
        """A request without a prompt only loads the model; with `keep_alive: 0` it only unloads it."""
        if body.get("keep_alive") == 0:
            model.loaded = False
            self.running.pop(model.id, None)
            return {"done_reason": "unload", "done": True}
        self.run(model, body)
        return {"done_reason": "load", "done": True}

    def _native_prompt(self, body: dict[str, Any]) -> Prompt:
        self.run(self.find_model(body), body)
        options = body.get("options") or {}
        bound = options.get("num_predict", -1)
        own = {"max_tokens": bound if bound > 0 else None, "stop": options.get("stop")}
        think = {True: "high", False: "none"}.get(body["think"], body["think"]) if "think" in body else None
        messages = [_as_chat(message, index) for index, message in enumerate(body["messages"])]
        shown = {**body, **own, "messages": messages, "reasoning_effort": think}
        return self.take_body({**shown, "stream": body.get("stream", True)})

    async def _answer_natively(self, exchange: Exchange, prompt: Prompt, fields: Any) -> None:
        head = {"model": prompt.name, "created_at": WHEN}
        generation = self.generation(prompt)
        lines = _Lines(exchange)
        if prompt.stream and not self.late_headers:
            await lines.write(b"")
        try:
            if generation.reply.raw is not None:
                for index, piece in enumerate(generation.reply.raw):
                    await pace(self, generation, index)
                    await lines.write(piece)
            elif prompt.stream:
                await self._lines(lines, head, generation, fields)
                await lines.write(_line({**head, **fields([]), **_done(prompt, generation)}))
            else:
                deltas = await self.collect(generation)
                await exchange.answer(200, {**head, **fields(deltas), **_done(prompt, generation)})
                return
        except Dropped:
            await exchange.cut()
            return
        except Broken as broken:
            if not lines.opened:
                await exchange.answer(500, {"error": str(broken)})
                return
            await lines.write(_line({"error": str(broken)}))
        await exchange.close(hang_up=self.hangs_up)

    async def _lines(self, lines: "_Lines", head: dict[str, Any], generation: Generation, fields: Any) -> None:
        await pace(self, generation, HEADERS)
        call: list[Delta] = []
        for index, delta in enumerate(grouped(iter(generation), self.tokens_per_chunk)):
            await pace(self, generation, index)
            if delta.kind == "call":
                call = [delta] if delta.first else [*call, delta]
                if not delta.last:
                    continue
            generation.sent += delta.tokens
            await lines.write(_line({**head, **fields(call if delta.kind == "call" else [delta]), "done": False}))

    def _chat_fields(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": joined(deltas, "content")}
        if thinking := joined(deltas, "reasoning"):
            message["thinking"] = thinking
        texts: dict[int, str] = {}
        for delta in deltas:
            if delta.kind == "call":
                texts[delta.index] = texts.get(delta.index, "") + delta.text
        calls = []
        for delta in deltas:
            if delta.first and delta.call is not None and _is_json(texts[delta.index]):
                arguments = orjson.loads(texts[delta.index] or "{}")
                function = {"index": delta.index, "name": delta.call.name, "arguments": arguments}
                calls.append({**({"id": self.call_id(delta)} if self.names_calls else {}), "function": function})
        return {"message": {**message, "tool_calls": calls} if calls else message}

    # The rest

    async def embed(self, exchange: Exchange) -> None:
        body = exchange.json_object()
        given = body.get("input")
        texts = given if isinstance(given, list) else [given]
        vectors = [vector(str(text)) for text in texts]
        await exchange.answer(200, {"model": body.get("model"), "embeddings": vectors})


def capabilities(model: FakeModel) -> list[str]:
    """What a model can do, in Ollama's words."""
    able = {
        "embedding": model.embedding, "completion": not model.embedding, "tools": model.tools, "vision": model.vision,
        "thinking": model.thinking,
    }  # fmt: skip
    return [name for name, has in able.items() if has]


class _Lines:
    """A stream whose status goes out with its first line (`streamResponse`)."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.opened = False

    async def write(self, line: bytes) -> None:
        if not self.opened:
            self.opened = True
            await self._exchange.open(200, NDJSON)
        await self._exchange.write(line)


_TYPES: dict[str, type] = {"role": str, "content": str, "thinking": str, "images": list, "tool_calls": list}


def _as_chat(message: Any, index: int) -> dict[str, Any]:
    """A message as the rest of the fake reads it; refused with what is of another type than `api.Message` has it."""
    for name, kind in _TYPES.items():
        if not isinstance(message.get(name, kind()), kind):
            text = f"json: cannot unmarshal value into Go struct field ChatRequest.messages.{name}"
            raise Refused(400, {"error": text})
    said = {name: message[name] for name in ("role", "content", "tool_call_id") if name in message}
    if message.get("thinking"):
        said["reasoning"] = message["thinking"]
    if images := message.get("images"):
        parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
        said["content"] = [{"type": "text", "text": message.get("content", "")}, *parts]
    if calls := message.get("tool_calls"):
        said["tool_calls"] = [_call_as_chat(call, f"call_{index}_{at}") for at, call in enumerate(calls)]
    return said


def _call_as_chat(call: dict[str, Any], made: str) -> dict[str, Any]:
    function = call["function"]
    if not isinstance(function["arguments"], dict):
        raise Refused(400, {"error": "json: cannot unmarshal string into Go value of type map"})
    named = {"name": function["name"], "arguments": orjson.dumps(function["arguments"]).decode()}
    return {"id": call.get("id", made), "type": "function", "function": named}


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return False
    return True


def _entry(model: FakeModel) -> dict[str, Any]:
    name = model.id if ":" in model.id else f"{model.id}:latest"
    digest = hashlib.sha256(model.id.encode()).hexdigest()
    return {"name": name, "model": name, "size": model.size, "digest": digest}


def _details() -> dict[str, Any]:
    return {
        "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"], "parameter_size": "1B",
        "quantization_level": "Q4_K_M",
    }  # fmt: skip


def _openai_entry(model: FakeModel) -> dict[str, Any]:
    owner = model.id.rpartition("/")[0].rpartition("/")[2] or "library"  # the namespace of its name
    return {"id": _entry(model)["name"], "object": "model", "created": CREATED, "owned_by": owner}


def _generate_fields(deltas: Sequence[Delta]) -> dict[str, Any]:
    return {"response": joined(deltas, "content")}


def _done(prompt: Prompt, generation: Generation) -> dict[str, Any]:
    reason = "stop" if generation.finish == "tool_calls" else generation.finish
    reported = generation.reply.usage or {}
    counts = {
        "prompt_eval_count": reported.get("prompt_tokens", prompt.tokens),
        "eval_count": reported.get("completion_tokens", generation.tokens),
    }
    times = {"total_duration": 3, "load_duration": 1, "prompt_eval_duration": 1, "eval_duration": 1}
    return {"done": True, "done_reason": reason, **times, **counts}


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"

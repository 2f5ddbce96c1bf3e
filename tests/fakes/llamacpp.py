"""llama.cpp's llama-server, as measured on b11549."""

from collections.abc import Sequence
from typing import Any, ClassVar

from typing_extensions import override

from proxy.core.request import text_of
from tests.fakes import llamacpp_wire as wire
from tests.fakes.chat import CREATED, FakeBackend
from tests.fakes.generation import Delta, Generation
from tests.fakes.http import Exchange
from tests.fakes.intake import last_is_assistant
from tests.fakes.model import FakeModel, Prompt, Refused

PROGRESS_STEPS = 2
"""Chunks of progress sent while a prompt is being read."""
BUILD = "b11549-fake"
POOL_FULL = "Context size has been exceeded."
"""What ends all that run in slots which share a window."""


class LlamaCppFake(FakeBackend):
    """`n_ctx` of a slot is the model's window; a trailing assistant message is continued without being asked.

    The text continued is repeated in whole answers only. Prompts of `n_ctx` tokens and more are refused.
    """

    kind: ClassVar[str] = "llamacpp"
    comment = b":\n\n"
    fingerprint = "b11549-fake"
    first_delta: dict[str, Any] | None = {"role": "assistant", "content": None}  # noqa: RUF012 - replaced, never changed
    hangs_up = True
    keep_alive = 5.0

    prefill_assistant: bool = True
    """`--no-prefill-assistant` makes a trailing assistant message a finished turn."""
    slots: int = 1
    """Number of slots reported; each has the model's window."""
    saves: bool = False
    """Started with `--slot-save-path`."""
    clears: bool = False
    """Moves idle slots to memory when a task begins (`--cache-idle-slots`, the default with `--kv-unified`)."""
    slot_ms: float = 0.1
    """What a slot takes to be saved or restored, by what is reported."""
    token_ms: float = 1.0
    """What reading or writing a token takes, by its own account."""
    router: bool = False
    """Started without a model, it loads those that are asked for."""

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.loads: list[str] = []
        """Models loaded since the start, by whatever request."""
        gets = {
            "/health": self.health, "/props": self.props, "/slots": self.slot_list, "/models": self.model_list,
            "/v1/models": self.model_list,
        }  # fmt: skip
        posts = {
            "/v1/chat/completions/input_tokens": self.input_tokens,
            "/v1/messages/count_tokens": self.input_tokens,
            "/chat/completions": self.chat,
        }
        self.routes |= {f"GET {path}": handler for path, handler in gets.items()}
        self.routes |= {f"POST {path}": handler for path, handler in posts.items()}
        self.working: list[int] = []
        """The slots that answers are made in."""
        self.held = [(0, 0)] * self.slots
        """Number of the newest task in each slot, 0 for none since the start, and the tokens there."""
        self.saved: dict[str, int] = {}
        """Tokens in each file."""
        self.acted: list[str] = []
        """What was done to slots, with its file."""
        for number in range(self.slots):
            self.routes[f"POST /slots/{number}"] = self.slot_action
        if self.router:
            self.routes["POST /models/unload"] = self.unload_model

    @override
    def common_headers(self) -> list[tuple[str, str]]:
        return [("server", "llama.cpp"), ("access-control-allow-origin", ""), ("keep-alive", "timeout=5, max=100")]

    @override
    def stream_headers(self) -> list[tuple[str, str]]:
        return [("x-accel-buffering", "no")]

    @override
    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        return wire.error(status, message, type_, **extra)

    @override
    def unauthorized(self) -> Refused:
        return Refused(401, self.error(401, "Invalid API Key"))

    @override
    def malformed(self) -> Refused:
        text = "[json.exception.parse_error.101] parse error at line 1, column 1: syntax error"
        return Refused(400, self.error(400, text))

    @override
    def open_paths(self) -> set[str]:
        return {"/health"}

    @override
    async def unknown(self, exchange: Exchange) -> None:
        await exchange.answer(404, self.error(404, "File Not Found"))

    # Telling of itself

    @override
    def same_name(self, model: FakeModel, name: object) -> bool:
        return not self.router or model.id == name  # without a router one model, whatever name the request gives

    @override
    def reply_name(self, body: dict[str, Any], model: FakeModel) -> str:
        return model.id

    @override
    def no_model(self, name: object) -> Refused:
        return Refused(400, self.error(400, f"model '{name}' not found"))

    @override
    def load(self, model: FakeModel) -> None:
        if self.router and not model.loaded:
            self.loads.append(model.id)
        super().load(model)

    async def health(self, exchange: Exchange) -> None:
        await exchange.answer(200, {"status": "ok"})

    async def props(self, exchange: Exchange) -> None:
        if not self.router:
            await exchange.answer(200, self.properties(self.models[0]))
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

    def properties(self, model: FakeModel) -> dict[str, Any]:
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

    async def slot_action(self, exchange: Exchange) -> None:
        """`POST /slots/N?action=save|restore|erase`; a file holds as many bytes as it holds tokens, and 40."""
        number, action = int(exchange.request.path.rpartition("/")[2]), exchange.request.params["action"]
        task, held = self.held[number]
        if not self.saves:
            text = "This server does not support slots action. Start it with `--slot-save-path`"
            raise Refused(501, self.error(501, text, "not_supported_error"))
        done: dict[str, Any] = {"id_slot": number}
        if action == "erase":
            done["n_erased"], self.held[number] = held, (task, 0)
            await exchange.answer(200, done)
            return
        if not (name := exchange.json_object().get("filename")):
            raise Refused(400, self.error(400, "[json.exception.out_of_range.403] key 'filename' not found"))
        if action == "restore" and name not in self.saved:
            text = "Unable to restore slot: No available space in KV cache or invalid slot save file"
            raise Refused(400, self.error(400, text))
        if action == "save":
            self.saved[name] = held
        self.held[number] = task, (count := self.saved[name])
        self.acted.append(f"{action} {name}")
        verbs = ("saved", "written") if action == "save" else ("restored", "read")
        done |= {"filename": name, f"n_{verbs[0]}": count, f"n_{verbs[1]}": count + 40}
        await exchange.answer(200, {**done, "timings": {f"{action}_ms": self.slot_ms}})

    async def slot_list(self, exchange: Exchange) -> None:
        window = self.models[0].window
        slots = [
            wire.slot(number, window, busy=number in self.working, task=task, tokens=held)
            for number, (task, held) in enumerate(self.held)
        ]
        await exchange.answer(200, slots)

    async def model_list(self, exchange: Exchange) -> None:
        if self.router:
            await exchange.answer(200, {"object": "list", "data": [self._routed(model) for model in self.models]})
            return
        model = self.models[0]
        empty = dict.fromkeys(("modified_at", "size", "digest", "description", "parameters"), "")
        ollama_like: dict[str, Any] = {"name": model.id, "model": model.id, **empty, "type": "model", "tags": [""]}
        ollama_like |= {"capabilities": ["completion"], "details": {"format": "gguf", "family": ""}}
        data = [{**wire.model_object(model.id, CREATED), "meta": self.meta(model)}]
        await exchange.answer(200, {"models": [ollama_like], "object": "list", "data": data})

    def meta(self, model: FakeModel) -> dict[str, Any]:
        """What a loaded model tells."""
        meta = {"vocab_type": 2, "n_vocab": 32000, "n_ctx": model.window, "n_ctx_train": model.trained_window}
        return {**meta, "n_embd": 128, "n_params": 1_000_000, "size": 2_000_000, "ftype": "F16"}

    async def input_tokens(self, exchange: Exchange) -> None:
        """`POST /v1/chat/completions/input_tokens` and `/v1/messages/count_tokens`."""
        count = self.count(exchange.json_object())
        whole = {"input_tokens": count, "object": "response.input_tokens"}
        anthropic = exchange.request.path.endswith("count_tokens")
        await exchange.answer(200, {"input_tokens": count} if anthropic else whole)

    def _routed(self, model: FakeModel) -> dict[str, Any]:
        state = {"value": "loaded" if model.loaded else "unloaded", "args": ["llama-server"]}
        entry = {**wire.model_object(model.id, CREATED), "status": state}
        return {**entry, "meta": self.meta(model)} if model.loaded else entry

    async def unload_model(self, exchange: Exchange) -> None:
        self.find_model(exchange.json_object()).loaded = False
        await exchange.answer(200, {"success": True})

    # Taking a request in

    @override
    def limit(self, body: dict[str, Any]) -> int | None:
        return wire.limit(body)

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        wire.check_body(body, vision=model.vision, prefill=self.prefill_assistant)
        # A chat template without tools leaves them out, and nothing tells of it.
        return super().parse(body if model.tools else {**body, "tools": None}, model)

    @override
    def continuation(self, prompt: Prompt) -> None:
        asked = prompt.body.get("continue_final_message") or self.prefill_assistant
        if asked and last_is_assistant(prompt.messages):
            self.take_trailing(prompt)
            prompt.echo = not prompt.stream

    @override
    def take_trailing(self, prompt: Prompt) -> None:
        parts = text_of(prompt.messages[-1])
        super().take_trailing(prompt)
        prompt.prefix = parts

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        return Refused(400, wire.window_exceeded(prompt.tokens, prompt.model.window), overflow=True)

    # Answering

    @override
    async def chat(self, exchange: Exchange) -> None:
        exchange.sticky = exchange.request.header("x-conversation-id") is not None
        free = next((number for number in range(self.slots) if number not in self.working), 0)
        number = (exchange.request.json or {}).get("id_slot", free)
        self.working.append(number)
        try:
            await super().chat(exchange)
        finally:
            self.working.remove(number)

    @override
    def content_beside_calls(self) -> str | None:
        return ""

    @override
    def head(self, prompt: Prompt, object_: str) -> dict[str, Any]:
        return {
            "created": CREATED, "id": self.next_id(), "model": prompt.name, "system_fingerprint": self.fingerprint,
            "object": object_,
        }  # fmt: skip

    @override
    def envelope(self, head: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"choices": choices, **head}

    @override
    def choice(self, index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"finish_reason": finish, "index": index, "delta": delta}

    @override
    def whole_choice(self, index: int, message: dict[str, Any], finish: str) -> dict[str, Any]:
        return {"finish_reason": finish, "index": index, "message": message}

    @override
    def message(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        message = super().message(deltas)
        for call in message.get("tool_calls", ()):
            call["id"] = call.pop("id")  # the id comes last
        return message

    @override
    def completion(self, prompt: Prompt, choices: list[dict[str, Any]], generations: Sequence[Generation]) -> dict[str, Any]:
        if prompt.echo and prompt.prefix_reasoning:
            message = choices[0]["message"]
            message["reasoning_content"] = prompt.prefix_reasoning + message.get("reasoning_content", "")
        whole = super().completion(prompt, choices, generations)
        return {**whole, "timings": self.timings(prompt, generations[0])}

    @override
    def usage(self, prompt: Prompt, generations: Sequence[Generation]) -> dict[str, Any]:
        usage, number = super().usage(prompt, generations), prompt.body.get("id_slot", 0)
        if self.clears:
            self.held = [(task, 0) for task, _ in self.held]
        self.held[number] = max(self.held)[0] + 1, usage["total_tokens"] - 1
        return usage

    @override
    def usage_details(self, prompt: Prompt, generations: Sequence[Generation]) -> dict[str, Any]:
        return {"prompt_tokens_details": {"cached_tokens": prompt.cached}}

    @override
    def preface(self, prompt: Prompt) -> Sequence[dict[str, Any]]:
        if not prompt.body.get("return_progress"):
            return ()
        fresh = prompt.tokens - prompt.cached
        steps = [prompt.cached + fresh * step // PROGRESS_STEPS for step in range(PROGRESS_STEPS + 1)]
        return [
            {"prompt_progress": {"total": prompt.tokens, "cache": prompt.cached, "processed": at, "time_ms": 1}} for at in steps
        ]

    @override
    def decorate(self, chunk: dict[str, Any], prompt: Prompt, generation: Generation | None) -> None:
        if "prompt_progress" in chunk and prompt.body.get("timings_per_token"):
            chunk["timings"] = self.timings(prompt, None)
        if generation is None:
            return
        asked = self.wants_usage(prompt)
        ends = bool(chunk["choices"]) and chunk["choices"][0]["finish_reason"] is not None
        per_token = bool(chunk["choices"]) and not ends and prompt.body.get("timings_per_token")
        if "usage" in chunk or per_token or (ends and not asked):
            chunk["timings"] = self.timings(prompt, generation)

    def timings(self, prompt: Prompt, generation: Generation | None) -> dict[str, Any]:
        return wire.timings(prompt.tokens, generation.tokens if generation else 0, prompt.cached, token_ms=self.token_ms)

"""vLLM 0.33."""

from collections.abc import Sequence
from typing import Any, ClassVar

from typing_extensions import override

from tests.fakes.chat import CREATED, FakeBackend
from tests.fakes.generation import Delta, Generation
from tests.fakes.http import Exchange
from tests.fakes.intake import last_is_assistant
from tests.fakes.model import FakeModel, Prompt, Refused

TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


class VllmFake(FakeBackend):
    """`max_model_len` is the model's window. Partial answers are continued only when flags ask for it.

    A prompt longer than the window is refused, one of exactly its length gets an answer of no tokens, and
    `max_tokens` is clamped to the room left; above the window itself it is refused (seen on 0.32).
    """

    kind: ClassVar[str] = "vllm"
    reasoning_field: str = "reasoning"
    done_after_error = True
    finish_with_content: bool = True
    tokens_per_chunk: int | tuple[int, ...] = (1, 1, 1, 5, 1, 2)
    """Where its API server lags behind the engine, or a client behind that, a delta holds all that was made since the last one (0.32)."""
    comment = b": keep-alive\n\n"

    tool_parser: bool = True
    """Started with `--enable-auto-tool-choice` and a parser."""
    reasoning_config: bool = True
    """Knows the marks of thoughts, and so can bound them."""
    strips_prefix: bool = True
    """White space at the end of what is continued is lost, as with templates that trim."""

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.routes["GET /v1/models"] = self.model_list
        self.routes["POST /tokenize"] = self.tokenize

    @override
    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        own = {"message": message, "type": TYPES.get(status, "BadRequestError"), "param": None}
        return {"error": {**own, "code": status, **extra}}

    @override
    def unauthorized(self) -> Refused:
        return Refused(401, {"error": "Unauthorized"})

    @override
    def open_paths(self) -> set[str]:
        return {"/tokenize"}

    @override
    async def unknown(self, exchange: Exchange) -> None:
        await exchange.answer(404, {"detail": "Not Found"})

    @override
    def no_model(self, name: object) -> Refused:
        return Refused(404, self.error(404, f"The model `{name}` does not exist.", param="model"))

    # Telling of itself

    async def model_list(self, exchange: Exchange) -> None:
        data: list[dict[str, Any]] = [
            {
                "id": model.id, "object": "model", "created": CREATED, "owned_by": "vllm", "root": model.id, "parent": None,
                "max_model_len": model.window, "permission": [],
            }
            for model in self.models
        ]  # fmt: skip
        await exchange.answer(200, {"object": "list", "data": data})

    async def tokenize(self, exchange: Exchange) -> None:
        """`POST /tokenize`, of a prompt or of a whole chat."""
        body = exchange.json_object()
        model = self.find_model(body)
        parts = self.parts(self.parse(body, model)) if "messages" in body else [str(body.get("prompt", ""))]
        count = self.template(model).count(parts)
        counts = {"count": count, "max_model_len": model.window}
        await exchange.answer(200, {**counts, "tokens": list(range(count)), "token_strs": None})

    # Taking a request in

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        auto = body.get("tools") and body.get("tool_choice", "auto") == "auto"
        if auto and not self.tool_parser:
            text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            raise Refused(400, self.error(400, text))
        if "thinking_token_budget" in body and not self.reasoning_config:
            text = (
                "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or "
                "--reasoning-config to use thinking_token_budget."
            )
            raise Refused(400, self.error(400, text))
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(body.get(name), int) and body[name] < 1:
                raise Refused(400, self._too_short_answer(body[name]))
        return super().parse(body, model)

    @override
    def continuation(self, prompt: Prompt) -> None:
        if not prompt.body.get("continue_final_message"):
            return
        if prompt.body.get("add_generation_prompt", True):
            text = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            raise Refused(400, self.error(400, text))
        if prompt.model.template_drops_last:
            text = (
                "continue_final_message is set but the final message does not appear in the chat "
                "after applying the chat template!"
            )
            raise Refused(400, self.error(400, text))
        if last_is_assistant(prompt.messages):
            self.take_trailing(prompt)
            prompt.prefix = prompt.prefix.rstrip() if self.strips_prefix else prompt.prefix
            prompt.echo = bool(prompt.body.get("echo"))

    @override
    def fit(self, prompt: Prompt) -> None:
        window = prompt.model.window
        if (prompt.limit or 0) > window:
            raise Refused(400, self._too_long_answer(prompt), overflow=True)
        if prompt.tokens > window:
            raise self.overflow(prompt)
        prompt.room = window - prompt.tokens

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        window = prompt.model.window
        text = (
            f"This model's maximum context length is {window} tokens. However, your prompt contains at least {window + 1} "
            "input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        return Refused(400, self.error(400, text, param="input_tokens"), overflow=True)

    def _too_short_answer(self, limit: int) -> Any:
        text = f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})"
        return self.error(400, text, param="max_tokens")

    def _too_long_answer(self, prompt: Prompt) -> Any:
        name = "max_completion_tokens" if "max_completion_tokens" in prompt.body else "max_tokens"
        text = (
            f"{name}={prompt.limit} cannot be greater than max_model_len={prompt.model.window}. "
            f"Please request fewer output tokens. (parameter={name}, value={prompt.limit})"
        )
        return self.error(400, text, param=name)

    # Answering

    @override
    def message(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        # 0.32 names what there is none of, except calls.
        names = ("role", "content", "refusal", "annotations", "audio", "function_call", "reasoning")
        return {**dict.fromkeys(names), **super().message(deltas)}

    @override
    def whole_choice(self, index: int, message: dict[str, Any], finish: str) -> dict[str, Any]:
        return {**super().whole_choice(index, message, finish), "logprobs": None, "stop_reason": None}

    @override
    def choice(self, index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**(choice if finish is None else {**choice, "stop_reason": None}), "token_ids": None}

    @override
    def usage_details(self, prompt: Prompt, generations: Sequence[Generation]) -> dict[str, Any]:
        return {"prompt_tokens_details": None}

    @override
    def decorate(self, chunk: dict[str, Any], prompt: Prompt, generation: Generation | None) -> None:
        options = prompt.body.get("stream_options") or {}
        if "usage" in chunk or not (options.get("include_usage") and options.get("continuous_usage_stats")):
            return
        made = 0 if generation is None else generation.sent
        counts = {"prompt_tokens": prompt.tokens, "total_tokens": prompt.tokens + made}
        chunk["usage"] = {**counts, "completion_tokens": made, "completion_tokens_details": None}

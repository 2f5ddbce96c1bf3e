"""Ollama, about v0.33: cuts silently what does not fit, and goes on silently when the window is full."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import orjson
from typing_extensions import override

from proxy.core.request import text_of
from tests.fakes.base import CHAT
from tests.fakes.generation import Delta, Generation
from tests.fakes.http import Exchange, Recorded
from tests.fakes.intake import last_is_assistant
from tests.fakes.model import FakeModel, Message, Prompt, Refused
from tests.fakes.ollama_native import OllamaNative
from tests.fakes.tokens import Template

MAX_WINDOWS = 10
"""An answer that shifts ends after this many windows."""
TOO_LONG = "the prompt is longer than the context length currently available to the model"
LOCAL = ("localhost", "127.", "[::1]")
NUM_KEEP = 5
"""Tokens kept from the start: the default of four, and BOS."""
EFFORTS = {"none", "minimal", "low", "medium", "high", "xhigh", "max"}


class OllamaFake(OllamaNative):
    """`num_ctx` is the model's window, the Modelfile's line, or what a native request asks for.

    What becomes of a trailing assistant message depends on the model: `prefill`.
    """

    kind: ClassVar[str] = "ollama"
    chat_paths: ClassVar[tuple[str, ...]] = (CHAT, "/api/chat")
    reasoning_field: str = "reasoning"
    whole_calls = True
    late_headers = True
    fingerprint = "fp_ollama"

    default_prefill: str = "new"

    @override
    def chats(self) -> list[Recorded]:
        return [chat for chat in super().chats() if "messages" in chat.json]  # others only load

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.shifts = 0
        """Answers that went on past the window."""
        self.add_native_routes()

    @override
    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        types = {400: "invalid_request_error", 404: "not_found_error"}
        own = {"message": message, "type": types.get(status, "api_error"), "param": None, "code": None}
        return {"error": own}

    @override
    def precheck(self, exchange: Exchange) -> None:
        name = (exchange.request.header("host") or "").rsplit(":", 1)[0]
        if not name.startswith(LOCAL):
            raise Refused(403, b"", headers=[("content-type", "text/plain")])

    @override
    async def refuse(self, exchange: Exchange, refused: Refused) -> None:
        body = refused.body
        if exchange.request.path.startswith("/api/") and isinstance(body, dict):
            error = body["error"]
            body = {"error": error["message"] if isinstance(error, dict) else error}
        await exchange.answer(refused.status, body, refused.headers)

    @override
    async def unknown(self, exchange: Exchange) -> None:
        path = exchange.request.path
        known = any(route.split(" ", 1)[1] == path for route in self.routes)
        text = b"405 method not allowed" if known else b"404 page not found"
        await exchange.answer(405 if known else 404, text, [("content-type", "text/plain")])

    @override
    def same_name(self, model: FakeModel, name: object) -> bool:
        return full_name(model.id) == full_name(str(name))

    @override
    def no_model(self, name: object) -> Refused:
        return Refused(404, self.error(404, f"model '{name}' not found"))

    @override
    def next_id(self) -> str:
        return f"chatcmpl-{self.served % 999}"

    @override
    def choices(self, body: dict[str, Any]) -> int:
        return 1

    @override
    def limit(self, body: dict[str, Any]) -> int | None:
        value = body.get("max_tokens")  # `max_completion_tokens` is not known here
        return max(1, value) if isinstance(value, int) else None

    # Taking a request in

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        if body.get("tools") and not model.tools:
            raise Refused(400, self.error(400, f"{model.id} does not support tools"))
        effort = body.get("reasoning_effort")
        if effort not in {None, "none"} and (effort not in EFFORTS or not model.thinking):
            raise Refused(400, self.error(400, f'"{model.id}" does not support thinking'))
        prompt = super().parse(body, model)
        prompt.window = self.running.get(model.id, self.num_ctx(model, {}))
        prompt.messages = [part for message in prompt.messages for part in _split(message)]
        if not all(map(_valid_arguments, prompt.messages)):
            raise Refused(400, self.error(400, "invalid tool call arguments"))
        return prompt

    @override
    def num_ctx(self, model: FakeModel, body: dict[str, Any]) -> int:
        asked = (body.get("options") or {}).get("num_ctx")
        floor = 2048 if model.vision else 4
        return max(floor, min(asked or model.num_ctx or model.window, model.trained_window))

    @override
    def continuation(self, prompt: Prompt) -> None:
        prefill = prompt.model.prefill or self.default_prefill
        if last_is_assistant(prompt.messages) and prefill in {"continue", "echo"}:
            if prompt.messages[-1].get("tool_calls"):
                return
            self.take_trailing(prompt)
            prompt.echo = prefill == "echo"

    @override
    def take_trailing(self, prompt: Prompt) -> None:
        last = prompt.messages.pop()
        prompt.prefix, prompt.prefix_reasoning = text_of(last), str(last.get("reasoning") or "")

    @override
    def fit(self, prompt: Prompt) -> None:
        self.drop_messages(prompt)
        if prompt.tokens >= prompt.window:
            if prompt.model.native:
                raise self.overflow(prompt)
            self._cut_tokens(prompt)
        if prompt.model.shifts is not False and prompt.body.get("shift") is not False:
            most = MAX_WINDOWS * prompt.window
            prompt.limit = min(prompt.limit or most, most)
        else:
            prompt.room = prompt.window - prompt.tokens
        self.cuts += prompt.lossy

    def drop_messages(self, prompt: Prompt) -> None:
        if prompt.body.get("truncate") is False or prompt.tokens <= prompt.window:
            return
        template = self.template(prompt.model)
        own = {id(message): template.count([template.message(message)]) for message in prompt.messages}
        rest = prompt.tokens - sum(own.values())

        def fits(messages: list[Message]) -> bool:
            return rest + sum(own[id(message)] for message in messages) <= prompt.window

        kept = drop_oldest(prompt.messages, fits)
        prompt.lossy = len(kept) < len(prompt.messages)
        prompt.messages = kept
        prompt.tokens = rest + sum(own[id(message)] for message in kept)

    def _cut_tokens(self, prompt: Prompt) -> None:
        if prompt.body.get("truncate") is False or prompt.body.get("shift") is False:
            raise Refused(400, self.error(400, TOO_LONG), overflow=True)
        template, limit = self.template(prompt.model), token_limit(prompt.window)
        prompt.messages, parts = cut_tokens(prompt.messages, self.parts(prompt), template, limit)
        prompt.tokens, prompt.lossy = limit, True
        prompt.prefix = prompt.prefix and parts[-1].rsplit("|>", 1)[-1]

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        text = (
            f"request ({prompt.tokens} tokens) exceeds the available context size ({prompt.window} tokens), try increasing it"
        )
        inner = {"code": 400, "message": text, "type": "exceed_context_size_error"}
        counts = {"n_prompt_tokens": prompt.tokens, "n_ctx": prompt.window}
        quoted = orjson.dumps({"error": {**inner, **counts}}).decode()
        return Refused(400, self.error(400, quoted), overflow=True)

    # Answering

    @override
    async def chat(self, exchange: Exchange) -> None:
        self.run(self.find_model(exchange.json_object()), {})  # `/v1` has no field for options
        await super().chat(exchange)

    @override
    def generation(self, prompt: Prompt, choice: int = 0) -> Generation:
        generation = super().generation(prompt, choice)
        if prompt.room is None:
            generation.on_token = lambda: self._watch(generation)
        return generation

    def _watch(self, generation: Generation) -> None:
        used = generation.prompt.tokens + generation.tokens
        self.shifts += used == generation.prompt.window

    @override
    def content_beside_calls(self) -> str | None:
        return ""

    @override
    def whole_tool_calls(self, deltas: Sequence[Delta]) -> list[dict[str, Any]]:
        whole = {delta.index for delta in deltas if delta.kind == "call" and delta.last}
        calls = super().whole_tool_calls(deltas)
        return [{"index": index, **call} for index, call in enumerate(calls) if index in whole]

    @override
    def delta(self, delta: Delta) -> dict[str, Any]:
        own = super().delta(delta)
        return own if delta.kind == "content" else {"content": "", **own}

    @override
    def error_frame(self, message: str, head: dict[str, Any]) -> bytes:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return b"data: " + orjson.dumps({**head, "model": "", "choices": [choice]}) + b"\n\n"


def full_name(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def _split(message: Message) -> list[Message]:
    """A message whose content is a list becomes one message per part."""
    content = message.get("content")
    if not isinstance(content, list) or not content:
        return [message]
    texts = [part.get("text", "") if part.get("type") == "text" else [part] for part in content]
    return [{**message, "content": text} for text in texts]


def _valid_arguments(message: Message) -> bool:
    return all(_is_object((call.get("function") or {}).get("arguments")) for call in message.get("tool_calls") or ())


def _is_object(arguments: Any) -> bool:
    try:
        return isinstance(arguments if isinstance(arguments, dict) else orjson.loads(arguments), dict)
    except (orjson.JSONDecodeError, TypeError):
        return False


# How Ollama makes a prompt fit without a word: first whole messages, then tokens.


def drop_oldest(messages: Sequence[Message], fits: Callable[[list[Message]], bool]) -> list[Message]:
    """The message stage: drop the oldest until the rest fits.

    System messages and the last message always stay; tool results may lose their call.
    """
    kept = list(messages)
    for start in range(len(messages)):
        systems = [message for message in messages[:start] if message.get("role") == "system"]
        kept = [*systems, *messages[start:]]
        if fits(kept):
            break
    return kept


def token_limit(num_ctx: int) -> int:
    """Tokens that the token stage leaves: about half of the window."""
    return num_ctx // 2 + 2


def cut_tokens(
    messages: Sequence[Message], parts: Sequence[str], template: Template, limit: int
) -> tuple[list[Message], list[str]]:
    """The token stage: keep the first few tokens and the last ones, `limit` in all.

    `parts` is the rendered prompt: head, one part per message, tail. What is left of the messages and parts is returned.
    """
    pieces = [template.tokenizer.pieces(part) for part in parts]
    total = sum(map(len, pieces))
    resume = total - (limit - NUM_KEEP)
    kept_parts: list[str] = []
    at = 0
    for part in pieces:
        kept_parts.append("".join(piece for index, piece in enumerate(part, start=at) if index < NUM_KEEP or index >= resume))
        at += len(part)
    rest = [_remains(message, part) for message, part in zip(messages, kept_parts[1:-1], strict=True)]
    return [message for message in rest if message is not None], kept_parts


def _remains(message: Message, rendered: str) -> Message | None:
    """The message as far as its rendering survived; None if none of its text did."""
    text = rendered
    while text.startswith("<|") and "|>" in text:
        text = text[text.index("|>") + 2 :]
    text = text.split("<|.|>", 1)[0].split("<|end|>", 1)[0]
    if not text:
        return None
    whole = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**whole, "content": text}

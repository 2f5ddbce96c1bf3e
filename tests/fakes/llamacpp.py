"""llama.cpp's llama-server, as measured on b11549."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from typing_extensions import override

from proxy.core.request import text_of
from tests.fakes import llamacpp_wire as wire
from tests.fakes.chat import CREATED
from tests.fakes.extras import Extras
from tests.fakes.generation import Broken, Delta, Generation
from tests.fakes.http import Exchange
from tests.fakes.intake import last_is_assistant
from tests.fakes.llamacpp_info import LlamaCppRouter
from tests.fakes.model import FakeModel, Prompt, Refused

PROGRESS_STEPS = 2
"""Chunks of progress sent while a prompt is being read."""
POOL_FULL = "Context size has been exceeded."


class LlamaCppFake(LlamaCppRouter, Extras):
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
    context_shift: bool = False
    """`--context-shift`: generation goes on when the window is full."""
    queue: bool = False
    """Requests wait for one of `slots`, in silence."""
    unified: bool = False
    """All slots share the memory of one window."""
    jinja: bool = True

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.running: list[tuple[Prompt, Generation]] = []
        self._pool_broken: set[int] = set()
        self._free: asyncio.Semaphore | None = None
        self.add_info_routes()
        self.add_router_routes()
        self.add_extra_routes("completions", "embeddings", "responses", "messages", "rerank", "transcriptions")

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
        return {"/health", "/v1/health"}

    @override
    async def unknown(self, exchange: Exchange) -> None:
        await exchange.answer(404, self.error(404, "File Not Found"))

    # Taking a request in

    @override
    def limit(self, body: dict[str, Any]) -> int | None:
        return wire.limit(body)

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        if body.get("tools") and not self.jinja:
            raise Refused(500, self.error(500, "tools param requires --jinja flag"))
        try:
            wire.check_body(body, vision=model.vision, prefill=self.prefill_assistant)
        except wire.RequestRefused as refused:
            raise Refused(refused.status, refused.body) from None
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
    def fit(self, prompt: Prompt) -> None:
        super().fit(prompt)
        if self.context_shift:
            prompt.room = None

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        return Refused(400, wire.window_exceeded(prompt.tokens, prompt.model.window), overflow=True)

    # Answering

    @override
    async def chat(self, exchange: Exchange) -> None:
        request = exchange.request
        exchange.sticky = request.header("x-conversation-id") is not None
        if not self.queue:
            await super().chat(exchange)
            return
        if self._free is None:
            self._free = asyncio.Semaphore(self.slots)
        async with self._free:
            await super().chat(exchange)

    @override
    def generation(self, prompt: Prompt, choice: int = 0) -> Generation:
        generation = super().generation(prompt, choice)
        if self.unified:
            entry = (prompt, generation)
            self.running.append(entry)
            generation.on_token = lambda: self._watch_pool(entry)
        return generation

    def _watch_pool(self, entry: tuple[Prompt, Generation]) -> None:
        """End all answers with an error when together they hold more tokens than the window."""
        self.running = [other for other in self.running if not other[1].over]
        used = sum(prompt.tokens + generation.tokens for prompt, generation in self.running)
        if len(self.running) > 1 and used > entry[0].model.window:
            for _, generation in self.running:
                generation.broken = POOL_FULL
        if entry[1].broken is not None:
            raise Broken(entry[1].broken)

    @override
    def content_beside_calls(self) -> str | None:
        return ""

    @override
    def head(self, prompt: Prompt, object_: str) -> dict[str, Any]:
        return {
            "created": CREATED,
            "id": self.next_id(),
            "model": prompt.name,
            "system_fingerprint": self.fingerprint,
            "object": object_,
        }

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
    def completion(
        self, prompt: Prompt, choices: list[dict[str, Any]], generations: Sequence[Generation]
    ) -> dict[str, Any]:
        if prompt.echo and prompt.prefix_reasoning:
            message = choices[0]["message"]
            message["reasoning_content"] = prompt.prefix_reasoning + message.get("reasoning_content", "")
        whole = super().completion(prompt, choices, generations)
        return {**whole, "timings": timings(prompt, generations[0])}

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
            {"prompt_progress": {"total": prompt.tokens, "cache": prompt.cached, "processed": at, "time_ms": 1}}
            for at in steps
        ]

    @override
    def decorate(self, chunk: dict[str, Any], prompt: Prompt, generation: Generation | None) -> None:
        if "prompt_progress" in chunk and prompt.body.get("timings_per_token"):
            chunk["timings"] = timings(prompt, None)
        if generation is None:
            return
        asked = self.wants_usage(prompt)
        ends = bool(chunk["choices"]) and chunk["choices"][0]["finish_reason"] is not None
        per_token = bool(chunk["choices"]) and not ends and prompt.body.get("timings_per_token")
        if "usage" in chunk or per_token or (ends and not asked):
            chunk["timings"] = timings(prompt, generation)


def timings(prompt: Prompt, generation: Generation | None) -> dict[str, Any]:
    """The `timings` object."""
    return wire.timings(prompt.tokens, 0 if generation is None else generation.tokens, prompt.cached)

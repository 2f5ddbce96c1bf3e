"""Chat completions, in the shapes that all kinds share; a kind overrides what it does differently."""

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson
from typing_extensions import override

from tests.fakes.base import CHAT
from tests.fakes.brains import walk
from tests.fakes.generation import Broken, Delta, Dropped, Generation
from tests.fakes.http import EVENT_STREAM, Exchange
from tests.fakes.intake import Intake
from tests.fakes.model import Brain, Prompt, Question
from tests.fakes.stream import DONE, ChatStream, pace
from tests.fakes.tokens import BOS
from tests.fakes.waiting import Gate

CREATED = 1_700_000_000
"""Every response claims this time (seconds since the epoch), so that the same test gives the same bytes."""


class FakeBackend(Intake):
    """A backend with chat completions. See the kinds for what each does."""

    reasoning_field: str = "reasoning_content"
    first_delta: dict[str, Any] | None = {"role": "assistant", "content": ""}  # noqa: RUF012 - replaced, never changed
    whole_calls: bool = False
    """A tool call comes in one chunk instead of piece by piece."""
    usage_always: bool = False
    finish_with_content: bool = False
    """The last delta and the finish reason share a chunk."""
    double_finish: bool = False
    """A chunk with the finish reason follows even then."""
    done_after_error: bool = False
    late_headers: bool = False
    """The status line comes with the first token."""
    comment: bytes = b""
    """Keep-alive comment of this kind."""
    comments: int = 0
    """How many keep-alive comments come before the first chunk."""
    comment_every: int = 0
    """A keep-alive comment comes after every so many chunks; 0: never."""
    hangs_up: bool = False
    """The connection is closed after each stream, without a header that says so."""
    fingerprint: str | None = None
    id_prefix: str = "chatcmpl-"

    @override
    def default_brain(self) -> Brain:
        return walk()

    embedding_gate: Gate | None = None
    """Holds every answer with vectors."""

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.routes[f"POST {CHAT}"] = self.chat
        self.routes["POST /v1/completions"] = self.completions
        self.routes["POST /v1/embeddings"] = self.embeddings
        self.routes["POST /v1/audio/transcriptions"] = self.transcriptions

    # Answering

    async def chat(self, exchange: Exchange) -> None:
        prompt = self.take(exchange)
        generations = [self.generation(prompt, choice) for choice in range(self.choices(prompt.body))]
        raw = generations[0].reply.raw
        if prompt.stream or raw is not None:
            await ChatStream(self, exchange, prompt, generations).run(raw)
        else:
            await self.whole(exchange, prompt, generations)

    def generation(self, prompt: Prompt, choice: int = 0) -> Generation:
        question = Question(
            messages=prompt.messages, tools=prompt.tools, body=prompt.body, prefix=prompt.prefix,
            prefix_reasoning=prompt.prefix_reasoning, model=prompt.model, prompt_tokens=prompt.tokens, choice=choice,
        )  # fmt: skip
        echo = prompt.prefix if prompt.echo else ""
        return Generation(self.brain(question), prompt, self.template(prompt.model).tokenizer, echo=echo)

    async def whole(self, exchange: Exchange, prompt: Prompt, generations: Sequence[Generation]) -> None:
        choices = []
        try:
            for index, generation in enumerate(generations):
                deltas = await self.collect(generation)
                message = self.message(deltas)
                choices.append(self.whole_choice(index, message, generation.finish))
        except Dropped:
            await exchange.cut()
            return
        except Broken as broken:
            await exchange.answer(500, self.error(500, str(broken), "server_error"))
            return
        await exchange.answer(200, self.completion(prompt, choices, generations))

    async def collect(self, generation: Generation) -> list[Delta]:
        deltas: list[Delta] = []
        await pace(self, generation, -1)
        for index, delta in enumerate(generation):
            if self.delay or self.gate or generation.reply.gate or not index % 64:
                await pace(self, generation, index)
            deltas.append(delta)
        return deltas

    def message(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": joined(deltas, "content")}
        if reasoning := joined(deltas, "reasoning"):
            message[self.reasoning_field] = reasoning
        if calls := self.whole_tool_calls(deltas):
            message["tool_calls"] = calls
            message["content"] = message["content"] or self.content_beside_calls()
        return message

    def content_beside_calls(self) -> str | None:
        """The content of a message that only holds calls."""
        return None

    def whole_tool_calls(self, deltas: Sequence[Delta]) -> list[dict[str, Any]]:
        """Tool calls of a whole answer; one that was cut off has half its arguments."""
        calls: list[dict[str, Any]] = []
        for delta in deltas:
            if delta.kind == "call" and delta.call is not None and delta.first:
                function = {"name": delta.call.name, "arguments": ""}
                calls.append({"id": self.call_id(delta), "type": "function", "function": function})
            elif delta.kind == "call":
                calls[-1]["function"]["arguments"] += delta.text
        return calls

    def call_id(self, delta: Delta) -> str:
        assert delta.call is not None
        return delta.call.id or f"call_{self.served:04d}{delta.index:02d}"

    def whole_choice(self, index: int, message: dict[str, Any], finish: str) -> dict[str, Any]:
        return {"index": index, "message": message, "finish_reason": finish}

    def completion(self, prompt: Prompt, choices: list[dict[str, Any]], generations: Sequence[Generation]) -> dict[str, Any]:
        head = self.envelope(self.head(prompt, "chat.completion"), choices)
        return {**head, "usage": self.usage(prompt, generations)}

    def head(self, prompt: Prompt, object_: str) -> dict[str, Any]:
        head = {"id": self.next_id(), "object": object_, "created": CREATED, "model": prompt.name}
        return head if self.fingerprint is None else {**head, "system_fingerprint": self.fingerprint}

    def envelope(self, head: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A response or a chunk, with its fields in the order of this kind."""
        return {**head, "choices": choices}

    def next_id(self) -> str:
        return f"{self.id_prefix}{self.kind}{self.served:06d}"

    def usage(self, prompt: Prompt, generations: Sequence[Generation]) -> dict[str, Any]:
        completion = sum(generation.tokens for generation in generations)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt.tokens,
            "completion_tokens": completion,
            "total_tokens": prompt.tokens + completion,
        }
        usage |= self.usage_details(prompt, generations)
        return usage | (generations[0].reply.usage or {})

    def usage_details(self, prompt: Prompt, generations: Sequence[Generation]) -> dict[str, Any]:
        del prompt, generations
        return {}

    # Streaming

    def delta(self, delta: Delta) -> dict[str, Any]:
        if delta.kind == "content":
            return {"content": delta.text}
        if delta.kind == "reasoning":
            return {self.reasoning_field: delta.text}
        assert delta.call is not None
        if not delta.first:
            return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
        function = {"name": delta.call.name, "arguments": delta.text}
        call = {"index": delta.index, "id": self.call_id(delta), "type": "function", "function": function}
        return {"tool_calls": [call]}

    def choice(self, index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "finish_reason": finish}

    def decorate(self, chunk: dict[str, Any], prompt: Prompt, generation: Generation | None) -> None:
        """Add what this kind puts on a chunk; `generation` is None on chunks that come before the answer."""

    def error_frame(self, message: str, head: dict[str, Any]) -> bytes:
        del head
        return b"data: " + orjson.dumps(self.error(500, message, "server_error")) + b"\n\n"

    def wants_usage(self, prompt: Prompt) -> bool:
        """Whether a stream ends with usage."""
        options = prompt.body.get("stream_options")
        return self.usage_always or (isinstance(options, dict) and options.get("include_usage") is True)

    def preface(self, prompt: Prompt) -> Sequence[dict[str, Any]]:
        """Fields of chunks that come before the first one (progress of the prompt)."""
        del prompt
        return ()

    def stream_headers(self) -> list[tuple[str, str]]:
        return []

    # The endpoints beside chat: deterministic answers, so that passing them through can be compared byte for byte

    async def completions(self, exchange: Exchange) -> None:
        """`POST /v1/completions`: the brain is shown the prompt as a user message."""
        body = exchange.json_object()
        model = self.find_model(body)
        self.load(model)
        messages = [{"role": "user", "content": str(body.get("prompt"))}]
        prompt = Prompt(model, self.reply_name(body, model), body, messages, limit=self.limit(body) or 16)
        prompt.tokens = self.template(model).count([BOS + messages[0]["content"]])
        self.fit(prompt)
        generation = self.generation(prompt)
        head = self.head(prompt, "text_completion")

        def choices(text: str, finish: str | None) -> list[dict[str, Any]]:
            return [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}]

        if body.get("stream") is not True:
            text = joined(await self.collect(generation), "content")
            whole = self.envelope(head, choices(text, generation.finish))
            await exchange.answer(200, {**whole, "usage": self.usage(prompt, [generation])})
            return
        await exchange.open(200, EVENT_STREAM, self.stream_headers())
        for index, delta in enumerate(generation):
            await pace(self, generation, index)
            await exchange.event(self.envelope(head, choices(delta.text, None)))
        await exchange.event(self.envelope(head, choices("", generation.finish)))
        await exchange.write(DONE)
        await exchange.close(hang_up=self.hangs_up)

    @staticmethod
    def embedding_of(text: str) -> list[float]:
        return vector(text)

    async def embeddings(self, exchange: Exchange) -> None:
        """`POST /v1/embeddings`: vectors made of the input's digest."""
        body = exchange.json_object()
        given = body.get("input")
        texts = given if isinstance(given, list) else [given]
        if self.embedding_gate is not None:
            await self.embedding_gate.passage(self.embedding_gate.at)
        data = [
            {"object": "embedding", "index": index, "embedding": self.embedding_of(str(text))}
            for index, text in enumerate(texts)
        ]
        tokens = sum(len(str(text)) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        await exchange.answer(200, {"object": "list", "data": data, "model": str(body.get("model")), "usage": usage})

    async def transcriptions(self, exchange: Exchange) -> None:
        """`POST /v1/audio/transcriptions`: the digest of the body as it came."""
        body = exchange.request.body
        await exchange.answer(200, {"text": f"{len(body)} bytes {hashlib.sha256(body).hexdigest()}"})


def vector(text: str) -> list[float]:
    """An embedding made of the text's digest, in halves of a 256th so that JSON gives it back exactly."""
    return [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:8]]


def joined(deltas: Sequence[Delta], kind: str) -> str:
    return "".join(delta.text for delta in deltas if delta.kind == kind)

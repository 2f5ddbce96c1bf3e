"""The endpoints beside chat: deterministic answers, so that passing them through can be compared byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from tests.fakes.chat import CREATED, FakeBackend, joined
from tests.fakes.generation import Generation
from tests.fakes.http import EVENT_STREAM, Exchange
from tests.fakes.model import Prompt, Question, Refused
from tests.fakes.stream import DONE, pace
from tests.fakes.tokens import BOS
from tests.fakes.waiting import Gate

DIMENSIONS = 8
SPEECH_PIECES = 16


class Extras(FakeBackend):
    """Completions, embeddings, responses, messages, audio, images, rerank."""

    embedding_gate: Gate | None = None
    """Holds every answer with vectors."""

    @staticmethod
    def embedding_of(text: str) -> list[float]:
        """The vector of a text."""
        return vector(text)

    def add_extra_routes(self, *names: str) -> None:
        """Serve the endpoints of these names."""
        handlers = {
            "completions": ("completions", self.completions),
            "embeddings": ("embeddings", self.embeddings),
            "responses": ("responses", self.responses),
            "messages": ("messages", self.anthropic),
            "rerank": ("rerank", self.rerank),
            "transcriptions": ("audio/transcriptions", self.transcriptions),
            "speech": ("audio/speech", self.speech),
            "images": ("images/generations", self.images),
        }
        for name in names:
            path, handler = handlers[name]
            self.routes[f"POST /v1/{path}"] = handler

    async def completions(self, exchange: Exchange) -> None:
        """`POST /v1/completions`: the brain is shown the prompt as a user message."""
        prompt = self._completion_prompt(exchange.json_object())
        generation = self._answer_to(prompt)
        head = self.head(prompt, "text_completion")
        if not prompt.stream:
            text = joined(await self.collect(generation), "content")
            whole = self.envelope(head, [_text_choice(text, generation.finish)])
            await exchange.answer(200, {**whole, "usage": self.usage(prompt, [generation])})
            return
        await exchange.open(200, EVENT_STREAM, self.stream_headers())
        for index, delta in enumerate(generation):
            await pace(self, generation, index)
            chunk = self.envelope(head, [_text_choice(delta.text, None)])
            await _event(exchange, {**chunk, **self.text_chunk_fields(prompt)})
        await _event(exchange, self.envelope(head, [_text_choice("", generation.finish)]))
        if self.wants_usage(prompt):
            await _event(exchange, {**self.envelope(head, []), "usage": self.usage(prompt, [generation])})
        await exchange.write(DONE)
        await exchange.close(hang_up=self.hangs_up)

    def text_chunk_fields(self, prompt: Prompt) -> dict[str, Any]:
        """What this kind adds to each chunk of a text completion."""
        del prompt
        return {}

    def _completion_prompt(self, body: dict[str, Any]) -> Prompt:
        model = self.find_model(body)
        self.load(model)
        text = body.get("prompt")
        text = "".join(map(str, text)) if isinstance(text, list) else str(text)
        prompt = Prompt(
            model,
            self.reply_name(body, model),
            body,
            [{"role": "user", "content": text}],
            limit=self.limit(body) or 16,
            stream=body.get("stream") is True,
        )
        prompt.tokens = self.template(model).count([BOS + text])
        self.fit(prompt)
        return prompt

    def _answer_to(self, prompt: Prompt) -> Generation:
        question = Question(messages=prompt.messages, body=prompt.body, model=prompt.model, prompt_tokens=prompt.tokens)
        return Generation(self.brain(question), prompt, self.template(prompt.model).tokenizer)

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

    async def responses(self, exchange: Exchange) -> None:
        """`POST /v1/responses`: an answer that names the digest of the input."""
        body = exchange.json_object()
        text = f"seen {_digest(orjson.dumps(body.get('input')))}"
        part = {"type": "output_text", "text": text}
        whole = {
            "id": self.next_id(),
            "object": "response",
            "created_at": CREATED,
            "status": "completed",
            "output": [{"type": "message", "role": "assistant", "content": [part]}],
            "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        }
        events: list[tuple[str, dict[str, Any]]] = [
            ("response.created", {"response": {**whole, "status": "in_progress", "output": []}}),
            *(("response.output_text.delta", {"delta": piece}) for piece in text.split(" ")),
            ("response.completed", {"response": whole}),
        ]
        await self.named_events(exchange, body, whole, events)

    async def anthropic(self, exchange: Exchange) -> None:
        """`POST /v1/messages`: Anthropic's shape."""
        body = exchange.json_object()
        text = f"seen {_digest(orjson.dumps(body.get('messages')))}"
        whole = {
            "id": self.next_id(),
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "model": str(body.get("model")),
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        }
        events: list[tuple[str, dict[str, Any]]] = [
            ("message_start", {"message": {**whole, "content": []}}),
            ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}),
            ("message_stop", {}),
        ]
        await self.named_events(exchange, body, whole, events)

    async def named_events(
        self,
        exchange: Exchange,
        body: dict[str, Any],
        whole: dict[str, Any],
        events: Sequence[tuple[str, dict[str, Any]]],
    ) -> None:
        """Answer whole, or as events with names."""
        if body.get("stream") is not True:
            await exchange.answer(200, whole)
            return
        await exchange.open(200, EVENT_STREAM, self.stream_headers())
        for name, data in events:
            await exchange.write(
                b"event: " + name.encode() + b"\ndata: " + orjson.dumps({"type": name, **data}) + b"\n\n"
            )
        await exchange.close(hang_up=self.hangs_up)

    async def rerank(self, exchange: Exchange) -> None:
        """`POST /v1/rerank`: scores made of digests."""
        documents = exchange.json_object().get("documents") or []
        results = [
            {"index": index, "relevance_score": vector(str(document))[0]} for index, document in enumerate(documents)
        ]
        await exchange.answer(200, {"object": "list", "results": results})

    async def transcriptions(self, exchange: Exchange) -> None:
        """`POST /v1/audio/transcriptions`: the digest of the multipart body as it came."""
        if not (exchange.request.header("content-type") or "").startswith("multipart/form-data"):
            raise Refused(400, self.error(400, "multipart/form-data expected", "invalid_request_error"))
        body = exchange.request.body
        await exchange.answer(200, {"text": f"{len(body)} bytes {_digest(body)}"})

    async def speech(self, exchange: Exchange) -> None:
        """`POST /v1/audio/speech`: binary, in pieces."""
        seed = hashlib.sha256(exchange.request.content).digest()
        await exchange.open(200, "audio/mpeg")
        for number in range(SPEECH_PIECES):
            await exchange.write(hashlib.sha256(seed + bytes([number])).digest() * 32)
        await exchange.close()

    async def images(self, exchange: Exchange) -> None:
        """`POST /v1/images/generations`: a picture that is none."""
        data = [{"b64_json": _digest(exchange.request.content)}]
        await exchange.answer(200, {"created": CREATED, "data": data})


def vector(text: str) -> list[float]:
    """An embedding made of the text's digest, in halves of a 256th so that JSON gives it back exactly."""
    return [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:DIMENSIONS]]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text_choice(text: str, finish: str | None) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}


async def _event(exchange: Exchange, data: dict[str, Any]) -> None:
    await exchange.write(b"data: " + orjson.dumps(data) + b"\n\n")

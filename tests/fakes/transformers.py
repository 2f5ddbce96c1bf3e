"""`transformers serve` 5.19, as measured on a CPU with models that lie in the cache of the hub."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from tests.fakes.chat import CREATED
from tests.fakes.generation import Generation
from tests.fakes.generic import KNOWN, GenericFake
from tests.fakes.http import Exchange
from tests.fakes.model import FakeModel, Prompt, Refused

_TAKEN = {*KNOWN.split(), "generation_config", "chat_template_kwargs"}
_USUAL_LIMIT = 1024
"""Tokens of an answer whose client sets no bound."""


class TransformersFake(GenericFake):
    """Nothing tells the window, and nothing is refused for it: the answer to a prompt that is too long is worse.

    A stream ends without a mark, and with usage, whether it was asked for or not.
    """

    says_done = False
    cached: bool = True
    """Whether there is a cache of the hub; without one its list of models is an error."""

    @override
    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        return {"detail": message}

    @override
    async def unknown(self, exchange: Exchange) -> None:
        await exchange.answer(404, self.error(404, "Not Found"))

    @override
    async def model_list(self, exchange: Exchange) -> None:
        if not self.cached:
            raise Refused(500, b"Internal Server Error", headers=[("content-type", "text/plain; charset=utf-8")])
        data = [
            {"owned_by": model.id.partition("/")[0], "id": model.id, "object": "model", "created": CREATED}
            for model in self.models
        ]
        await exchange.answer(200, {"object": "list", "data": data})

    @override
    def reply_name(self, body: dict[str, Any], model: FakeModel) -> str:
        return f"{model.id}@main"

    @override
    def limit(self, body: dict[str, Any]) -> int | None:
        return int(body.get("max_tokens") or _USUAL_LIMIT)  # `max_completion_tokens` is taken, and has no effect

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        if unexpected := set(body) - _TAKEN:
            raise Refused(422, self.error(422, f"Unexpected fields in the request: {unexpected}"))
        return super().parse(body, model)

    @override
    def fit(self, prompt: Prompt) -> None:
        self.cuts += prompt.tokens > prompt.model.window
        prompt.room = prompt.limit or _USUAL_LIMIT

    @override
    def wants_usage(self, prompt: Prompt) -> bool:
        return False

    @override
    def decorate(self, chunk: dict[str, Any], prompt: Prompt, generation: Generation | None) -> None:
        if generation is not None and any(choice["finish_reason"] for choice in chunk["choices"]):
            chunk["usage"] = self.usage(prompt, [generation])

"""A plain OpenAI-like server: the list names models only, and a history that does not fit is refused as by OpenAI."""

from typing import Any, ClassVar

from typing_extensions import override

from tests.fakes.chat import CREATED, FakeBackend
from tests.fakes.http import Exchange
from tests.fakes.model import Prompt, Refused


class GenericFake(FakeBackend):
    """A trailing assistant message is a finished turn."""

    kind: ClassVar[str] = "generic"

    counts_max_tokens: bool = False
    """Refuse when the prompt and `max_tokens` together exceed the window."""
    stream_usage: bool = True
    """Answer `include_usage`; llama-cpp-python does not."""
    window_field: str = ""
    """Field of the model list that tells the window: `context_length`, `meta.n_ctx` …; empty: none does."""

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.routes["GET /v1/models"] = self.model_list

    @override
    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        own = type_ or ("server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": own, "param": None, "code": None, **extra}}

    @override
    def unauthorized(self) -> Refused:
        return Refused(401, self.error(401, "Incorrect API key provided.", code="invalid_api_key"))

    @override
    def malformed(self) -> Refused:
        return Refused(400, self.error(400, "We could not parse the JSON body of your request."))

    @override
    async def unknown(self, exchange: Exchange) -> None:
        request = exchange.request
        await exchange.answer(404, self.error(404, f"Invalid URL ({request.method} {request.path})"))

    async def model_list(self, exchange: Exchange) -> None:
        data = []
        for model in self.models:
            entry: dict[str, Any] = {"id": model.id, "object": "model", "created": CREATED, "owned_by": "fake"}
            outer, _, inner = self.window_field.partition(".")
            if outer:
                entry[outer] = {inner: model.window} if inner else model.window
            data.append(entry)
        await exchange.answer(200, {"object": "list", "data": data})

    @override
    def fit(self, prompt: Prompt) -> None:
        super().fit(prompt)
        wanted = prompt.limit or 0
        if self.counts_max_tokens and prompt.tokens + wanted > prompt.model.window:
            raise self.overflow(prompt)

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        text = (
            f"This model's maximum context length is {prompt.model.window} tokens. However, your messages resulted in "
            f"{prompt.tokens} tokens. Please reduce the length of the messages."
        )
        body = self.error(400, text, param="messages", code="context_length_exceeded")
        return Refused(400, body, overflow=True)

    @override
    def wants_usage(self, prompt: Prompt) -> bool:
        return self.stream_usage and super().wants_usage(prompt)

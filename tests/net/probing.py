"""A prober with a server in the process and a clock that stands still."""

from collections.abc import Callable
from typing import Any

from proxy.backends.profile import Fact, ModelProfile, Trust
from proxy.net.flows import FlowRunner
from proxy.net.prober import KnownModel, Prober
from tests.net.fake_server import Clock, FakeServer

TTL = 30.0
URL = "http://127.0.0.1:1234"
MODEL = "m"


def lmstudio(window: int | None) -> dict[str, Any]:
    """LM Studio with one model, loaded with `window` tokens or not at all."""
    instances = [] if window is None else [{"id": MODEL, "config": {"context_length": window}}]
    models = [{"key": MODEL, "max_context_length": 131072, "loaded_instances": instances}]
    return {"/api/v1/models": {"models": models}, "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model"}]}}


def vllm(window: int | None) -> dict[str, Any]:
    data = [{"id": MODEL, "owned_by": "vllm", "root": "x", "max_model_len": window}]
    return {"/v1/models": {"object": "list", "data": data}}


def ollama(*capabilities: str) -> dict[str, Any]:
    tag = {"name": f"{MODEL}:latest", "capabilities": capabilities}
    return {
        "/api/version": {"version": "0.33.0"},
        "/api/tags": {"models": [tag]},
        "/api/ps": {"models": [{"name": f"{MODEL}:latest", "context_length": 8192}]},
        "/api/show": {"model_info": {}, "capabilities": capabilities},
        "/v1/models": {"object": "list", "data": [{"id": MODEL}]},
    }


def user(**facts: Any) -> Callable[[str], ModelProfile]:
    told: dict[str, Any] = {name: Fact(value, "settings", Trust.USER) for name, value in facts.items()}
    return lambda model: ModelProfile(**told) if model == MODEL else ModelProfile()


class Bench:
    """A prober, its server and its clock."""

    def __init__(self, replies: dict[str, Any], **options: Any) -> None:
        self.server = FakeServer(replies)
        self.clock = Clock()
        runner = FlowRunner(self.server.transport, URL)
        self.prober = Prober(runner, ttl=TTL, clock=self.clock, **options)

    @property
    def model(self) -> KnownModel:
        return self.prober.known(MODEL)

    @property
    def asked(self) -> int:
        return len(self.server.requests)

    async def kind(self) -> str:
        return (await self.prober.backend()).kind

    async def value(self, field: str) -> Any:
        fact = getattr(await self.model.profile(), field)
        return None if fact is None else fact.value

    async def window(self) -> Any:
        return await self.value("window")

    async def later(self, seconds: float, replies: dict[str, Any] | None = None) -> Any:
        """The window after so many seconds, and with other replies of the server."""
        if replies is not None:
            self.server.replies = replies
        self.clock.now += seconds
        return await self.window()

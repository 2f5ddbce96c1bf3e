from typing import Any

import httpx
import pytest

from proxy.backends.base import Reply
from proxy.core.settings import BackendSetting
from proxy.net.flows import discover
from tests.backends.driver import payloads

pytestmark = pytest.mark.anyio

LMSTUDIO, OLLAMA = payloads("lmstudio"), payloads("ollama")
LLAMACPP, VLLM = payloads("llamacpp"), payloads("vllm")
OPENAI_LIST = {"object": "list", "data": [{"id": "m", "object": "model"}]}


def machine(ports: dict[int, dict[str, Any]]) -> httpx.MockTransport:
    """A machine with a server on each port; `*` is the reply to any other path."""

    def answer(request: httpx.Request) -> httpx.Response:
        server = ports.get(request.url.port or 80)
        if server is None:
            raise httpx.ConnectError("connection refused", request=request)
        found = server.get(request.url.path, server.get("*", Reply(404, {"detail": "Not Found"})))
        reply = found if isinstance(found, Reply) else Reply(200, found)
        return httpx.Response(reply.status, json=reply.json)

    return httpx.MockTransport(answer)


def backend(kind: str, port: int, **given: str) -> BackendSetting:
    found = {"url": f"http://127.0.0.1:{port}", "name": kind, "kind": kind or "auto", **given}
    return BackendSetting.model_validate(found)


async def test_all_are_found_where_they_usually_are_also_two_of_a_kind() -> None:
    transport = machine(
        {
            1234: {"/api/v1/models": LMSTUDIO["v1"], "*": LMSTUDIO["unknown_path"]},
            11434: {"/api/version": OLLAMA["version"], "/api/tags": OLLAMA["tags"]},
            8080: {"/props": LLAMACPP["props"], "/v1/models": LLAMACPP["models"]},
            8000: {"/v1/models": VLLM["models"]},
        }
    )
    assert await discover(transport) == [
        backend("ollama", 11434), backend("lmstudio", 1234), backend("llamacpp", 8080), backend("vllm", 8000),
    ]  # fmt: skip
    transport = machine({port: {"/v1/models": VLLM["models"]} for port in (8080, 8000)})
    assert await discover(transport) == [backend("vllm", 8080), backend("vllm", 8000, name="")]


@pytest.mark.parametrize(
    "server",
    [
        {},
        {"*": {"hello": "world"}},
        {"*": LMSTUDIO["unknown_path"]},
        {"/api/version": {"version": "1.0"}},
        {"/version": {"version": "1.0"}},
        {"/v1/models": {"data": []}},
        {"/v1/models": {"object": "list", "data": "none"}},
        {"*": Reply(503, {"error": {"message": "busy"}})},
        {"*": Reply(500, [])},
        {"*": Reply(401, {"timestamp": 1, "status": 401, "error": "Unauthorized", "path": "/v1/models"})},
    ],
)
async def test_another_program_is_not_taken_for_a_backend(server: dict[str, Any]) -> None:
    assert await discover(machine({8080: server, 8000: server})) == []


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        ({"/v1/models": OPENAI_LIST}, "generic"),
        ({"*": Reply(401, {"error": "Unauthorized"})}, ""),
        ({"*": Reply(401, {"error": {"message": "Invalid API Key", "code": 401}})}, ""),
        ({"*": Reply(503, LLAMACPP["loading"])}, "llamacpp"),
        ({"/v1/models": VLLM["models"]}, "vllm"),
    ],
)
async def test_the_kind_is_told_by_shape_and_not_by_port(server: dict[str, Any], kind: str) -> None:
    assert await discover(machine({9: server}), ports=(10, 9)) == [backend(kind, 9)]

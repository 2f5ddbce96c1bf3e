from __future__ import annotations

from typing import Any

import httpx
import pytest

from proxy.backends.base import Reply
from proxy.net.flows import Discovered, discover
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


async def test_all_four_are_found_where_they_usually_are() -> None:
    transport = machine(
        {
            1234: {"/api/v1/models": LMSTUDIO["v1"], "*": LMSTUDIO["unknown_path"]},
            11434: {"/api/version": OLLAMA["version"], "/api/tags": OLLAMA["tags"]},
            8080: {"/props": LLAMACPP["props"], "/v1/models": LLAMACPP["models"]},
            8000: {"/v1/models": VLLM["models"]},
        }
    )
    assert await discover(transport) == [
        Discovered("lmstudio", "http://127.0.0.1:1234"),
        Discovered("ollama", "http://127.0.0.1:11434"),
        Discovered("llamacpp", "http://127.0.0.1:8080"),
        Discovered("vllm", "http://127.0.0.1:8000"),
    ]


async def test_nothing_is_found_where_nothing_is() -> None:
    assert await discover(machine({})) == []


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


async def test_a_server_with_an_openai_list_is_a_generic_backend() -> None:
    assert await discover(machine({8000: {"/v1/models": OPENAI_LIST}})) == [
        Discovered("generic", "http://127.0.0.1:8000")
    ]


async def test_the_kind_is_told_by_shape_and_not_by_port() -> None:
    transport = machine({9: {"/v1/models": VLLM["models"]}, 10: {"/props": LLAMACPP["props"]}})
    assert await discover(transport, ports=(10, 9)) == [
        Discovered("llamacpp", "http://127.0.0.1:10"),
        Discovered("vllm", "http://127.0.0.1:9"),
    ]


@pytest.mark.parametrize("error", ["Unauthorized", {"message": "Invalid API Key", "code": 401}])
async def test_a_server_that_wants_a_key_is_found(error: Any) -> None:
    assert await discover(machine({8080: {"*": Reply(401, {"error": error})}})) == [
        Discovered("", "http://127.0.0.1:8080")
    ]


async def test_a_model_that_is_still_loading_is_found() -> None:
    assert await discover(machine({8080: {"*": Reply(503, LLAMACPP["loading"])}})) == [
        Discovered("llamacpp", "http://127.0.0.1:8080")
    ]

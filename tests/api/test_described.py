"""What `/openapi.json` says of the managed routes, held against what they answer."""

import re
from typing import Any

import pytest

from proxy.api.access import COUNTING
from proxy.dialects import DIALECTS
from tests.fakes import FakeModel, LlamaCppFake, summariser
from tests.fakes.brains import qa
from tests.proxying import Proxy, running_proxy

OWN = {
    *(
        "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/models/{model}", "/api/version", "/api/tags", "/api/ps",
        "/api/show",
    ),
    *("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"),
    *("/spillway/session", "/spillway/live", "/spillway/models", "/spillway/explain", "/spillway/lessons"),
    "/spillway/memory",
    "/spillway/summary_model",
    *("/spillway/outcomes", "/spillway/savings", "/spillway/conversations", "/spillway/conversations/{conversation}"),
    *(f"/spillway/conversations/{{conversation}}/{what}" for what in ("summary", "compact", "pins", "export")),
    "/spillway/requests/{name}",
    *("/spillway/requests/{name}/diff", "/spillway/requests/{name}/stop"),
}  # fmt: skip
TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list, "null": type(None),
}  # fmt: skip
TEXTS = ("/spillway/live", "/metrics", "/spillway/conversations/{conversation}/export")


def strays(value: Any, schema: dict[str, Any], where: str, *, own: bool) -> list[str]:
    """Where a value is not as its schema says; `own`: nothing may be in it that is not described."""
    if "anyOf" in schema:
        return min((strays(value, each, where, own=own) for each in schema["anyOf"]), key=len)
    if "type" in schema and not isinstance(value, TYPES[schema["type"]]):
        return [f"{where} is {value!r}, no {schema['type']}"]
    if isinstance(value, list) and "items" in schema:
        return [each for item in value for each in strays(item, schema["items"], f"{where}[]", own=own)]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    known = schema["properties"]
    found = [f"{where}.{name} is not described" for name in value if own and name not in known and "events" not in where]
    return found + [
        each for name in value.keys() & known.keys() for each in strays(value[name], known[name], f"{where}.{name}", own=own)
    ]


def described(proxy: Proxy) -> Any:
    return proxy.client.get("/openapi.json").json()["paths"]


def answered(paths: Any, path: str, method: str, value: Any, *, own: bool = True) -> None:
    operation = paths[path][method]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert strays(value, schema, path, own=own) == []
    assert ("security" in operation) is (path not in ("/healthz", "/readyz"))


def test_every_managed_route_is_described() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        paths = described(proxy)
        assert set(paths) == {*OWN, *DIALECTS, *COUNTING}
        for path in (*DIALECTS, *COUNTING):
            body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            assert {"model", *body["required"]} <= body["properties"].keys()
            assert "200" in paths[path]["post"]["responses"]
        assert {each["name"] for each in paths["/spillway/outcomes"]["get"]["parameters"]} == {
            *("model", "backend", "dialect", "action", "conversation", "status", "error", "running", "limit", "before")
        }
        for path, operations in paths.items():
            for method, operation in operations.items():
                assert operation["summary"].replace(" ", "").isalnum(), path
                assert all("schema" in each for each in operation.get("parameters", ())), path
                # Streams, figures for Prometheus and Markdown are text.
                content = operation["responses"]["200"].get("content", {})
                assert "schema" in content.get("application/json", {}) or path in TEXTS, (method, path)
        page = proxy.client.get("/docs").text
        assert "openapi.json" in page
        # Nothing of it is loaded from elsewhere.
        loaded = re.findall(r"""(?:src|href)=["']([^"']+)""", page)
        assert [proxy.client.get(path).status_code for path in (*loaded, "/healthz")] == [200] * 4


@pytest.mark.parametrize("path", DIALECTS)
def test_answers_to_chats_are_as_described(path: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 9, "stream": False}
    body |= {} if path != "/v1/responses/compact" else {"input": [{"role": "user", "content": "hi"}]}
    with LlamaCppFake([FakeModel("m", 4096)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        answer = proxy.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        answered(described(proxy), path, "post", answer.json(), own=False)


def test_spillways_own_answers_are_as_described() -> None:
    long = [{"role": role, "content": "word " * 60} for _ in range(20) for role in ("user", "assistant")]
    chat = {"model": "m", "messages": [*long, {"role": "user", "content": "What now?"}], "max_tokens": 20}
    with LlamaCppFake([FakeModel("m", 2048)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        paths, client = described(proxy), proxy.client
        proxy.chat(chat, **{"x-request-id": "mine"})
        (row,) = client.get("/spillway/conversations").json()["conversations"]
        values = {"conversation": row["id"], "name": "mine", "model": "m"}
        for path in OWN - {*TEXTS, "/api/show", "/spillway/explain", "/spillway/lessons"}:
            if "get" in paths[path] and "responses" not in path:
                answer = client.get(path.format(**values))
                assert answer.status_code == 200, (path, answer.text)
                answered(paths, path, "get", answer.json(), own=path.startswith("/spillway"))
        answered(paths, "/spillway/explain", "post", client.post("/spillway/explain", json=chat).json())
        answered(paths, "/api/show", "post", client.post("/api/show", json={"model": "m"}).json())
        lesson = "/spillway/lessons?backend=llamacpp&model=m&lesson=all"
        answered(paths, "/spillway/lessons", "delete", client.delete(lesson).json())
        answered(paths, "/spillway/summary_model", "put", client.put("/spillway/summary_model?model=m").json())
        compacted = client.post(f"/spillway/conversations/{row['id']}/compact")
        answered(paths, "/spillway/conversations/{conversation}/compact", "post", compacted.json())
        pins = client.put(f"/spillway/conversations/{row['id']}/pins", json={"pins": ["one"]}).json()
        answered(paths, "/spillway/conversations/{conversation}/pins", "put", pins)
        forgotten = client.delete(f"/spillway/conversations/{row['id']}/summary")
        answered(paths, "/spillway/conversations/{conversation}/summary", "delete", forgotten.json())
        deleted = client.delete(f"/spillway/conversations/{row['id']}")
        answered(paths, "/spillway/conversations/{conversation}", "delete", deleted.json())
        error = client.get("/spillway/outcomes?limit=0")
        schema = paths["/spillway/outcomes"]["get"]["responses"]["4XX"]["content"]["application/json"]["schema"]
        assert (error.status_code, strays(error.json(), schema, "", own=True)) == (400, [])

"""What clients call besides the chat route."""

import re

import pytest

from tests.fakes import FAKES, FakeModel, LlamaCppFake, LmStudioFake, VllmFake, scripted
from tests.proxying import running_proxy


@pytest.mark.parametrize("kind", FAKES)
def test_the_list_keeps_what_the_backend_sent_and_adds_to_it(kind: str) -> None:
    with FAKES[kind]([FakeModel("a/b", 4096), FakeModel("c", 8192, tools=False)]) as fake, running_proxy(fake) as proxy:
        listed = proxy.client.get("/v1/models").json()
        assert listed["object"] == "list"
        direct = {model["id"]: model for model in fake_list(fake.url)}
        for model in listed["data"]:
            sent = direct[model["id"]]
            told = {name for name in sent if "max" in name or "context" in name or name in ("meta", "top_provider")}
            assert {name: model[name] for name in sent if name not in told} == {
                name: value for name, value in sent.items() if name not in told
            }
            assert model["spillway"]["backend"] == kind
            expected = None if kind == "generic" else {"a/b": 4096, "c": 8192}[model["id"].removesuffix(":latest")]
            if kind != "llamacpp":  # one server, one window: the fake serves its first model's
                assert model["spillway"]["window"] == expected
            one = proxy.client.get(f"/v1/models/{model['id']}").json()
            assert (one["id"], one["context_length"]) == (model["id"], model["context_length"])


def fake_list(url: str) -> list[dict[str, object]]:
    import httpx

    data: list[dict[str, object]] = httpx.get(f"{url}/v1/models").json()["data"]
    return data


def test_a_model_nobody_lists_is_not_found() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        answer = proxy.client.get("/v1/models/none")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"


def test_profiles_tell_the_origin_of_every_field() -> None:
    fake = LmStudioFake([FakeModel("m", 4096, trained_window=32768)])
    with fake, running_proxy(fake, models={"m": {"tools": False}}) as proxy:
        told = proxy.client.get("/spillway/models").json()["backends"][0]
        assert told["kind"] == "lmstudio"
        model = told["models"]["m"]
        assert (model["window"]["value"], model["window"]["trust"]) == (4096, "loaded")
        assert model["trained_window"]["value"] == 32768
        assert (model["tools"]["value"], model["tools"]["trust"]) == (False, "user")
        assert model["effective"]["trigger"] == 0.8
        assert "source" in model["counting"]


def test_health_and_readiness() -> None:
    with LlamaCppFake() as fake, running_proxy(fake, profile_ttl=0.001) as proxy:
        assert proxy.client.get("/healthz").json() == {"status": "ok"}
        ready = proxy.client.get("/readyz")
        assert (ready.status_code, ready.json()["backends"]) == (200, {"llamacpp": "llamacpp"})


def test_chats_at_an_unknown_path_are_passed_on_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with VllmFake() as fake, running_proxy(fake) as proxy:
        for _ in range(2):
            assert proxy.client.post("/llm/v1/chat/completions", json={}).status_code == 404
        assert [each.path for each in fake.requests if each.method == "POST"] == ["/llm/v1/chat/completions"] * 2
    assert caplog.text.count("chats at /llm/v1/chat/completions are passed on unmanaged") == 1


def test_a_request_that_comes_back_is_refused() -> None:
    """Also one that went through other instances first, and probes, which are sent for whoever came first."""
    hello = {"messages": [{"role": "user", "content": "hi"}]}
    with LlamaCppFake() as fake, running_proxy(fake) as proxy, running_proxy(fake) as other:
        assert proxy.chat(hello).status_code == 200
        (passed,) = {each.header("x-spillway-visited") for each in fake.requests}
        assert other.chat(hello, **{"x-spillway-visited": str(passed)}).status_code == 200
        both = fake.requests[-1].header("x-spillway-visited")
        for instance in (proxy, other):
            refused = instance.client.get("/v1/models", headers={"x-spillway-visited": str(both)})
            assert (refused.status_code, refused.json()["error"]["code"]) == (508, "loop_detected")


def test_not_ready_while_no_backend_answers() -> None:
    fake = LlamaCppFake()
    with running_proxy(fake) as proxy:
        fake.stop()
        assert proxy.client.get("/readyz").status_code == 503
        assert proxy.client.get("/healthz").status_code == 200
        answer = proxy.chat({"messages": [{"role": "user", "content": "hi"}]})
        assert answer.status_code == 502
        error = answer.json()["error"]
        assert error["code"] == "upstream_unavailable"
        assert "spillway check" in error["message"]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completions", "/api/v1/chat/completions", "/chat/completions", "/chat/completions/"),
        *("//v1/chat/completions", "/v1//chat/completions", "//chat/completions"),
    ],
)
@pytest.mark.parametrize("bypass", ["0", "1"])
def test_the_chat_route_is_managed_however_the_base_url_was_typed(path: str, bypass: str) -> None:
    with LlamaCppFake(brain=scripted(["hi"])) as fake, running_proxy(fake) as proxy:
        answer = proxy.client.post(
            proxy.url + path, json={"messages": [{"role": "user", "content": "hi"}]}, headers={"x-spillway-bypass": bypass}
        )
        assert answer.status_code == 200
        assert ("x-spillway-action" in answer.headers) is (bypass == "0")
        assert fake.chats()[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("path", ["/models", "/models/", "/api/v1/models", "//v1/models", "/v1/models/"])
def test_the_model_list_is_the_same_on_every_path(path: str) -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        assert proxy.client.get(proxy.url + path).json() == proxy.client.get("/v1/models").json()


def test_other_methods_on_these_paths_go_to_the_backend() -> None:
    with LlamaCppFake() as fake, running_proxy(fake, allow=("admin",)) as proxy:
        proxy.client.post("/models/load", json={"model": "x"})
        assert (fake.requests[-1].method, fake.requests[-1].path) == ("POST", "/models/load")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_can_be_asked_for_without_a_body(path: str) -> None:
    with LlamaCppFake() as fake, running_proxy(fake, api_keys=("mine",)) as proxy:
        answer = proxy.client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("path", ["/spillway/models", "/v1/models/x", "/models", "/v1/models", "/api/tags"])
def test_every_path_asks_for_keys(path: str) -> None:
    with LlamaCppFake() as fake, running_proxy(fake, api_keys=("mine",)) as proxy:
        refused = proxy.client.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert proxy.client.get(path, headers={"x-api-key": "mine"}).status_code in (200, 404)


def test_whatever_is_described_asks_for_keys_but_health_and_the_session() -> None:
    with LlamaCppFake() as fake, running_proxy(fake, api_keys=("mine",)) as proxy:
        described = proxy.client.get("/openapi.json").json()["paths"]
        public = {
            path
            for path, operations in described.items()
            for method in operations
            if proxy.client.request(method, re.sub(r"{\w+}", "x", path)).status_code != 401
        }
        assert public == {"/healthz", "/readyz", "/spillway/session"}


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_a_browser_reads_the_documentation_without_a_key(path: str) -> None:
    with LlamaCppFake() as fake, running_proxy(fake, api_keys=("mine",)) as proxy:
        assert proxy.client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("body", "word"),
    [
        *((b"{", "JSON"), (b"[1]", "object"), (b'{"model": "m"}', "messages"), (b'{"messages": {}}', "messages")),
        (b'{"messages": [1]}', "messages[0]"),
        (b'{"messages": [{"content": "x"}]}', "role"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 200_000, "nested"),
    ],
)
def test_malformed_requests_get_an_error_that_says_what_is_wrong(body: bytes, word: str) -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        answer = proxy.client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "code", "param"}
        assert error["type"] == "invalid_request_error"
        assert word in error["message"]
        assert fake.chats() == []


def test_a_bad_content_encoding_is_refused() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        for encoding, content in (("gzip", b"not gzip"), ("br", b"x")):
            answer = proxy.client.post("/v1/chat/completions", content=content, headers={"content-encoding": encoding})
            assert answer.status_code == 400
            assert encoding in answer.json()["error"]["message"]

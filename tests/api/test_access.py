"""Who is let in, through the real server."""

import json
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from proxy.backends import BACKENDS
from proxy.core.settings import BackendSetting
from tests.fakes import FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, VllmFake, scripted
from tests.proxying import Proxy, read_stream, running_proxy

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PAGE = "https://chat.example.com"
KEY = {"authorization": "Bearer a-key"}


def raw(proxy: Proxy, head: str, body: bytes = b"") -> tuple[int, bytes]:
    place = urlsplit(proxy.url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as wire:
        wire.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        answer = b""
        while data := wire.recv(65536):
            answer += data
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]), rest.partition(b"\r\n\r\n")[2]


def refusal(answer: Any) -> tuple[int, str]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return answer.status_code, error["code"]


# Names


def test_an_open_proxy_answers_to_its_names_and_to_addresses() -> None:
    fake = LlamaCppFake(brain=scripted(["hi"] * 20))
    with fake, running_proxy(fake, allowed_hosts=("spillway", "*.example.com")) as proxy:
        for host in (
            *("localhost", "LOCALHOST:8484", "localhost.", "spillway.localhost:1", "127.0.0.1"),
            *("127.8.9.1:8484", "[::1]", "[::1]:8484", "192.168.1.7:8484", "[fd00::1]", "0.0.0.0"),
            *("host.docker.internal:8484", "host.containers.internal", "spillway", "spillway:8484"),
            *("a.example.com", "A.Example.COM."),
        ):
            assert proxy.chat(CHAT, host=host).status_code == 200, host
            assert proxy.client.get("/healthz", headers={"host": host}).status_code == 200, host


FOREIGN = (*("evil.example", "evil.example:8484", "localhost.evil.example", "127.0.0.1.nip.io", "spillway"), "a.internal")


PATHS = ("/v1/chat/completions", "/healthz", "/metrics", "/spillway/models", "/api/tags", "/spillway/live", "/ui/app.js")


@pytest.mark.parametrize("path", PATHS)
def test_a_name_that_anybody_may_have_registered_is_refused(path: str) -> None:
    with OllamaFake() as fake, running_proxy(fake) as proxy:
        for host in FOREIGN:
            answer = proxy.client.request("POST" if "chat" in path else "GET", path, headers={"host": host})
            assert refusal(answer) == (403, "host_not_allowed")
            assert "SPILLWAY_ALLOWED_HOSTS" in answer.json()["error"]["message"]
        assert fake.requests == []


def test_the_name_by_which_it_listens_is_one_of_its_own() -> None:
    with LlamaCppFake() as fake, running_proxy(fake, host="box", allow=("open",)) as proxy:
        assert proxy.client.get("/healthz", headers={"host": "Box:8484"}).status_code == 200
        assert proxy.client.get("/healthz", headers={"host": "boxes"}).status_code == 403


@pytest.mark.parametrize("listed", [(), ("spillway", "gateway")])
def test_with_keys_the_key_is_what_counts(listed: tuple[str, ...]) -> None:
    """The names that docker-compose.yml lists are for those who have no keys."""
    fake = LlamaCppFake(brain=scripted(["hi"] * 2))
    with fake, running_proxy(fake, api_keys=("a-key",), allowed_hosts=listed) as proxy:
        assert proxy.chat(CHAT, host="any.example", **KEY).status_code == 200
        assert proxy.chat(CHAT, host="any.example").status_code == 401


NAMELESS = [
    "GET /healthz HTTP/1.1",
    "GET /healthz HTTP/1.1\nHost: localhost\nHost: evil.example",
    "GET /healthz HTTP/1.1\nHost: localhost\nHost: localhost",
    "GET /healthz HTTP/1.1\nHost: localhost, evil.example",
    "GET /healthz HTTP/1.1\nHost: me@localhost",
    "GET /healthz HTTP/1.1\nHost: localhost/x",
    "GET /healthz HTTP/1.1\nHost: localhost:http",
    "GET /healthz HTTP/1.1\nHost: loc\xe4lhost",
    "GET /healthz HTTP/1.1\nHost:",
    "POST /v1/chat/completions HTTP/1.1\nHost: localhost\nHost: localhost\nContent-Length: 0",
]


@pytest.mark.parametrize("keys", [(), ("a-key",)])
def test_a_request_says_once_whom_it_calls(keys: tuple[str, ...]) -> None:
    with LlamaCppFake() as fake, running_proxy(fake, api_keys=keys) as proxy:
        for head in NAMELESS:
            status, body = raw(proxy, f"{head}\nAuthorization: Bearer a-key\nConnection: close")
            assert status == 400, head
            assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_old_probes_need_not_say_whom_they_call() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        assert raw(proxy, "GET /healthz HTTP/1.0")[0] == 200
        assert raw(proxy, "GET /healthz HTTP/1.0\nHost: evil.example")[0] == 403
        assert raw(proxy, "GET /healthz HTTP/1.1\nHost:\tlocalhost \t\nConnection: close")[0] == 200


# Pages


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "/v1/chat/completions"), ("POST", "/spillway/explain"), ("GET", "/v1/models"), ("POST", "/api/me")),
        *(("OPTIONS", "/v1/chat/completions"), ("OPTIONS", "/api/tags")),
    ],
)
def test_a_foreign_page_is_refused(method: str, path: str) -> None:
    with OllamaFake() as fake, running_proxy(fake) as proxy:
        for origin in (
            *("https://evil.example", "http://localhost:3000", "null", "file://"),
            *(f"{proxy.url}.evil.example", f"{proxy.url}, https://evil.example"),
        ):
            headers = {"origin": origin, "content-type": "text/plain", "access-control-request-method": "POST"}
            answer = proxy.client.request(method, path, content=json.dumps(CHAT), headers=headers)
            assert refusal(answer) == (403, "origin_not_allowed"), origin
            assert "SPILLWAY_CORS" in answer.json()["error"]["message"]
            assert "access-control-allow-origin" not in answer.headers
        assert fake.requests == []


def test_a_page_of_spillways_own_may_call_it() -> None:
    with LlamaCppFake(brain=scripted(["hi"])) as fake, running_proxy(fake) as proxy:
        for own in (proxy.url, proxy.url.replace("http:", "https:")):
            assert proxy.client.get("/spillway/models", headers={"origin": own}).status_code == 200


def test_what_a_page_embeds_is_refused_and_a_link_is_not() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:

        def status(site: str, mode: str) -> int:
            headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
            return proxy.client.get("/v1/models", headers=headers).status_code

        assert (status("cross-site", "no-cors"), status("same-site", "cors")) == (403, 403)
        assert (status("cross-site", "navigate"), status("same-origin", "cors"), status("none", "cors")) == (*(200, 200, 200),)


def test_an_allowed_page_is_answered_with_what_browsers_ask_for() -> None:
    fake = LlamaCppFake(brain=scripted(["hi there"] * 3))
    with fake, running_proxy(fake, cors=("https://*.example.com", "http://localhost:3000/")) as proxy:
        whole = proxy.chat(CHAT, origin=PAGE)
        streamed = proxy.chat({**CHAT, "stream": True}, origin=PAGE)
        malformed = proxy.chat({}, origin=PAGE)
        own = proxy.client.get("/v1/models", headers={"origin": "http://localhost:3000"})
        passed = proxy.client.get("/nothing/here", headers={"origin": PAGE})
        assert [a.status_code for a in (whole, streamed, malformed, own, passed)] == [200, 200, 400, 200, 404]
        assert read_stream(streamed.content).text == "hi there"
        for answer in (whole, streamed, malformed, passed):
            assert answer.headers.get_list("access-control-allow-origin") == [PAGE]
            assert answer.headers["access-control-expose-headers"] == "*"
            assert "Origin" in answer.headers["vary"]
            assert "access-control-allow-credentials" not in answer.headers
        assert own.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert proxy.chat(CHAT, origin="https://example.com").status_code == 403
        assert "access-control-allow-origin" not in proxy.client.get("/v1/models").headers
        assert all(request.header("origin") is None for request in fake.requests)


@pytest.mark.parametrize("keys", [(), ("a-key",)])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/api/tags", "/spillway/explain"])
def test_a_browser_is_told_that_it_may_send_a_request(path: str, keys: tuple[str, ...]) -> None:
    with LlamaCppFake() as fake, running_proxy(fake, api_keys=keys, cors=(PAGE,)) as proxy:
        before = len(fake.requests)
        answer = proxy.client.options(
            path,
            headers={
                "origin": PAGE,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type,x-stainless-lang",
                "access-control-request-private-network": "true",
            },
        )
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-lang"
        assert answer.headers["access-control-allow-private-network"] == "true"
        assert len(fake.requests) == before


def test_with_keys_a_page_needs_one_and_may_read_that_it_does() -> None:
    with LlamaCppFake(brain=scripted(["hi"] * 2)) as fake, running_proxy(fake, api_keys=("a-key",), cors=(PAGE,)) as proxy:
        refused = proxy.chat(CHAT, origin=PAGE)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        assert proxy.chat(CHAT, origin=PAGE, **KEY).status_code == 200
        other = proxy.chat(CHAT, origin="https://other.example", **KEY)
        assert (other.status_code, other.headers.get("access-control-allow-origin")) == (200, None)
        asked = proxy.client.options(
            "/v1/models", headers={"origin": "https://other.example", "access-control-request-method": "GET"}
        )
        assert (asked.status_code, asked.headers.get("access-control-allow-origin")) == (400, None)


def test_a_backend_does_not_open_what_spillway_closed(stream: bool) -> None:
    with LlamaCppFake(brain=scripted(["hi"] * 2)) as fake, running_proxy(fake) as proxy:
        opened = [("access-control-allow-origin", "*"), ("access-control-allow-credentials", "true")]
        fake.common_headers = lambda: opened  # type: ignore[method-assign]
        for answer in (
            proxy.chat({**CHAT, "stream": stream}),
            proxy.chat({**CHAT, "stream": stream}, **{"x-spillway-bypass": "1"}),
            proxy.client.get("/slots"),
            proxy.client.get("/v1/models"),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "access-control-allow-origin" in dict(fake.chats()[0].response_headers)


# What only the operator may do

ADMIN = [
    *(("DELETE", "/api/delete"), ("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create")),
    *(("POST", "/api/copy"), ("POST", "/api/blobs/sha256:29fdb92e57cf0827ded04ae6461b5931d01fa595"), ("POST", "/api/signout")),
    *(("POST", "/api/v1/models/load"), ("POST", "/api/v1/models/unload"), ("POST", "/api/v1/models/download")),
    *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/models/load"), ("POST", "/models/unload")),
    *(("POST", "/slots/0?action=erase"), ("POST", "/props"), ("POST", "/lora-adapters"), ("GET", "/v1/streams")),
    *(("GET", "/cors-proxy?url=http://169.254.169.254/"), ("POST", "/tools"), ("DELETE", "/v1/stream/abc")),
    *(("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter"), ("POST", "/sleep?level=2")),
    *(("POST", "/wake_up"), ("POST", "/reset_prefix_cache"), ("POST", "/reset_mm_cache"), ("POST", "/collective_rpc")),
    *(("POST", "/update_weights"), ("POST", "/start_weight_update"), ("POST", "/scale_elastic_ep"), ("POST", "/pause")),
    *(("POST", "/v1/keys"), ("DELETE", "/v1/keys/abc"), ("DELETE", "/v1/models/ft:mine"), ("GET", "/unload")),
    *(("GET", "/flush_cache"), ("GET", "/upstream/m/slots")),
]
DISGUISED = [
    *("//api//delete", "/api/delete/", "/API/Delete", "/api/%64elete", "/%61pi%2fdelete", "/api/./delete"),
    *("/api/%2564elete", "/api\\delete", "/api/delete;x=1", "/ollama/api/delete", "/api/delete%20", "/api%5cdelete"),
]


def test_without_keys_nobody_changes_what_a_backend_serves() -> None:
    with OllamaFake() as fake, running_proxy(fake) as proxy:
        for method, path in (*ADMIN, *(("DELETE", path) for path in DISGUISED)):
            head = f"{method} {path} HTTP/1.1\nHost: localhost\nContent-Length: 0\nConnection: close"
            status, body = raw(proxy, head)
            assert (status, json.loads(body)["error"]["code"]) == (403, "path_not_allowed"), path
            assert "SPILLWAY_ALLOW=admin" in json.loads(body)["error"]["message"]
        assert fake.requests == []


@pytest.mark.parametrize(("settings", "headers"), [({"allow": ("admin",)}, {}), ({"api_keys": ("a-key",)}, KEY)])
def test_a_key_or_a_setting_lets_one_change_it(settings: dict[str, Any], headers: dict[str, str]) -> None:
    with LmStudioFake() as fake, running_proxy(fake, **settings) as proxy:
        for method, path in ADMIN:
            answer = proxy.client.request(method, path, headers=headers)
            assert answer.status_code not in (401, 403)
            assert (fake.requests[-1].method, fake.requests[-1].path) == (method, path.partition("?")[0])


def test_what_changes_nothing_is_passed_on() -> None:
    with OllamaFake() as fake, running_proxy(fake) as proxy:
        for method, path in (
            *(("GET", "/props"), ("GET", "/slots"), ("GET", "/lora-adapters"), ("HEAD", "/api/blobs/sha256:1")),
            *(("POST", "/api/show"), ("GET", "/api/v1/models/download/status"), ("POST", "/v1/embeddings")),
            *(("POST", "/tokenize"), ("GET", "/api/ps"), ("POST", "/v1/rerank"), ("DELETE", "/v1/files/x")),
        ):
            proxy.client.request(method, path)
            assert (fake.requests[-1].method, fake.requests[-1].path) == (method, path)


def test_every_kind_says_what_only_an_operator_may_do() -> None:
    for backend in BACKENDS:
        for glob in backend.admin:
            assert re.fullmatch(r"(?:\*|[A-Z]+) \*/[a-z0-9_*/.-]+", glob), (backend.kind, glob)


# Paths

CLIMBING = [
    *("/../admin", "/v1/../../admin", "/v1/x/..", "/%2e%2e/admin", "/.%2E/admin", "/..%2fadmin", "/v1/..%5cadmin"),
    *("/..\\admin", "/v1\\..\\..\\admin", "/%252e%252e/admin", "/..;/admin", "/..;x=1/admin", "/%2e%2e%3b/admin"),
    *("/v1/%2e%2e%2f%2e%2e%2fadmin", "/%25252e%25252e/admin", "/..%20/admin"),
    *("/v1/models/%ED%A0%80", "/v1/models/%ff", "/v1/files/%FE", "/v1/x%00", "/v1/x%0d%0aHost:%20a", "/x%7f"),
    "/%" + "25" * 8 + "2e",
]


@pytest.mark.parametrize("api_keys", [(), ("a-key",)])
def test_no_path_leaves_a_backends_own(api_keys: tuple[str, ...]) -> None:
    with OllamaFake() as fake:
        backend = BackendSetting(url=f"{fake.url}/prefix", name="b")
        with running_proxy(backend, api_keys=api_keys) as proxy:
            for path in CLIMBING:
                head = f"GET {path} HTTP/1.1\nHost: localhost\nAuthorization: Bearer a-key\nConnection: close"
                status, body = raw(proxy, head)
                assert status == 400, path
                assert "path" in json.loads(body)["error"]["message"]
            assert fake.requests == []


# Keys


@pytest.mark.parametrize(
    "key", ["a", "short", "x" * 2000, "with space inside", "Schlüssel-ß", "🔑-key", "sk-+/=%2B", "Basic a"]
)
def test_a_key_may_be_of_any_length_and_letters(key: str) -> None:
    with LlamaCppFake(brain=scripted(["hi"] * 3)) as fake, running_proxy(fake, api_keys=("other", key)) as proxy:
        for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key), ("authorization", key)):
            answer = proxy.client.post("/v1/chat/completions", json=CHAT, headers=[(name.encode(), value.encode())])
            assert answer.status_code == 200
            assert fake.chats()[-1].header(name) is None
        for wrong in ("x" + key, key + "x", key.swapcase() + "1"):
            answer = proxy.client.get("/v1/models", headers=[(b"authorization", b"Bearer " + wrong.encode())])
            assert answer.status_code == 401


SECRET = "sk-spillway-0123456789"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("authorization", f"Token {SECRET}"), ("authorization", f"Bearer {SECRET}"), ("api-key", SECRET)),
        *(("x-goog-api-key", SECRET), ("cookie", f"sid=1; token={SECRET}"), ("x-anything", f"k:{SECRET}!")),
        ("authorization", "Basic dXNlcjpzay1zcGlsbHdheS0wMTIzNDU2Nzg5"),
        ("x-url", f"https://a/?k={SECRET.replace('-', '%2D')}"),
    ],
)
def test_a_key_of_spillways_reaches_no_backend_in_any_header(name: str, value: str) -> None:
    with LlamaCppFake(brain=scripted(["hi"] * 4)) as fake, running_proxy(fake, api_keys=(SECRET, "a-key")) as proxy:
        headers = {"x-api-key": "a-key", "x-kept": "1", name: value}
        query = f"?key={SECRET}&kept=1&k={SECRET.replace('-', '%2d')}"
        proxy.chat(CHAT, **headers)
        proxy.chat(CHAT, **headers, **{"x-spillway-bypass": "1"})
        proxy.client.post(f"/v1/embeddings{query}", json={}, headers=headers)
        proxy.client.get(f"/nothing{query}", headers=headers)
        sent = [request for request in fake.requests if request.header("x-kept")]
        assert len(sent) == 4
        for request in sent:
            told = repr((request.headers, request.query))
            assert SECRET not in told
            assert "dXNl" not in told
            assert "%2d" not in told.lower()
            assert request.header(name) is None
        assert sent[-1].query == "kept=1"


def test_only_those_with_a_key_see_behind() -> None:
    with LlamaCppFake() as fake, running_proxy(fake, api_keys=("a-key",)) as proxy:
        for path in ("/metrics", "/spillway/models"):
            assert proxy.client.get(path).status_code == 401
            assert proxy.client.get(path, headers=KEY).status_code == 200
        assert proxy.client.post("/spillway/explain", json=CHAT).status_code == 401
        ready = proxy.client.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        assert proxy.client.get("/readyz", headers={"x-api-key": "wrong"}).json() == {"status": "ready"}
        told = proxy.client.get("/readyz", headers=KEY).json()
        assert told == {"status": "ready", "backends": {"llamacpp": "llamacpp"}, "store": "ok"}


def test_metrics_may_be_open_where_the_rest_is_not() -> None:
    with LlamaCppFake() as fake, running_proxy(fake, api_keys=("a-key",), allow=("metrics",)) as proxy:
        assert "spillway_requests" in proxy.client.get("/metrics").text
        assert proxy.client.get("/spillway/models").status_code == 401


def test_a_backends_password_is_used_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    with VllmFake([FakeModel("m", 4096)], brain=scripted(["hi"])) as fake:
        backend = BackendSetting(url=fake.url.replace("://", "://us%40er:s3cr%3At@") + "/v1", name="b")
        with running_proxy(backend) as proxy:
            assert proxy.chat({**CHAT, "model": "m"}, authorization="Bearer client").status_code == 200
            told = [proxy.client.get(path).text for path in ("/spillway/models", "/readyz", "/v1/models", "/metrics")]
            assert {request.header("authorization") for request in fake.requests} == {"Basic dXNAZXI6czNjcjp0"}
            fake.stop()
            told.append(proxy.chat(CHAT).text)
            told.append(proxy.client.get("/api/x").text)
        assert fake.url.removeprefix("http://") in told[0]
        assert "s3cr" not in repr((told, caplog.text, backend))
        assert "us%40er" not in repr((told, caplog.text, backend))

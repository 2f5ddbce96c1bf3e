"""What is passed on goes to the backend of the model that it names, by the name that the model has there."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.core.settings import BackendSetting
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, VllmFake
from tests.proxying import Proxy, running_proxy

SHARED = FakeModel("shared")


@contextmanager
def two(**settings: Any) -> Iterator[tuple[Proxy, FakeBackend, FakeBackend]]:
    """A proxy in front of two backends: `llamacpp`, and `vllm` with the model `second`; both have `shared`."""
    first = LlamaCppFake([SHARED])
    second = VllmFake([FakeModel("second"), SHARED])
    with first, second, running_proxy(first, second, **settings) as proxy:
        proxy.client.get("/v1/models")
        yield proxy, first, second


def seen(fake: FakeBackend, path: str) -> list[Any]:
    return [request for request in fake.requests if request.path == path]


def body_for(model: str, size: int = 0) -> bytes:
    """JSON in which the model stands last."""
    return b' \n{"input": "' + b"x" * size + b'", "f": 1.00e0, "model": "' + model.encode() + b'"}'


FRAMINGS: dict[str, tuple[Any, dict[str, str]]] = {
    "plain": (body_for("second"), {"content-type": "application/json"}),
    "curl": (body_for("second"), {"content-type": "application/x-www-form-urlencoded"}),
    "text": (body_for("second"), {"content-type": "text/plain;charset=UTF-8"}),
    "no type": (body_for("second"), {}),
    "mark": (b"\xef\xbb\xbf" + body_for("second"), {}),
    "chunked": ([body_for("second")[:20], body_for("second")[20:]], {"content-type": "application/json"}),
    "slowly": ([bytes([each]) for each in body_for("second")], {}),
    "gzip": (gzip.compress(body_for("second")), {"content-encoding": "gzip"}),
    "deflate": (zlib.compress(body_for("second")), {"content-encoding": "deflate"}),
    "gzip chunked": ([gzip.compress(body_for("second"))], {"content-encoding": "gzip"}),
    "large": (body_for("second", 9 * 2**20), {"content-type": "application/json"}),
    "large chunked": ([body_for("second", 9 * 2**20)], {}),
    "large gzip": (gzip.compress(body_for("second", 9 * 2**20), 1), {"content-encoding": "gzip"}),
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_body_finds_its_backend_however_it_is_framed(framing: str) -> None:
    content, headers = FRAMINGS[framing]
    whole = content if isinstance(content, bytes) else b"".join(content)
    sent = content if isinstance(content, bytes) else iter(content)
    with two() as (proxy, first, second):
        proxy.client.post("/v1/embeddings", content=sent, headers=headers)
        assert seen(first, "/v1/embeddings") == []
        (request,) = seen(second, "/v1/embeddings")
        assert request.body == whole
        assert request.header("content-length") == str(len(whole))
        assert request.header("content-type") == headers.get("content-type")
        assert request.header("content-encoding") == headers.get("content-encoding")


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_model_goes_by_the_name_that_its_backend_knows(encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else bytes
    headers = {"content-encoding": "gzip"} if encoding == "gzip" else {}
    chat = {"messages": [{"role": "user", "content": "hi"}], "model": "vllm/shared", "x": 1}
    unmanaged = {"vllm/*": {"managed": False}, "shared": {"managed": False}}
    with two(models=unmanaged) as (proxy, first, second):
        proxy.client.post("/v1/embeddings", content=pack(body_for("vllm/shared")), headers=headers)
        proxy.client.post("/v1/chat/completions", content=pack(json.dumps(chat).encode()), headers=headers)
        bypass = {**headers, "x-spillway-bypass": "1"}
        proxy.client.post("/v1/chat/completions", content=pack(json.dumps(chat).encode()), headers=bypass)
        assert [r for r in first.requests if r.method == "POST"] == []
        embedded, *chats = [r for r in second.requests if r.method == "POST"]
        assert json.loads(embedded.body) == {"input": "", "f": 1.0, "model": "shared"}
        assert [json.loads(each.body) for each in chats] == [{**chat, "model": "shared"}] * 2
        for each in (embedded, *chats):
            assert (each.header("content-encoding"), each.header("content-length")) == (None, str(len(each.body)))


@pytest.mark.parametrize(
    ("kind", "path", "says"),
    [
        *((kind, "", "'sharde'; the nearest are shared") for kind in (LmStudioFake, OllamaFake, VllmFake)),
        (LlamaCppFake, "/llm", "no backend lists any model. `spillway check` says what to do."),
    ],
)
def test_where_no_backend_lists_a_model_the_answer_names_the_nearest(kind: type[FakeBackend], path: str, says: str) -> None:
    with kind([SHARED]) as fake, running_proxy(BackendSetting(url=fake.url + path)) as proxy:
        refused = proxy.chat({"model": "sharde", "messages": [{"role": "user", "content": "hi"}]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert says in refused.json()["error"]["message"]


@pytest.mark.parametrize("second", ["127.0.0.1", "localhost"])
def test_a_backend_without_a_name_goes_by_its_kind_and_port_unless_another_has_that_port(second: str) -> None:
    with LlamaCppFake([SHARED]) as fake, VllmFake([SHARED]) as other:
        urls = [fake.url, (fake if second == "localhost" else other).url.replace("127.0.0.1", second)]
        (_, port), (_, port_of_second) = (url.rsplit(":", 1) for url in urls)
        kept = [f"127.0.0.1-{port}", f"{second}-{port_of_second}"]
        shown = kept if second == "localhost" else [f"llamacpp-{port}", f"vllm-{port_of_second}"]
        with running_proxy(*(BackendSetting(url=url) for url in urls)) as proxy:
            listed = [each["id"] for each in proxy.client.get("/v1/models").json()["data"]]
            assert listed == ["shared", *(f"{name}/shared" for name in shown)]
            assert list(proxy.client.get("/readyz").json()["backends"]) == shown
            for name in (shown[1], kept[1]):
                answer = proxy.chat({"model": f"{name}/shared", "messages": [{"role": "user", "content": "hi"}]})
                assert answer.headers["x-spillway-backend"] == shown[1]
                assert proxy.client.get(f"/v1/models/{name}/shared").json()["spillway"]["backend"] == shown[1]


@pytest.mark.parametrize("before", ["", "127.0.0.1-{}"])
def test_what_is_stored_for_a_backend_does_not_depend_on_the_name_that_people_see(tmp_path: Path, before: str) -> None:
    talk = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 150} for n in range(11)]
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/kept.sqlite3", "strategy": "truncate"}
    with LlamaCppFake([FakeModel("m", 2048)]) as fake:
        port, sent = fake.url.rpartition(":")[2], list[tuple[str, str]]()
        for name in (before.format(port), ""):
            with running_proxy(BackendSetting(url=fake.url, name=name), **settings) as proxy:
                answer = proxy.chat({"model": "m", "messages": talk, "max_tokens": 9})
                sent.append((answer.headers["x-spillway-action"], answer.headers["x-spillway-backend"]))
        shown = f"llamacpp-{port}"
        assert sent == [("trimmed", before.format(port) or shown), ("continued", shown)]


def form(model: str, *, first: bool = True) -> bytes:
    field = f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode()
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"\x00" * 50_000 + b"\r\n"
    return (field + file if first else file + field) + b"--b--\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("name", "own"), [("second", "second"), ("vllm/shared", "shared")])
def test_a_form_finds_its_backend_too(name: str, own: str, first: bool, chunked: bool) -> None:
    """Wherever in it the model stands: what the API's own examples send begins with the file."""
    headers = {"content-type": "multipart/form-data; boundary=b"}
    sent, expected = form(name, first=first), form(own, first=first)
    with two() as (proxy, other, second):
        content = iter([sent]) if chunked else sent
        proxy.client.post("/v1/audio/transcriptions", content=content, headers=headers)
        assert seen(other, "/v1/audio/transcriptions") == []
        (request,) = seen(second, "/v1/audio/transcriptions")
        assert request.body == expected
        assert request.header("content-length") == (None if chunked else str(len(expected)))


def test_a_body_keeps_its_length_and_what_names_no_model_goes_to_the_first() -> None:
    with two() as (proxy, first, second):
        for content in (b"RIFF" * 50_000, b"[1]", b"{broken", b"not { json", b"{}", b'{"model": 5}'):
            proxy.client.post("/v1/x", content=content, headers={"content-type": "audio/wav"})
            request = first.requests[-1]
            assert (request.path, request.body) == ("/v1/x", content)
            assert request.header("content-length") == str(len(content))
        proxy.client.post("/v1/x", content=iter([b"a", b"b"]))
        assert first.requests[-1].header("content-length") is None
        assert first.requests[-1].header("transfer-encoding") == "chunked"
        proxy.client.get("/v1/x")
        proxy.client.post("/v1/x")
        assert [r.header("content-length") for r in first.requests[-2:]] == [None, "0"]
        assert seen(second, "/v1/x") == []


def test_json_that_is_larger_than_is_accepted_is_refused() -> None:
    with two(max_body=10_000) as (proxy, first, second):
        for content in (body_for("second", 20_000), iter([body_for("second", 20_000)])):
            answer = proxy.client.post("/v1/embeddings", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        bomb = gzip.compress(body_for("second", 20_000))
        answer = proxy.client.post("/v1/embeddings", content=bomb, headers={"content-encoding": "gzip"})
        assert answer.status_code == 413
        assert seen(first, "/v1/embeddings") + seen(second, "/v1/embeddings") == []
        proxy.client.post("/v1/audio/x", content=b"R" * 20_000)
        assert len(seen(first, "/v1/audio/x")) == 1


def test_a_kinds_own_paths_go_to_that_kind() -> None:
    vllm = VllmFake([FakeModel("a")])
    studio = LmStudioFake([FakeModel("b")])
    llama = LlamaCppFake([FakeModel("c")])
    ollama = OllamaFake([FakeModel("d")])
    with vllm, studio, llama, ollama, running_proxy(vllm, studio, llama, ollama, allow=("admin",)) as proxy:
        for fake, method, path in (
            *((ollama, "GET", "/api/tags"), (ollama, "GET", "/api/ps"), (ollama, "HEAD", "/api/blobs/sha256:1")),
            *((studio, "GET", "/api/v0/models"), (studio, "GET", "/api/v1/models/download/status")),
            *((llama, "GET", "/props"), (llama, "GET", "/slots"), (vllm, "POST", "/sleep"), (vllm, "GET", "/else")),
        ):
            proxy.client.request(method, path)
            assert (fake.requests[-1].method, fake.requests[-1].path) == (method, path)
        for body in ({"name": "d"}, {"model": "d"}):
            proxy.client.post("/api/show", json=body)
            assert ollama.requests[-1].json == body

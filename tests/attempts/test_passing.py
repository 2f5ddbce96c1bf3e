"""What Spillway does not manage passes untouched; what it manages does too, below the trigger."""

import gzip
import hashlib
import json
import re
from typing import Any

import httpx
import pytest

from proxy.core.settings import BackendSetting
from tests.fakes import FAKES, FakeBackend, FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, VllmFake, scripted
from tests.proxying import Proxy, running_proxy

USAGE = b'"stream_options":{"include_usage":true},'


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def unnumbered(stream: bytes) -> bytes:
    """A stream without what differs from one answer to the next: its id, and timings."""
    made_by = re.sub(rb'"id": ?"[^"]*"', b'"id":""', stream)
    return re.sub(rb'("timings": ?)\{[^}]*\}', rb"\1{}", made_by)


NO_USAGE = {"stream": True, "stream_options": {"include_usage": False}}


def body_of(fake: FakeBackend, **fields: Any) -> bytes:
    """A body in a spelling that no serialiser would produce, with fields nobody knows."""
    text = json.dumps({"messages": [{"role": "user", "content": "héllo \U0001f600", "x": 1.0}], **fields}, indent=3)
    return text.replace("1.0", "1.00e0").encode()


def post(proxy: Proxy, body: bytes, **headers: str) -> httpx.Response:
    return proxy.client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json", **headers})


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [*((kind, {}) for kind in FAKES if kind != "ollama"), ("llamacpp", {"tools": [LOOK]})],  # that takes another form
)
def test_below_the_trigger_both_bodies_are_identical(kind: str, fields: dict[str, Any], stream: bool) -> None:
    with FAKES[kind](brain=scripted(["one two three"])) as fake, running_proxy(fake) as proxy:
        body = body_of(fake, model="fake-model", **fields, **(NO_USAGE if stream else {}))
        answer = post(proxy, body)
        assert answer.status_code == 200
        (seen,) = fake.chats()
        assert sha(seen.body) == sha(body)
        assert sha(answer.content) == seen.sha256
        assert answer.headers["x-spillway-action"] == "forwarded"
        assert "x-spillway-tools" not in answer.headers


@pytest.mark.parametrize("kind", ["lmstudio", "llamacpp", "vllm"])
def test_usage_is_asked_for_by_a_splice_and_taken_out_again(kind: str) -> None:
    with FAKES[kind](brain=scripted(["one two three"] * 2)) as fake:
        body = body_of(fake, model="fake-model", stream=True)
        with running_proxy(fake) as proxy:
            answer = post(proxy, body)
        direct = httpx.post(f"{fake.url}/v1/chat/completions", content=body)
        asked, plain = fake.chats()
        brace = body.index(b"{") + 1
        assert asked.body == body[:brace] + USAGE + body[brace:]
        assert b'"usage"' in asked.response
        assert b'"usage"' not in answer.content
        assert plain.body == body
        assert unnumbered(answer.content) == unnumbered(direct.content)


@pytest.mark.parametrize("wish", [True, False])
def test_a_client_that_spoke_of_usage_is_left_alone(wish: bool) -> None:
    with VllmFake(brain=scripted(["one two"])) as fake, running_proxy(fake) as proxy:
        body = body_of(fake, model="fake-model", stream=True, stream_options={"include_usage": wish})
        answer = post(proxy, body)
        assert fake.chats()[0].body == body
        assert sha(answer.content) == fake.chats()[0].sha256


def test_a_compressed_request_passes_as_it_came(stream: bool) -> None:
    with LlamaCppFake(brain=scripted(["one two three"]), gzip=True) as fake, running_proxy(fake) as proxy:
        body = gzip.compress(body_of(fake, model="fake-model", **(NO_USAGE if stream else {})))
        with proxy.client.stream(
            "POST",
            "/v1/chat/completions",
            content=body,
            headers={"content-type": "application/json", "content-encoding": "gzip", "accept-encoding": "gzip"},
        ) as answer:
            raw = b"".join(answer.iter_raw())
        (seen,) = fake.chats()
        assert seen.body == body
        assert raw == seen.response
        assert "content-encoding" not in answer.headers


def test_other_paths_pass_streaming_and_whole() -> None:
    with OllamaFake() as fake, running_proxy(fake) as proxy, httpx.Client(base_url=fake.url) as direct:
        for method, path, body in (
            ("POST", "/v1/embeddings", {"model": "fake-model", "input": "x"}),
            ("POST", "/api/embed", {"model": "fake-model", "input": "x"}),
            ("POST", "/api/generate", {"model": "fake-model", "prompt": "hi"}),
            ("POST", "/v1/completions", {"model": "fake-model", "prompt": "hi", "stream": True}),
            ("GET", "/api/tags?x=1&y=%26", None),
            ("GET", "/nothing/here", None),
        ):
            through = proxy.client.request(method, path, json=body)
            straight = direct.request(method, path, json=body)
            assert through.status_code == straight.status_code
            assert sha(fake.response_bytes[-2]) == sha(through.content)
            assert fake.requests[-1].query == fake.requests[-2].query
            assert fake.requests[-1].body == fake.requests[-2].body


def test_every_answer_tells_the_id_of_its_request(stream: bool) -> None:
    with LlamaCppFake(brain=scripted(["hi"] * 2)) as fake, running_proxy(fake) as proxy:
        named = {"x-request-id": "mine"}
        chat = post(proxy, body_of(fake, model="fake-model", stream=stream), **named)
        refused = post(proxy, b"{", **named)
        passed = proxy.client.get("/nothing/here", headers=named)
        assert [answer.headers["x-request-id"] for answer in (chat, refused, passed)] == ["mine"] * 3
        fake.fail_next(429, b"{}", [("x-request-id", "theirs")])
        answer = post(proxy, body_of(fake, model="fake-model", stream=stream))
        assert answer.headers["x-upstream-request-id"] == "theirs"
        assert answer.headers["x-request-id"].startswith("req_")


def test_a_streamed_upload_passes() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        parts = [b"a" * 1000, b"b" * 100_000, b"c"]
        proxy.client.post("/v1/audio/transcriptions", content=iter(parts), headers={"content-type": "audio/wav"})
        assert fake.requests[-1].body == b"".join(parts)


def test_bypass_forwards_even_what_is_too_long() -> None:
    with LlamaCppFake(window=512) as fake, running_proxy(fake) as proxy:
        body = body_of(fake, model="fake-model", padding=1, stream=False).replace(b"llo", b"llo " * 900)
        answer = post(proxy, body, **{"x-spillway-bypass": "1"})
        assert answer.status_code == 400
        assert answer.content == fake.chats()[0].response
        assert fake.chats()[0].body == body
        assert "x-spillway-action" not in answer.headers
        assert fake.chats()[0].header("x-spillway-bypass") is None


@pytest.mark.parametrize(
    ("backend_managed", "models", "managed"),
    [
        (True, {}, {"one": True, "two": True}), (True, {"o*": {"managed": False}}, {"one": False, "two": True}),
        (False, {}, {"one": False, "two": False}), (False, {"two": {"managed": True}}, {"one": False, "two": True}),
    ],
)  # fmt: skip
def test_what_is_not_managed_passes_untouched(backend_managed: bool, models: dict[str, Any], managed: dict[str, bool]) -> None:
    with VllmFake([FakeModel("one", 4096), FakeModel("two", 4096)], brain=scripted(["hi"] * 2)) as fake:
        backend = BackendSetting(url=fake.url, managed=backend_managed)
        with running_proxy(backend, models=models) as proxy:
            listed = {each["id"]: each["spillway"] for each in proxy.client.get("/v1/models").json()["data"]}
            told = proxy.client.get("/spillway/models").json()["backends"][0]["models"]
            for model, expected in managed.items():
                body = gzip.compress(body_of(fake, model=model, stream=True))
                answer = post(proxy, body, **{"content-encoding": "gzip"})
                seen = fake.chats()[-1]
                assert ("x-spillway-action" in answer.headers) is expected
                assert (seen.body == body and answer.content == seen.response) is not expected
                assert listed[model]["managed"] is told[model]["effective"]["managed"] is expected
                question = {"model": model, "messages": [{"role": "user", "content": "x"}]}
                explained = proxy.client.post("/spillway/explain", json=question).json()
                assert (explained["action"] != "passed") is expected


def test_an_error_of_the_backend_passes_unchanged(stream: bool) -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        raw = b'{ "error": {"message": "slow down", "code": 429} }'
        fake.fail_next(429, raw, [("retry-after", "7"), ("content-type", "application/json")])
        answer = post(proxy, body_of(fake, model="fake-model", stream=stream))
        assert (answer.status_code, answer.content) == (429, raw)
        assert answer.headers["retry-after"] == "7"


def test_numbers_that_json_has_not_pass() -> None:
    with LlamaCppFake(brain=scripted(["hi"])) as fake, running_proxy(fake) as proxy:
        body = b'{"model":"fake-model","temperature":NaN,"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
        fake.fail_next(200, b"{}", [("content-type", "application/json")])
        assert post(proxy, body).status_code == 200
        assert fake.chats()[0].body == body


HALF = b"\\uD83D"
BAD_TEXT = [
    b'{"model": "fake-model", "messages": [{"role": "user", "content": "' + HALF + b' cut"}]}',
    b'{"model": "fake-model", "messages": [{"role": "user", "content": [{"type": "text", "text": "' + HALF + b'"}]}]}',
    b'{"model": "half ' + HALF + b'", "messages": [{"role": "user", "content": "hi"}]}',
    b'{"model": "fake-model", "' + HALF + b'": 1, "messages": [{"role": "user", "content": "hi"}]}',
    b'{"model": "fake-model", "tools": [{"type": "function", "function": {"name": "\\udc00\\ud800"}}], "messages": []}',
    b'{"model": "fake-model", "messages": [{"role": "user", "content": "\xed\xa0\xbd"}]}',
    b'{"model": "fake-model", "messages": [{"role": "user", "content": "\xff"}]}',
    '{"model": "fake-model", "messages": []}'.encode("utf-16"),
]


@pytest.mark.parametrize("bypass", ["0", "1"])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/spillway/explain", "/v1/embeddings"]
)
def test_text_that_is_none_is_refused_at_the_door(path: str, bypass: str) -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        for body in BAD_TEXT if path != "/v1/embeddings" else BAD_TEXT[:-1]:
            answer = proxy.client.post(path, content=body, headers={"x-spillway-bypass": bypass})
            assert answer.status_code == 400, body
            assert "JSON" in answer.text
            assert fake.requests == [] or fake.requests[-1].method == "GET"
        assert "half of a pair" in proxy.client.post(path, content=BAD_TEXT[0]).text


def test_what_is_nested_deeply_is_explained_or_refused() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        for depth in (100, 300, 700, 950, 1100):
            inner = "[" * depth + "]" * depth
            body = f'{{"messages": [{{"role": "user", "content": {inner}}}], "tools": {inner}}}'
            assert proxy.client.post("/spillway/explain", content=body).status_code in (200, 400), depth


def test_two_backends_share_a_model_name() -> None:
    models = [FakeModel("shared")]
    one = LlamaCppFake(models, brain=scripted(["from llama"] * 2))
    two = VllmFake([*models, FakeModel("other")], brain=scripted(["from vllm"] * 3))
    with one, two, running_proxy(one, two) as proxy:
        ids = [model["id"] for model in proxy.client.get("/v1/models").json()["data"]]
        assert ids == ["shared", "llamacpp/shared", "vllm/shared", "other"]

        def ask(model: str) -> Any:
            answer = proxy.chat({"model": model, "messages": [{"role": "user", "content": "hi"}]})
            return answer.headers["x-spillway-backend"], answer.json()["choices"][0]["message"]["content"]

        assert ask("shared") == ("llamacpp", "from llama")
        assert ask("vllm/shared") == ("vllm", "from vllm")
        assert two.chats()[-1].json["model"] == "shared"
        assert ask("other") == ask("vllm/other") == ("vllm", "from vllm")
        assert ask("unknown")[0] == "llamacpp"


@pytest.mark.parametrize("make", [LlamaCppFake, LmStudioFake, VllmFake])
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_client_with_the_key_of_a_backend_sees_its_models(make: Any, header: str) -> None:
    key = {header: "Bearer theirs" if header == "authorization" else "theirs"}
    with make([FakeModel("m", 8192)], scripted(["hi"]), api_key="theirs") as fake, running_proxy(fake) as proxy:

        def models(**headers: str) -> list[tuple[str, int]]:
            listed = proxy.client.get("/v1/models", headers=headers).json()["data"]
            return [(model["id"], model["context_length"]) for model in listed]

        assert models() == models(authorization="Bearer wrong") == []
        assert models(**key) == [("m", 8192)]
        assert models() == models(authorization="Bearer wrong") == []
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert proxy.chat(body, authorization="Bearer wrong").status_code == 401
        assert proxy.chat(body, authorization="Bearer theirs").headers["x-spillway-window"] == "8192"


@pytest.mark.parametrize("model", [b"null", b"5", b'"any"'])
def test_a_bypassed_request_keeps_a_model_that_names_none(model: bytes) -> None:
    raw = b'{"model":  ' + model + b', "messages": [{"role": "user", "content": "hi"}]}'
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        proxy.client.post("/v1/chat/completions", content=raw, headers={"x-spillway-bypass": "1"})
        assert [request.body for request in fake.chats()] == [raw]

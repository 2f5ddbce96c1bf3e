"""Below the trigger the proxy is not there: its answers are the engine's own, byte for byte."""

import re
from typing import Any

import pytest

from proxy.core.settings import BackendSetting
from tests.engine.client import Answer, chat
from tests.engine.fixtures import StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import SharedSpillway
from tests.engine.walking import after, user
from tests.histories import function
from tests.proxying import running_proxy

pytestmark = pytest.mark.engine

# What differs from one answer of the engine to the next: names, times, and how much its cache held.
VOLATILE = (
    (re.compile(rb'"(id|created)":("[^"]*"|\d+)'), rb'"\1":0'),
    (re.compile(rb'"(cached_tokens|cache_n|prompt_n|time_ms)":\d+'), rb'"\1":0'),
    (re.compile(rb'"(prompt|predicted)_(\w+)":\d+(\.\d+)?(e[+-]?\d+)?'), rb'"\1_\2":0'),
)
WEATHER = function("get_weather", "Tell the weather.", ["city"], city="string")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def settled(answer: Answer) -> bytes:
    """The answer's bytes without what is different every time."""
    raw = answer.raw
    for pattern, replacement in VOLATILE:
        raw = pattern.sub(replacement, raw)
    return raw


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "timings_per_token": True}, {"stream": True, "return_progress": True},
        {"stop": ["enclosed", "before"], "temperature": 0.7, "seed": 4},
    ],
    ids=lambda fields: ",".join(fields) or "plain",
)  # fmt: skip
def test_the_same_bytes(walk_engine: Engine, proxy_of: SharedSpillway, fields: dict[str, Any]) -> None:
    proxy = proxy_of(walk_engine)
    # Without the cache, so that the second answer tells of the same progress as the first.
    request: dict[str, Any] = {"model": "walk", "max_tokens": 20, "cache_prompt": False, **fields}
    direct = chat(walk_engine.url, [after(walk_engine.words[3])], **request)
    through = proxy.chat([after(walk_engine.words[3])], **request)
    assert settled(through) == settled(direct)
    assert through.status == direct.status == 200
    assert (through.headers["content-type"], through.action) == (direct.headers["content-type"], "forwarded")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Go on after before", "max_tokens": 10}),
        ("/v1/embeddings", {"input": "text"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": -5}),
        ("/v1/nothing", {}),
    ],
)
def test_other_requests_and_errors_too(
    walk_engine: Engine, proxy_of: SharedSpillway, path: str, fields: dict[str, Any]
) -> None:
    proxy = proxy_of(walk_engine)
    direct = walk_engine.post(path, {"model": "walk", **fields})
    through = Engine(url=proxy.url, model="walk", process=proxy.process).post(path, {"model": "walk", **fields})
    assert through.status_code == direct.status_code
    answers = [Answer(reply.status_code, reply.headers, reply.content) for reply in (through, direct)]
    assert settled(answers[0]) == settled(answers[1])


def test_a_tool_call(echo_engine: Engine, proxy_of: SharedSpillway, stream: bool) -> None:
    proxy = proxy_of(echo_engine)
    request: dict[str, Any] = {"model": "echo", "tools": [WEATHER], "stream": stream}
    direct = chat(echo_engine.url, [user(CALL)], **request)
    through = proxy.chat([user(CALL)], **request)
    assert through.reasons == direct.reasons == ["tool_calls"]
    assert without_call_ids(settled(through)) == without_call_ids(settled(direct))


def without_call_ids(raw: bytes) -> bytes:
    """The name of a call is an `id` too, and the engine makes up a new one each time."""
    return re.sub(rb'"id":"[^"]*"', b'"id":0', raw)


def test_reasoning_passes(engine: StartEngine, proxy_of: SharedSpillway) -> None:
    thinking = engine(ModelSpec(mode="echo", think=True), alias="think")
    proxy = proxy_of(thinking)
    question = [user("<think>\nTwo and two.\n</think>\n\nFour.")]
    direct = chat(thinking.url, question, model="think", stream=True)
    through = proxy.chat(question, model="think", stream=True)
    assert b"reasoning_content" in through.raw
    assert settled(through) == settled(direct)


def test_a_client_with_the_key_of_the_engine_sees_its_model(engine: StartEngine) -> None:
    locked = engine(ModelSpec(), ctx=512, api_key="sesame")
    with running_proxy(BackendSetting(url=locked.url)) as proxy:
        for key, windows in (("wrong", []), ("sesame", [512]), ("wrong", [])):
            listed = proxy.client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).json()["data"]
            assert [model["context_length"] for model in listed] == windows

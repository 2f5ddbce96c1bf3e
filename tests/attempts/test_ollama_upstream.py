"""An Ollama is spoken to in its own `/api/chat`, whatever the client speaks."""

from typing import Any

import pytest
from typing_extensions import override

from proxy.core.jsontext import dumps, loads
from tests.fakes import FakeModel, OllamaFake, Reply, scripted, summariser, walk, words
from tests.fakes.http import Exchange
from tests.fakes.model import Brain, ToolCall
from tests.fakes.reading import chunks, finishes, text, tool_calls
from tests.fakes.waiting import Gate, wait_until
from tests.proxying import read_stream, running_proxy

HI = [{"role": "user", "content": "hi"}]
PNG = "iVBORw0KGgo="
SHOWN = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
RARE = {"num_ctx": 3000, "repeat_penalty": 1.2, "num_gpu": 1}
SAMPLING = {"temperature": 0.3, "top_p": 0.4, "top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["x"]}
CHAT = "/v1/chat/completions"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"a"}'}}
CALLED = {"id": "c1", "function": {"name": "look", "arguments": {"at": "a"}}}

ARRIVES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "chat: options": (
        CHAT,
        {"messages": HI, **SAMPLING, "max_tokens": 9, "options": RARE, "keep_alive": "9m", "think": False},
        {"options": {**RARE, **SAMPLING, "num_predict": 9}, "keep_alive": "9m", "think": False},
    ),
    "chat: the newer bound": (CHAT, {"messages": HI, "max_completion_tokens": 8, "stop": "x"}, {"options": {"num_predict": 8, "stop": ["x"]}}),
    "chat: nothing": (CHAT, {"messages": HI}, {"options": {}, "messages": HI, "stream": False}),
    "chat: effort": (CHAT, {"messages": HI, "reasoning_effort": "minimal"}, {"think": "low"}),
    "chat: no effort": (CHAT, {"messages": HI, "reasoning": {"effort": "none"}}, {"think": False}),
    "chat: schema": (
        CHAT,
        {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"format": SCHEMA},
    ),
    "chat: json": (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, {"format": "json"}),
    "chat: format": (CHAT, {"messages": HI, "format": SCHEMA}, {"format": SCHEMA}),
    "chat: probabilities": (CHAT, {"messages": HI, "logprobs": True}, {"logprobs": True}),
    "chat: picture": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, SHOWN]}]},
        {"messages": [{"role": "user", "content": "see", "images": [PNG]}]},
    ),
    "chat: tools": (
        CHAT,
        {
            "tools": [LOOK],
            "messages": [
                {"role": "developer", "content": "Look."},
                *HI,
                {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            ],
        },
        {
            "tools": [LOOK],
            "messages": [
                {"role": "system", "content": "Look."},
                *HI,
                {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [CALLED]},
                {"role": "tool", "content": "seen", "tool_name": "look", "tool_call_id": "c1"},
            ],
        },
    ),
    "responses": (
        "/v1/responses",
        {"input": "hi", "temperature": 0.3, "max_output_tokens": 20, "reasoning": {"effort": "low"}},
        {"options": {"temperature": 0.3, "num_predict": 20}, "think": "low", "messages": HI},
    ),
    "messages": (
        "/v1/messages",
        {"messages": HI, "max_tokens": 20, "top_k": 5, "stop_sequences": ["x"], "system": "Be brief."},
        {"options": {"top_k": 5, "stop": ["x"], "num_predict": 20}, "messages": [{"role": "system", "content": "Be brief."}, *HI]},
    ),
    "ollama": (
        "/api/chat",
        {"messages": HI, "stream": False, "options": {**SAMPLING, **RARE}, "think": "high", "keep_alive": 0, "format": SCHEMA},
        {"options": {**SAMPLING, **RARE}, "think": "high", "keep_alive": 0, "format": SCHEMA},
    ),
}  # fmt: skip


def ollama(brain: Brain | None = None, window: int = 4096, **options: Any) -> OllamaFake:
    model = FakeModel("m", window, thinking=True, vision=True, trained_window=65536)
    return OllamaFake([model], brain or scripted(["Hi."]), **options)


@pytest.mark.parametrize("case", ARRIVES)
def test_what_the_client_asks_for_arrives(case: str) -> None:
    path, body, expected = ARRIVES[case]
    with ollama() as fake, running_proxy(fake) as proxy:
        answer = proxy.client.post(path, json={"model": "m", **body})
        assert answer.status_code == 200, answer.text
        (sent,) = fake.chats()
    assert sent.path == "/api/chat"
    assert {name: sent.json[name] for name in expected} == expected
    assert sent.json.keys() <= {"model", "messages", "stream", "options", *expected}


def test_a_request_of_ollamas_own_goes_as_it_came() -> None:
    body = b'{ "model":"m", "odd": 1, "options": {"top_k" : 3}, "messages":[{"role":"user","content":"hi"}]}'
    with ollama() as fake, running_proxy(fake) as proxy:
        answer = proxy.client.post("/api/chat", content=body)
        assert [sent.body for sent in fake.chats()] == [body]
    *_, last = [loads(line) for line in answer.content.split(b"\n") if line]
    assert (last["done_reason"], last["eval_count"], last["total_duration"]) == ("stop", 2, 3)


@pytest.mark.parametrize("names_calls", [True, False])
def test_calls_and_thoughts_come_back(stream: bool, names_calls: bool) -> None:
    calls = [ToolCall("look", '{"at":"a"}'), ToolCall("look", '{"at":"b"}')]
    said = Reply(text="Well.", reasoning="Hm.", tool_calls=calls)
    with ollama(scripted([said]), names_calls=names_calls) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "stream": stream, "messages": HI, "tools": [LOOK]})
    if stream:
        found, ids = tool_calls(chunks(answer.content)), _ids(answer.content)
        assert finishes(chunks(answer.content)) == ["tool_calls"]
        assert read_stream(answer.content).reasoning == "Hm."
    else:
        (choice,) = answer.json()["choices"]
        message = choice["message"]
        found = [call["function"] for call in message["tool_calls"]]
        ids = [call["id"] for call in message["tool_calls"]]
        assert (choice["finish_reason"], message["content"], message["reasoning"]) == ("tool_calls", "Well.", "Hm.")
        assert answer.json()["usage"]["completion_tokens"] > 0
    assert [call["arguments"] for call in found] == ['{"at":"a"}', '{"at":"b"}']
    assert len(set(ids)) == 2
    assert all(ids)


def _ids(body: bytes) -> list[str]:
    deltas = [choice["delta"] for chunk in chunks(body) for choice in chunk["choices"]]
    return [call["id"] for delta in deltas for call in delta.get("tool_calls", ())]


@pytest.mark.parametrize("reason", ["stop", "length", "load"])
def test_reasons_and_usage_are_read(reason: str) -> None:
    done = {"model": "m", "done": True, "done_reason": reason, "prompt_eval_count": 5, "eval_count": 2}
    line = {"model": "m", "message": {"role": "assistant", "content": "Hi."}, "logprobs": [{"token": "Hi."}]}
    raw = b"".join(dumps(each) + b"\n" for each in (line, done))
    split = [raw[at : at + 7] for at in range(0, len(raw), 7)]
    with ollama(scripted([Reply(raw=split)])) as fake, running_proxy(fake) as proxy:
        options = {"stream_options": {"include_usage": True}, "logprobs": True}
        answer = proxy.chat({"model": "m", "stream": True, "messages": HI, **options})
    events = chunks(answer.content)
    assert (text(events), finishes(events)) == ("Hi.", ["stop" if reason == "load" else reason])
    assert events[-1]["usage"]["total_tokens"] == 7
    assert {"token": "Hi."} in [
        token for event in events for choice in event["choices"] for token in (choice.get("logprobs") or {}).get("content", ())
    ]


@pytest.mark.parametrize(
    ("path", "stream", "said"),
    [
        (CHAT, True, Reply(text="one two three", error="boom", after=2)),
        (CHAT, True, Reply(error="boom")),
        (CHAT, False, Reply(error="boom")),
        ("/api/chat", True, Reply(text="one two three", error="boom", after=2)),
        ("/v1/messages", True, Reply(text="one two three", error="boom", after=2)),
        ("/v1/responses", True, Reply(text="one two three", error="boom", after=2)),
    ],
)
def test_an_error_is_told(path: str, stream: bool, said: Reply) -> None:
    with ollama(scripted([said])) as fake, running_proxy(fake) as proxy:
        prompt = {"input": "hi"} if path == "/v1/responses" else {"messages": HI, "max_tokens": 50}
        answer = proxy.client.post(path, json={"model": "m", "stream": stream, **prompt})
    assert answer.status_code == (200 if said.after else 500)
    assert "boom" in answer.text
    if not said.after:
        assert answer.json()["error"]["message"] == "boom"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "absent:1"}, "model 'absent:1' not found"),
        ({"reasoning_effort": "absurd"}, '"m" does not support thinking'),
        ({"messages": [{"role": "user", "content": [{**SHOWN, "image_url": "http://x/y.png"}]}]}, "base64"),
    ],
)
def test_a_refusal_has_the_form_that_the_client_knows(fields: dict[str, Any], message: str) -> None:
    with ollama() as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": HI, **fields})
    assert answer.status_code in (400, 404)
    assert message in answer.json()["error"]["message"]


def test_num_ctx_is_the_window_of_its_request() -> None:
    asks = [{"role": "user", "content": "word " * 1500}]
    with ollama(summariser(walk(last=5))) as fake, running_proxy(fake) as proxy:
        small = {"model": "m", "messages": asks, "options": {"num_ctx": 2048}}
        seen = [proxy.chat(small), proxy.chat({**small, "options": {"num_ctx": 16384}})]
        seen += [proxy.client.post("/api/chat", json={**small, "options": {"num_ctx": 9000}})]
        assert (fake.cuts, fake.running["m"]) == (0, 9000)
    assert [answer.headers["x-spillway-window"] for answer in seen] == ["2048", "16384", "9000"]


def test_num_ctx_is_nobody_elses_window() -> None:
    asks = [{"role": "user", "content": "word " * 2500}]
    with ollama(summariser(walk(last=5))) as fake, running_proxy(fake, profile_ttl=1e-9) as proxy:
        seen = []
        for options in ({}, {"num_ctx": 2048}, {}, {"num_ctx": 9000}, {}):
            answer = proxy.chat({"model": "m", "messages": asks, "options": options})
            seen.append((answer.headers["x-spillway-window"], fake.running["m"]))
    assert seen == [("4096", 4096), ("2048", 2048), ("4096", 4096), ("9000", 9000), ("4096", 4096)]


@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
def test_an_answer_is_paused_and_gone_on_with(path: str) -> None:
    """Each attempt and each summary has the `num_ctx` of the request: another would load the model again."""
    with ollama(summariser(walk(last=3000)), default_prefill="continue") as fake, running_proxy(fake) as proxy:
        body = {"model": "m", "stream": True, "messages": HI, "options": {"num_ctx": 2048}}
        answer = proxy.client.post(path, json=body)
        chats = fake.chats()
    said = read_stream(answer.content).text if path == CHAT else _lines(answer.content)
    assert said == words(1, 3000)
    assert (fake.cuts, fake.reloads) == (0, 1)
    assert len(chats) > 2
    assert {chat.path for chat in chats} == {"/api/chat"}
    assert {chat.json["options"]["num_ctx"] for chat in chats} == {2048}
    assert chats[-1].json["messages"][-1]["role"] == "assistant"


def _lines(body: bytes) -> str:
    return "".join(loads(line)["message"]["content"] for line in body.split(b"\n") if line)


def test_a_client_that_leaves_takes_its_request_along() -> None:
    gate = Gate(3)
    with ollama(walk(last=500), gate=gate) as fake, running_proxy(fake) as proxy:
        body = {"model": "m", "stream": True, "messages": HI}
        with proxy.client.stream("POST", CHAT, json=body) as answer:
            next(answer.iter_bytes())
        wait_until(lambda: fake.cancelled == 1)
        assert fake.active == 0


class Imitator(OllamaFake):
    """Has all that Ollama is told by, and no chats at its path."""

    @override
    async def native_chat(self, exchange: Exchange) -> None:
        await exchange.answer(400, b"")


def test_a_door_that_does_not_answer_in_its_form_is_given_up_once(stream: bool) -> None:
    """As of Docker Model Runner, whose refusals have no body there (docker/desktop-feedback#188)."""
    with Imitator([FakeModel("m", 4096)], scripted(["yes"] * 2)) as fake, running_proxy(fake) as proxy:
        for _ in range(2):
            answer = proxy.chat({"model": "m:latest", "messages": HI, "stream": stream})
            assert (answer.status_code, "yes" in answer.text) == (200, True)
        chats = [
            request.path for request in fake.requests if request.path in ("/api/chat", CHAT) and request.json.get("messages")
        ]
        assert chats == ["/api/chat", CHAT, CHAT]

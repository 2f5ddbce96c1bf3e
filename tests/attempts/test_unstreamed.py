"""Backends that refuse `stream: true`: asked for a body, which the client gets as a stream."""

from typing import Any

import pytest

from proxy.core.settings import ModelOverrides
from tests.attempts.test_whole import choice, whole
from tests.proxying import read_stream, running_proxy
from tests.rawbackend import Call, RawBackend, answering, raw_backend
from tests.stream.support import one_answer, read

GO = [{"role": "user", "content": "hi"}]
BY_PARAM = {"error": {"message": "'stream' does not support true with this model.", "param": "stream"}}
BY_TEXT = {"error": "Streaming is not supported for this model."}
ONCE = {"error": "Streaming is not supported with images"}
ANSWER = whole(choice({"role": "assistant", "content": "Hi there."}))


def refusing(error: Any, *answers: dict[str, Any]) -> Any:
    """A script that refuses streams, and gives one answer after the other, the last one over and over."""
    left = list(answers or [ANSWER])

    def script(_: RawBackend, call: Call) -> None:
        if call.json.get("stream"):
            call.send(answering(error, "400 Bad Request"))
        else:
            call.send(answering(left.pop(0) if len(left) > 1 else left[0]))

    return script


def streams(backend: RawBackend) -> list[bool]:
    return [call.json["stream"] for call in backend.chats()]


@pytest.mark.parametrize("error", [BY_PARAM, BY_TEXT])
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_the_client_gets_a_stream_and_the_next_request_is_sent_unstreamed_at_once(error: Any, options: dict[str, Any]) -> None:
    with raw_backend(refusing(error)) as backend, running_proxy(backend.setting) as proxy:
        for _ in range(2):
            answer = proxy.chat({"model": "m", "messages": GO, "stream": True, "seed": 7, **options})
            assert answer.headers["content-type"].startswith("text/event-stream")
            one_answer(read(answer.content), "Hi there.")
            seen = read_stream(answer.content)
            assert (seen.text, seen.finishes, seen.done) == ("Hi there.", ["stop"], 1)
            assert (seen.usage is not None) is bool(options)
        assert streams(backend) == [True, False, False]
        sent = backend.chats()[-1].json
        assert sent == {"model": "m", "messages": GO, "stream": False, "seed": 7}
        fact = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"]["streams"]
        assert (fact["value"], fact["trust"]) == (False, "learned")
        forget = {"backend": "raw", "model": "m", "lesson": "streaming"}
        assert proxy.client.delete("/spillway/lessons", params=forget).json() == {"forgotten": True}
        proxy.chat({"model": "m", "messages": GO, "stream": True})
        assert streams(backend)[3:] == [True, False]


def test_other_dialects_get_their_streams_too() -> None:
    body = {"model": "m", "max_tokens": 50, "messages": GO, "stream": True}
    with raw_backend(refusing(BY_PARAM)) as backend, running_proxy(backend.setting) as proxy:
        answer = proxy.client.post("/v1/messages", json=body)
        assert b"Hi there." in answer.content
        assert answer.content.count(b"event: message_stop") == 1
        assert streams(backend) == [True, False]


def test_a_refusal_of_some_streams_is_not_remembered() -> None:
    with raw_backend(refusing(ONCE)) as backend, running_proxy(backend.setting) as proxy:
        for _ in range(2):
            assert read_stream(proxy.chat({"model": "m", "messages": GO, "stream": True}).content).text == "Hi there."
        assert streams(backend) == [True, False] * 2


def test_a_backend_that_refuses_either_way_is_asked_twice() -> None:
    def script(_: RawBackend, call: Call) -> None:
        call.send(answering(BY_TEXT, "400 Bad Request"))

    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        answer = proxy.chat({"model": "m", "messages": GO, "stream": True})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, BY_TEXT["error"])
        assert streams(backend) == [True, False]


@pytest.mark.parametrize(("stream", "more"), [(True, " And the end."), (False, "w299. And the end.")])
def test_an_answer_that_the_window_ended_is_resumed_unstreamed(stream: bool, more: str) -> None:
    """Of a body the last word is asked for again, since the bound may have cut it."""
    words = " ".join(f"w{number}" for number in range(300)) + "."
    usage = {"prompt_tokens": 724, "completion_tokens": 300, "total_tokens": 1024}
    first = whole(choice({"role": "assistant", "content": words}, "length"), usage=usage)
    rest = whole(choice({"role": "assistant", "content": more}), id="two")
    models = {"m": ModelOverrides(window=1024)}
    with raw_backend(refusing(BY_PARAM, first, rest)) as backend, running_proxy(backend.setting, models=models) as proxy:
        answer = proxy.chat({"model": "m", "messages": GO, "stream": stream})
        if stream:
            seen = read_stream(answer.content)
            assert (seen.finishes, seen.done, len(seen.ids)) == (["stop"], 1, 1)
            text = seen.text
        else:
            (only,) = answer.json()["choices"]
            assert only["finish_reason"] == "stop"
            text = only["message"]["content"]
        assert text == words + " And the end."
        assert not streams(backend)[-1]


@pytest.mark.parametrize("first", ["chat", "summary"])
def test_a_backend_that_does_not_stream_is_asked_for_its_summary_unstreamed(first: str) -> None:
    def script(_: RawBackend, call: Call) -> None:
        if call.json.get("stream"):
            call.send(answering(BY_PARAM, "400 Bad Request"))
            return
        summary = "## Goal\n- Store the code w7 in the file codes.txt, and keep it until the user asks for it again.\n" * 2
        text = summary if "Summarise" in str(call.json["messages"][-1]) else "Hi there."
        call.send(answering(whole(choice({"role": "assistant", "content": text}))))

    history = [
        {"role": role, "content": f"{n} {'the code w7 goes to codes.txt ' * 20}"}
        for n in range(8)
        for role in ("user", "assistant")
    ]
    with raw_backend(script) as backend, running_proxy(backend.setting, models={"m": ModelOverrides(window=1024)}) as proxy:
        if first == "chat":
            proxy.chat({"model": "m", "messages": GO, "stream": True})
        answer = proxy.chat({"model": "m", "messages": [*history, *GO], "stream": True})
        assert read_stream(answer.content).text == "Hi there."
        assert sum(streams(backend)) == 1
        assert proxy.chat({"model": "m", "messages": GO, "stream": True}).status_code == 200
        assert not streams(backend)[-1]
        assert "until the user asks for it again" in str(backend.chats()[-2].json["messages"])


def test_a_response_claims_no_logprobs() -> None:
    with raw_backend(refusing(BY_PARAM)) as backend, running_proxy(backend.setting) as proxy:
        answer = proxy.client.post("/v1/responses", json={"model": "m", "input": "hi", "top_logprobs": 5})
        assert answer.json()["top_logprobs"] == 0

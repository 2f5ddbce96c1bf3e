"""What servers send in public reports, through HTTP in every door, as the official SDKs read it.

A row of `forms.json` has a `source` (an issue or a pull request), what was sent (`says`: deltas and frames, then an `end`; or a
`wire`, or a `whole` body), and what the user of an SDK has of it.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.proxying import Proxy, running_proxy
from tests.rawbackend import Call, RawBackend, raw_backend
from tests.sdks import anthropic_sdk, closed, openai_sdk

__all__ = ["closed"]
FORMS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "forms.json").read_text("utf-8"))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "path": {"type": "string"}}}
NAMES = ("get_weather", "read_file")
STOPS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


@dataclass
class Had:
    """What the user of an SDK has."""

    text: str = ""
    thought: str = ""
    calls: list[Any] = field(default_factory=list)
    finish: str | None = None
    error: str = ""


# -- the backend: the model's name says which row it sends


def wire(form: dict[str, Any]) -> bytes:
    if "wire" in form:
        return str(form["wire"]).encode()
    if form.get("whole"):
        return json.dumps(form["whole"]).encode()
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = [
        ("data: " + json.dumps({**head, "choices": [{"index": 0, "delta": each, "finish_reason": None}]}))
        if isinstance(each, dict)
        else each
        for each in form["says"]
    ]
    end = form.get("end", "stop")
    said += (
        [] if end is None else ["data: " + json.dumps({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]})]
    )
    said += ["data: [DONE]"] if form.get("done", True) else []
    return "".join(each + "\n\n" for each in said).encode()


def send(backend: RawBackend, call: Call) -> None:
    form = FORMS[int(call.json["model"])] if call.path.endswith("/chat/completions") else {"whole": {}, "status": 404}
    kind = form.get("type", "application/json" if form.get("whole") is not None else "text/event-stream")
    call.send(
        f"HTTP/1.1 {form.get('status', 200)} OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode() + wire(form)
    )


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with raw_backend(send) as backend, running_proxy(backend.setting) as proxy:
        yield proxy


# -- the doors


def chat(proxy: Proxy, model: str, *, stream: bool) -> Had:
    sdk, had = openai_sdk(proxy), Had()
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    asked: Any = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "tools": tools}
    answer: Any = None
    try:
        if stream:
            with sdk.chat.completions.stream(**asked) as events:
                for _ in events:
                    answer = events.current_completion_snapshot
        else:
            answer = sdk.chat.completions.create(**asked)
    except openai.APIError as error:
        had.error = error.message
    if answer is not None and answer.choices:
        choice = answer.choices[0]
        extra = choice.message.model_extra or {}
        had.text, had.finish, had.thought = (
            choice.message.content or "",
            choice.finish_reason,
            extra.get("reasoning_content", ""),
        )
        for call in choice.message.tool_calls or []:
            assert call.id
            had.calls.append([call.function.name, call.function.arguments])
    return had


def responses(proxy: Proxy, model: str, *, stream: bool) -> Had:
    sdk, had = openai_sdk(proxy), Had()
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in NAMES]
    try:
        answer: Any = sdk.responses.create(model=model, input="Hello", tools=tools, stream=stream)
        if stream:
            for event in answer:
                had.text += event.delta if event.type == "response.output_text.delta" else ""
                if event.type in ("response.completed", "response.incomplete", "response.failed"):
                    answer = event.response
    except openai.APIError as error:
        had.error = error.message
        return had
    had.error = answer.error.message if answer.status == "failed" else ""
    had.text = had.text or answer.output_text
    for item in answer.output:
        if item.type == "function_call":
            had.calls.append([item.name, item.arguments])
        elif item.type == "reasoning":
            had.thought += "".join(part.text for part in (*item.summary, *(item.content or ())))
    had.finish = {"completed": "tool_calls" if had.calls else "stop", "incomplete": "length"}.get(answer.status)
    return had


def messages(proxy: Proxy, model: str, *, stream: bool) -> Had:
    sdk, had = anthropic_sdk(proxy), Had()
    tools: Any = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    asked: Any = {"model": model, "max_tokens": 500, "messages": [{"role": "user", "content": "Hello"}], "tools": tools}
    answer: Any = None
    try:
        if stream:
            with sdk.messages.stream(**asked) as events:
                for _ in events:
                    answer = events.current_message_snapshot
        else:
            answer = sdk.messages.create(**asked)
    except anthropic.APIStatusError as error:
        had.error = str(error)
    for block in [] if answer is None else answer.content:
        if block.type == "tool_use":
            had.calls.append([block.name, block.input])
        else:
            had.text += getattr(block, "text", "")
            had.thought += getattr(block, "thinking", "")
    had.finish = None if answer is None else STOPS.get(answer.stop_reason, answer.stop_reason)
    return had


def ollama(proxy: Proxy, model: str, *, stream: bool) -> Had:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    asked = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "tools": tools, "stream": stream}
    had = Had()
    for line in map(json.loads, proxy.client.post("/api/chat", json=asked).text.splitlines()):
        had.error = line.get("error", "")
        message = line.get("message", {})
        had.text += message.get("content", "")
        had.thought += message.get("thinking", "")
        had.calls += [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", [])]
        had.finish = line.get("done_reason")
    had.finish = "tool_calls" if had.calls and had.finish == "stop" else had.finish
    return had


@pytest.mark.parametrize("door", [chat, responses, messages, ollama], ids=lambda door: door.__name__)
@pytest.mark.parametrize("row", range(len(FORMS)), ids=[form["id"] for form in FORMS])
@pytest.mark.rows(80)
def test_each_form_is_read_in_every_door(proxy: Proxy, row: int, door: Callable[..., Had]) -> None:
    form = FORMS[row]
    had = door(proxy, str(row), stream="whole" not in form)
    wanted = Had(form.get("text", ""), form.get("thought", ""), form.get("calls", []), form.get("finish"))
    if "error" in form:
        assert form["error"] in had.error
        assert had.text.strip() == wanted.text
        assert had.finish is None
        return
    assert not had.error
    assert (had.text, had.thought) == (wanted.text, wanted.thought)
    assert had.finish == (wanted.finish or ("tool_calls" if wanted.calls else "stop"))
    if had.finish != "length":
        assert [[name, json.loads(given) if isinstance(given, str) else given] for name, given in had.calls] == wanted.calls

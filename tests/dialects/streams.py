"""What backends send, as pieces, and what clients make of the answers that are written of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.dialect import Completion, Dialect, Writer
from proxy.core.piece import CallPart, Identity, Piece
from proxy.core.request import Managed, Request
from proxy.dialects import DIALECTS
from proxy.dialects.chat.answers import read_frame

Json = dict[str, Any]
MESSAGES, RESPONSES, OLLAMA = (DIALECTS[path] for path in ("/v1/messages", "/v1/responses", "/api/chat"))
every = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.path)
translated = pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES, OLLAMA], ids=lambda dialect: dialect.path)
WHO = Identity("chatcmpl-1", 7, "m")
WORDS = st.text(min_size=1, max_size=30)


def writer_of(dialect: Dialect, managed: Managed | None = None, **form: Any) -> Writer:
    return dialect.writer(Request(body={}, model="asked", form=form), "0a1b", managed or Managed())


# -- what comes from a backend


def chunk(delta: Json, finish: str | None = None, **more: Any) -> Piece:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return read_frame(sse.encode({"id": "chatcmpl-1", "created": 7, "model": "m", "choices": [choice], **more}))


def called(index: int, name: str = "", arguments: str = "", call_id: str = "") -> Json:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return {"tool_calls": [{"index": index, **({"id": call_id} if call_id else {}), "function": function}]}


def usage(**counts: Any) -> Piece:
    return read_frame(sse.encode({"id": "chatcmpl-1", "choices": [], "usage": counts}))


def failure(**error: Any) -> Piece:
    return read_frame(sse.encode({"error": error}))


SAID = st.lists(
    st.one_of(
        st.text(min_size=1).map(lambda text: {"content": text}),
        st.text(min_size=1).map(lambda text: {"reasoning_content": text}),
        st.just({"role": "assistant", "content": ""}),
    ),
    max_size=12,
)
"""Deltas of an answer that calls nothing."""


def calling(count: int) -> list[Json]:
    """Deltas of as many calls of `f`, which come interleaved."""
    begun = [called(index, "f", '{"a":', f"call_{index}") for index in range(count)]
    return [*begun, *(called(index, arguments=f"{index}}}") for index in range(count))]


def all_of(said: list[Json], field: str) -> str:
    """What these deltas say in a field."""
    return "".join(delta.get(field, "") for delta in said)


def answers(names: st.SearchStrategy[str], arguments: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Answers (`text`, `thought`, and `calls` of a name and arguments) that say something, or call something."""
    calls = st.lists(st.tuples(names, arguments), max_size=3)
    said = {"thought": st.just("") | WORDS, "text": st.just("") | WORDS, "calls": calls}
    return st.fixed_dictionaries(said).filter(lambda each: each["text"] or each["calls"])


def piece_of(said: Json) -> Piece:
    """An answer in one piece; the arguments of the custom tool `patch` are a text."""
    calls = tuple(
        CallPart(name, json.dumps(arguments_of(name, arguments)), id=f"call_{index}", index=index)
        for index, (name, arguments) in enumerate(said["calls"])
    )
    finish = "tool_calls" if calls else "stop"
    return Piece(form={}, choice=True, text=said["text"], thought=said["thought"], calls=calls, finish=finish, identity=WHO)


def arguments_of(name: str, arguments: Json) -> Json:
    return {"input": json.dumps(arguments)} if name == "patch" else arguments


# -- what a client makes of it


@dataclass(slots=True)
class Heard:
    """An answer as a client has it at its end."""

    text: str
    thought: str
    calls: list[tuple[str, str, Any]]
    """Id, name and arguments of each."""
    whole: Json
    """The object in one body."""
    resent: list[Json]
    """In which form it is sent back."""


def hear(dialect: Dialect, data: bytes, *, streamed: bool = True) -> Heard:
    """Read an answer; events have to come in the order in which the SDKs expect them."""
    if dialect is OLLAMA:
        return _of_ollama(list(map(json.loads, data.splitlines())) if streamed else [json.loads(data)])
    if dialect is MESSAGES:
        return _of_messages(_message(events(data)) if streamed else json.loads(data))
    return _of_responses(_response(events(data)) if streamed else json.loads(data))


def streamed(dialect: Dialect, *pieces: Piece, **form: Any) -> Heard:
    writer = writer_of(dialect, **form)
    return hear(dialect, b"".join(writer.relay(piece, None, role_sent=True) for piece in pieces) + writer.end())


def whole(dialect: Dialect, piece: Piece, **form: Any) -> Heard:
    return hear(dialect, writer_of(dialect, **form).body(Completion(choices=(piece,)), (), {}), streamed=False)


def events(stream: bytes) -> list[Json]:
    """Named events, less the comments between them; the name is that in the data."""
    found = []
    for frame in sse.frames(stream):
        if not frame.startswith(b":"):
            named, data = frame.decode().strip().split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert named == f"event: {found[-1]['type']}"
    return found


def _of_ollama(lines: list[Json]) -> Heard:
    assert [line["done"] for line in lines] == [*(False for _ in lines[1:]), True]
    messages = [line["message"] for line in lines]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    text, thought = ("".join(each.get(name, "") for each in messages) for name in ("content", "thinking"))
    message = {"role": "assistant", "content": text, "thinking": thought, "tool_calls": calls}
    told = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return Heard(text, thought, told, lines[-1], [message])


def _message(found: list[Json]) -> Json:
    rest: Iterator[Json] = (event for event in found if event["type"] != "ping")
    opened = next(rest)
    assert opened["type"] == "message_start"
    message: Json = opened["message"]
    event = next(rest)
    while event["type"] == "content_block_start":
        block, index = event["content_block"], len(message["content"])
        assert event["index"] == index
        written = ""
        while (event := next(rest))["type"] == "content_block_delta":
            assert event["index"] == index
            kind, (name, said) = event["delta"]["type"], list(event["delta"].items())[1]
            if kind == "input_json_delta":
                assert block["type"] == "tool_use"
                written += said
            else:
                assert kind == f"{block['type']}_delta"
                block[name] += said
        assert event == {"type": "content_block_stop", "index": index}
        message["content"].append({**block, "input": json.loads(written or "{}")} if written else block)
        event = next(rest)
    assert event["type"] == "message_delta"
    message.update(event["delta"], **{name: event[name] for name in event.keys() - {"type", "delta"}})
    assert next(rest)["type"] == "message_stop"
    assert list(rest) == []
    return message


def _of_messages(message: Json) -> Heard:
    blocks = message["content"]
    text, thought = ("".join(block.get(name, "") for block in blocks) for name in ("text", "thinking"))
    calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    return Heard(text, thought, calls, message, [{"role": "assistant", "content": blocks}])


def _response(found: list[Json]) -> Json:
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    created, in_progress, *middle, last = found
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    response: Json = last["response"]
    assert last["type"] == f"response.{response['status']}"
    assert response["id"] == created["response"]["id"]
    items: list[Json] = []
    said: dict[int, str] = {}
    done: set[int] = set()
    for event in middle:
        kind, index = event["type"].removeprefix("response."), event["output_index"]
        assert index not in done
        if kind == "output_item.added":
            assert index == len(items)
            items.append(event["item"])
            said[index] = ""
        elif kind == "output_item.done":
            assert event["item"]["id"] == items[index]["id"]
            items[index] = event["item"]
            done.add(index)
        else:
            assert event["item_id"] == items[index]["id"]
            if kind.endswith(".delta"):
                said[index] += event["delta"]
            elif kind in ("output_text.done", "function_call_arguments.done"):
                assert said[index] == (event.get("text") or event.get("arguments"))
    assert done == set(range(len(items)))
    assert response["output"] == items
    return response


def _of_responses(response: Json) -> Heard:
    items = response["output"]
    texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    thoughts = [part["text"] for item in items if item["type"] == "reasoning" for part in item["summary"]]
    calls = [
        (item["call_id"], item["name"], json.loads(item.get("arguments") or item["input"]))
        for item in items
        if item["type"].endswith("_call")
    ]
    return Heard("".join(texts), "".join(thoughts), calls, response, items)

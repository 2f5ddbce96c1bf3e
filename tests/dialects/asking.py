"""One question in each dialect that clients speak, and what they read of its answer."""

from dataclasses import dataclass
from typing import Any

from proxy.core import sse
from proxy.core.jsontext import loads

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")


def question(path: str, *, stream: bool, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    field = "input" if path == "/v1/responses" else "messages"
    bound = {"max_tokens": 4000} if path == "/v1/messages" else {}
    return {"model": "m", "stream": stream, field: messages, **bound, **fields}


@dataclass(slots=True)
class Read:
    """What a client reads: the text, the finish reason in its dialect's words, and the message of an error."""

    text: str = ""
    finish: str | None = None
    error: str | None = None
    ends: int = 0
    """Marks of the dialect's end; an error is one, and in chat completions `[DONE]` behind it."""


def read(path: str, body: bytes, *, stream: bool) -> Read:
    """Read an answer, or the error in its place.

    Raises:
        KeyError, ValueError, TypeError: it is not in that dialect.
    """
    seen = Read()
    if not stream or body.lstrip()[:10].startswith(b'{"error') or body.lstrip()[:15] == b'{"type":"error"':
        _whole(path, loads(body), seen)
        seen.ends = 1
        return seen
    if path == "/api/chat":
        assert body.endswith(b"\n"), body[-80:]
        events = [loads(line) for line in body.splitlines()]
    else:
        assert body.endswith(b"\n\n"), body[-80:]
        datas = [data for data in map(sse.data_of, sse.frames(body)) if data is not None]
        seen.ends = datas.count(b"[DONE]")
        events = [loads(data) for data in datas if data != b"[DONE]"]
    for event in events:
        _TAKE[path](event, seen)
    return seen


def _whole(path: str, body: Any, seen: Read) -> None:
    if body.get("error") is not None:
        error = body["error"]
        seen.error = error if isinstance(error, str) else error["message"]
    elif path == "/v1/chat/completions":
        (choice,) = body["choices"]
        seen.text, seen.finish = choice["message"].get("content") or "", choice["finish_reason"]
    elif path == "/v1/responses":
        _response(body, seen)
    elif path == "/v1/messages":
        seen.text = "".join(block.get("text", "") for block in body["content"])
        seen.finish = body["stop_reason"]
    else:
        seen.text, seen.finish = body["message"]["content"], body["done_reason"]


def _response(body: Any, seen: Read) -> None:
    items = [item for item in body["output"] if item["type"] == "message"]
    seen.text = "".join(part["text"] for item in items for part in item["content"])
    seen.finish = body["status"]


def _chat(event: Any, seen: Read) -> None:
    if "error" in event:
        seen.error = event["error"]["message"]
        return
    for choice in event["choices"]:
        seen.text += choice["delta"].get("content") or ""
        seen.finish = choice["finish_reason"] or seen.finish


def _responses(event: Any, seen: Read) -> None:
    kind = event["type"]
    if kind == "response.output_text.delta":
        seen.text += event["delta"]
    elif kind in ("response.completed", "response.incomplete", "response.failed"):
        seen.ends += 1
        said = Read()
        _response(event["response"], said)
        assert seen.text == said.text, "the events say another text than the response"
        error = event["response"]["error"]
        seen.finish, seen.error = said.finish, None if error is None else error["message"]


def _messages(event: Any, seen: Read) -> None:
    if event["type"] == "error":
        seen.error = event["error"]["message"]
        seen.ends += 1
    elif event["type"] == "content_block_delta":
        seen.text += event["delta"].get("text", "")
    elif event["type"] == "message_delta":
        seen.finish = event["delta"]["stop_reason"]
    seen.ends += event["type"] == "message_stop"


def _ollama(event: Any, seen: Read) -> None:
    if "error" in event:
        seen.error = event["error"]
        seen.ends += 1
        return
    seen.text += event["message"]["content"]
    if event["done"]:
        seen.finish = event["done_reason"]
        seen.ends += 1


_TAKE = dict(zip(PATHS, (_chat, _responses, _messages, _ollama), strict=True))

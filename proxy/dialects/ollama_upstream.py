"""Ollama as a backend: translates bodies of chat completions into requests of its `/api/chat`, and its answers back.

Ollama's own `/v1` is not used: it takes a dozen of OpenAI's parameters, drops all of Ollama's, and overrides the model file with a
temperature and a top_p of 1. Shapes: Ollama 0.33, `api/types.go` (ChatRequest, Message, Options, ChatResponse, Metrics),
`FromChatRequest`, `ToStreamChunks`, `FinishChunk` in `openai/openai.go`; errors in mid-stream are lines of their own
(`streamResponse` in `server/routes.go`).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from proxy.core import sse
from proxy.core.errors import BadRequest
from proxy.core.jsontext import dumps, loads_object
from proxy.core.piece import arguments_of, as_count
from proxy.core.request import NONE, Message, text_of
from proxy.dialects.bodies import dict_in, dicts_in, is_count, pick, text_in
from proxy.dialects.chat.answers import DONE, thought_of
from proxy.dialects.ollama import DURATIONS, EXTRAS, SHARED_OPTIONS

UPSTREAM_PATH = b"/api/chat"

_BOUNDS = ("max_tokens", "max_completion_tokens")
"""Names of the bound on the answer; the newer one is last and wins."""
_EFFORTS: Mapping[str, str | bool] = {NONE: False, "minimal": "low", "xhigh": "max", "ultra": "max"}
"""Values of `think` for efforts that Ollama does not know; any other effort is sent as it is, for Ollama to accept or refuse."""


# -- requests


def ollama_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a body of chat completions. OpenAI's parameters win over `options`, because Spillway sets bounds by them.

    Raises:
        BadRequest: an image is given by its URL, which Ollama does not fetch.
    """
    tools = body.get("tools")
    return {
        "model": body.get("model"),
        "messages": list(_messages(body["messages"])),
        "stream": body.get("stream") is True,
        "options": _options(body),
        **pick(body, (*EXTRAS, "format", "logprobs", "top_logprobs")),
        **_format(dict_in(body, "response_format")),
        **_think(body),
        **({"tools": tools} if tools else {}),
    }


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**dict_in(body, "options"), **pick(body, SHARED_OPTIONS)}
    if isinstance(stop := merged.get("stop"), str):
        merged["stop"] = [stop]
    for name in _BOUNDS:
        if is_count(body.get(name)):
            merged["num_predict"] = body[name]
    return merged


def _format(wanted: Mapping[str, Any]) -> dict[str, Any]:
    kind = wanted.get("type")
    if kind == "json_object":
        return {"format": "json"}
    schema = dict_in(wanted, "json_schema").get("schema") if kind == "json_schema" else None
    return {"format": schema} if schema else {}


def _think(body: Mapping[str, Any]) -> dict[str, Any]:
    effort = dict_in(body, "reasoning").get("effort") or body.get("reasoning_effort")
    if not effort or body.get("think") is not None:
        return {}
    return {"think": _EFFORTS.get(effort, effort) if isinstance(effort, str) else effort}


def _messages(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    names: dict[Any, str] = {}
    for message in messages:
        role = "system" if message["role"] == "developer" else message["role"]
        calls = [_call(call) for call in dicts_in(message, "tool_calls")]
        names |= {call["id"]: call["function"]["name"] for call in calls}
        fields: dict[str, Any] = {"content": text_of(message), "images": _images(message), "tool_calls": calls}
        fields["thinking"] = thought_of(message)
        if role == "tool":
            call_id = fields["tool_call_id"] = message.get("tool_call_id")
            fields["tool_name"] = message.get("name") or names.get(call_id)
        yield {"role": role, **{name: value for name, value in fields.items() if value or name == "content"}}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict_in(call, "function")
    arguments = arguments_of(text_in(function, "arguments"))
    return {"id": call.get("id"), "function": {"name": text_in(function, "name"), "arguments": arguments}}


def _images(message: Message) -> list[str]:
    """Return the base64 of pictures and sounds, both of which Ollama takes as `images`."""
    found = []
    for part in dicts_in(message, "content"):
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str):
            found.append(_base64_in(url))
        elif isinstance(sound := part.get("input_audio"), dict):
            found.append(text_in(sound, "data"))
    return found


def _base64_in(url: str) -> str:
    scheme, comma, data = url.partition(",")
    if comma and scheme.startswith("data:") and scheme.endswith(";base64"):
        return data
    raise BadRequest("Ollama takes images as base64 data only: send `data:image/png;base64,…`.")


# -- answers


class LineReader:
    """Translator of the lines of one answer as they arrive, in linear time however small the pieces are."""

    def __init__(self, answer_id: str, *, usage: bool) -> None:
        """Begin an answer with this id; `usage`: its stream ends with a chunk of usage."""
        self._head: dict[str, Any] = {"id": answer_id}
        self._usage = usage
        self._calls = 0
        self._splitter = sse.FrameSplitter()

    def feed(self, data: bytes) -> bytes:
        """Return frames for all lines completed by `data`, which may be none.

        Raises:
            FrameTooLong: a line does not end.
        """
        return self._translated(self._splitter.feed(data))

    def close(self) -> bytes:
        """Return frames for the last line, which may lack its line break."""
        return self._translated(self._splitter.flush())

    def _translated(self, block: bytes) -> bytes:
        return b"".join(out for frame in sse.frames(block) for out in self._frames(frame))

    def completion(self, body: bytes) -> bytes:
        """Translate an unstreamed answer; a body that is not in Ollama's form is returned unchanged."""
        line = loads_object(body)
        if line is None or not _is_answer(line):
            return body
        head = self._envelope(line, "chat.completion")
        return dumps({**head, "choices": [self._choice("message", line)], "usage": _usage(line)})

    def _frames(self, frame: bytes) -> Iterator[bytes]:
        line = loads_object(sse.data_of(frame) or b"")
        if line is None or not _is_answer(line):  # pass it on: the reader of frames handles errors and other forms
            yield frame if sse.is_closed(frame) else frame + b"\n\n"
            return
        first = "object" not in self._head
        head = self._envelope(line, "chat.completion.chunk")
        choice = self._choice("delta", line)
        if not first:
            del choice["delta"]["role"]
        end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        if not end["finish_reason"] or any(choice["delta"].values()):
            yield sse.encode({**head, "choices": [{**choice, "finish_reason": None}]})
        if end["finish_reason"]:
            yield sse.encode({**head, "choices": [end]})
            if self._usage:
                yield sse.encode({**head, "choices": [], "usage": _usage(line)})
            yield DONE

    def _envelope(self, line: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Return the fields common to all chunks, taken from the first line."""
        if "object" not in self._head:
            fixed = {"created": _seconds(line.get("created_at")), "model": text_in(line, "model")}
            self._head |= {"object": kind, **fixed, "system_fingerprint": "fp_ollama"}
        return self._head

    def _choice(self, name: str, line: Mapping[str, Any]) -> dict[str, Any]:
        message = dict_in(line, "message")
        delta: dict[str, Any] = {"role": "assistant", "content": text_in(message, "content")}
        if thought := text_in(message, "thinking"):
            delta["reasoning"] = thought
        if calls := list(map(self._call, dicts_in(message, "tool_calls"))):
            delta["tool_calls"] = calls
        finish = text_in(line, "done_reason") or "stop" if line.get("done") is True else None
        finish = "tool_calls" if finish == "stop" and self._calls else finish
        more = {"logprobs": {"content": line["logprobs"]}} if line.get("logprobs") else {}
        return {"index": 0, name: delta, "finish_reason": finish, **more}

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a call, numbered here: Ollama up to 0.20 gives every call of an answer the index 0, and older ones give no id."""
        index, function = self._calls, dict_in(call, "function")
        self._calls += 1
        arguments = dumps(function.get("arguments") or {}).decode()
        call_id = text_in(call, "id") or f"call_{self._head['id'].rpartition('-')[2]}_{index}"
        named = {"name": text_in(function, "name"), "arguments": arguments}
        return {"index": index, "id": call_id, "type": "function", "function": named}


def _is_answer(line: Mapping[str, Any]) -> bool:
    """Return whether a line is an answer in Ollama's form, not an error, nor a chunk of chat completions as imitators send."""
    return not line.get("error") and ("message" in line or "done" in line)


def _usage(line: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = as_count(line.get("prompt_eval_count")), as_count(line.get("eval_count"))
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, **{name: line[name] for name in DURATIONS if as_count(line.get(name))}}


def _seconds(moment: Any) -> int:
    """Return a time as Ollama writes it in seconds since the epoch; 0 for anything else."""
    try:
        return int(datetime.fromisoformat(moment).timestamp())
    except (TypeError, ValueError, OverflowError):
        return 0

"""Bodies of chat completion requests: read from clients, and written for backends.

Fields: OpenAI API reference, "Create chat completion" (2026), and the backends' additions to it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.core.errors import BadRequest, NotManaged
from proxy.core.jsontext import JsonObject, dumps, omit
from proxy.core.request import Message, Request
from proxy.dialects.bodies import dict_in, is_count, model_in, object_in, text_in

_BOUNDS = ("max_completion_tokens", "max_tokens")
"""Names of the bound on the answer; the newer one is first and wins."""
_OTHER_BOUND = "n_predict"
"""llama.cpp's own bound on the answer, -1 for none."""
_GRAMMARS = frozenset(
    {
        *("grammar", "json_schema"),  # llama.cpp
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),  # vLLM
        "format",  # Ollama
    }
)
_OLDER = ("functions", "function_call")
"""Fields of the form that `tools` replaced (OpenAI, 2023)."""
_OF_ONE_STREAM = (*_BOUNDS, _OTHER_BOUND, "stream_options", "stream")
_CONTINUE = ("continue_final_message", "add_generation_prompt")
"""Fields that ask vLLM and llama.cpp to continue the last message."""
LOADING = ("options", "shift")
"""Ollama's fields that affect how a model is loaded: a different `num_ctx` loads it again, so all requests have to agree."""
_NOT_FOR_SUMMARIES = {
    *(*_BOUNDS, _OTHER_BOUND, "stream_options", "response_format", "stop", "n"),
    *("logprobs", "top_logprobs", "parallel_tool_calls", "prediction", *_GRAMMARS),
}
SLOT = "id_slot"
"""llama.cpp's field for the slot in which its server reads the prompt."""
_TEMPLATE_FIELDS = ("chat_template_kwargs", "reasoning_effort", "reasoning", "think", "provider", SLOT, *LOADING)

_ASK_USAGE: Mapping[str, Any] = {"stream_options": {"include_usage": True}}
_OPEN = re.compile(rb"^(?:\xef\xbb\xbf)?\s*\{\s*(\})?")


# -- a client's request


def read(raw: bytes) -> Request:
    """Read a request body.

    Raises:
        BadRequest: the body is not a JSON object, `model` is not a string, or `messages` is not a list of objects with a role.
        NotManaged: the request is in the older form, with `functions`.
    """
    body = object_in(raw)
    _check(body.get("messages"))
    if any(body.get(name) for name in _OLDER):
        raise _older_form()
    choices, stream_options = body.get("n"), dict_in(body, "stream_options")
    bounds = tuple(name for name in _BOUNDS if name in body)
    counts = (*(body[name] for name in bounds), body.get(_OTHER_BOUND), dict_in(body, "options").get("num_predict"))
    return Request(
        body=body,
        model=model_in(body),
        stream=body.get("stream") is True,
        max_tokens=next(filter(is_count, counts), None),
        bounds=bounds or _BOUNDS[1:],
        wants_usage=bool(stream_options["include_usage"]) if "include_usage" in stream_options else None,
        choices=choices if isinstance(choices, int) else 1,
        structured=dict_in(body, "response_format").get("type") not in (None, "text")
        or any(body[name] is not None for name in _GRAMMARS & body.keys()),
        continues=body.get(_CONTINUE[0]) is True,
        conversation=text_in(body, "prompt_cache_key"),
        raw=raw,
    )


def _check(messages: Any) -> None:
    if not isinstance(messages, list):
        raise BadRequest("`messages` must be a list of message objects.", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"`messages[{index}]` must be an object.", param=f"messages[{index}]")
        role = message.get("role")
        if not isinstance(role, str):
            raise BadRequest(
                f"`messages[{index}].role` must be a string such as user, assistant, system or tool.",
                param=f"messages[{index}].role",
            )
        if role == "function" or message.get("function_call"):
            raise _older_form()


def _older_form() -> NotManaged:
    return NotManaged("`functions` and `function_call` are passed on unmanaged: use `tools` and `tool_calls`.")


# -- what goes upstream


def may_ask_usage(request: Request, *, reported: bool) -> bool:
    """Return whether to ask for usage in a stream: not if it is `reported` anyway, or the client set `stream_options` itself."""
    return request.stream and not reported and "stream_options" not in request.body


def written(request: Request, messages: Sequence[Message] | None, fields: JsonObject, *, ask_usage: bool) -> bytes:
    """Return the body to send; without changes it is the client's, byte for byte.

    `messages` replace the request's own, `fields` replace options of the client, and `ask_usage` asks for usage at the end of the
    stream.
    """
    raw = request.raw
    if raw is None or messages is not None or not fields.keys().isdisjoint(request.body):
        replaced = {} if messages is None else {"messages": list(messages)}
        raw, fields = dumps({**request.body, **fields, **replaced}), {}
    return _spliced(raw, {**fields, **(_ASK_USAGE if ask_usage else {})})


def going_on(
    body: Mapping[str, Any], messages: Sequence[Message], flags: Mapping[str, Any], counts: Mapping[str, Any]
) -> JsonObject:
    """Return the body of a request to continue an answer, always streamed, since Spillway rewrites its frames anyway.

    `body` is that of the first request. `flags` make this backend continue the last of the `messages`, `counts` make it count
    while it generates.
    """
    rest = omit(body, *_OF_ONE_STREAM, *_CONTINUE)
    counts = dict(counts)
    options = {"include_usage": True, **counts.pop("stream_options", {})}
    return {**rest, **counts, "stream": True, "stream_options": options, **flags, "messages": list(messages)}


def unstreamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same body for an unstreamed answer."""
    return {**omit(body, "stream_options"), "stream": False}


def summarising(
    client: Mapping[str, Any],
    model: str,
    messages: Sequence[Message],
    *,
    append: bool,
    max_tokens: int,
    stream: bool = True,
    ask_usage: bool = False,
) -> bytes:
    """Return the body of a request for a summary; `append`: the messages continue the client's own prompt, tools included.

    Stream it where possible: when the connection closes, llama.cpp stops a stream at once, but an unstreamed request late.
    """
    if append:
        body = omit(client, *_NOT_FOR_SUMMARIES)
        if client.get("tools"):
            body["tool_choice"] = "none"
    else:
        body = {name: client[name] for name in _TEMPLATE_FIELDS if name in client}
    if isinstance(options := body.get("options"), dict):
        body["options"] = omit(options, *_NOT_FOR_SUMMARIES)
    fields = {"model": model, "messages": list(messages), "max_tokens": max_tokens, "stream": stream}
    raw = dumps({**body, **fields})
    return _spliced(raw, _ASK_USAGE) if ask_usage and stream else raw


def reading_only(body: Mapping[str, Any], messages: Sequence[Message]) -> bytes:
    """Return the body of a request that makes the backend read these messages, with an answer of one token.

    (All backends allow one; llama.cpp b11549 generates one even if asked for none.) It is streamed for the same reason
    as a summary.
    """
    rest = omit(body, *_NOT_FOR_SUMMARIES)
    return dumps({**rest, "messages": list(messages), "max_tokens": 1, "stream": True})


def _spliced(raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """Insert new fields at the start of an object: no parsing is needed to find that place, and every other byte stays."""
    if not fields:
        return raw
    match = _OPEN.match(raw)
    assert match is not None  # raw was parsed as an object, or written as one
    brace = raw.index(b"{") + 1
    comma = b"" if match.group(1) else b","
    return raw[:brace] + dumps(fields)[1:-1] + comma + raw[brace:]

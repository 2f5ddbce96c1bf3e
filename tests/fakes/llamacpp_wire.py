"""llama-server's words and objects, as measured on b11549: what it refuses, and what it tells of itself."""

from collections.abc import Mapping
from typing import Any

from proxy.core.jsontext import dumps
from tests.fakes.model import Refused

_TYPES = {401: "authentication_error", 404: "not_found_error", 500: "server_error"}
_CAPS = ("tools", "tool_calls", "parallel_tool_calls", "system_role", "string_content")
_MEDIA = {"image_url": "image", "input_audio": "audio"}
_HINT = "if this is unexpected, you may need to provide the mmproj"
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")


def error(status: int, message: str, kind: str = "", **fields: Any) -> dict[str, Any]:
    """The body of an error."""
    kind = kind or _TYPES.get(status, "invalid_request_error")
    return {"error": {"code": status, "message": message, "type": kind, **fields}}


def window_exceeded(prompt: int, window: int) -> dict[str, Any]:
    """The error for a prompt that leaves no token of the window for the answer."""
    text = f"request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it"
    return error(400, text, "exceed_context_size_error", n_prompt_tokens=prompt, n_ctx=window)


def check_body(body: Mapping[str, Any], *, vision: bool = False, prefill: bool = True) -> None:
    """Look at a chat body; `prefill`: a trailing assistant message is continued without being asked for.

    Raises:
        Refused: there is something wrong with it, whatever the length of its prompt.
    """
    if "messages" not in body:
        raise _refused("'messages' is required")
    messages = body["messages"]
    if not isinstance(messages, list):
        raise _refused("Expected 'messages' to be an array")
    if (choices := body.get("n", 1)) != 1:
        raise _refused(f"Field 'n': Value must be between 1 <= value <= 1, but got {choices}")
    for message in messages:
        _check_message(message, vision=vision)
    limit(body)
    asked = bool(body.get("continue_final_message"))
    if asked and body.get("add_generation_prompt", True):
        raise _refused("Cannot set both add_generation_prompt and continue_final_message to true.")
    if not (asked or prefill) or not messages or messages[-1]["role"] != "assistant":
        return
    if [message["role"] for message in messages[-2:]] == ["assistant", "assistant"]:
        raise _refused("Cannot have 2 or more assistant messages at the end of the list.")
    if messages[-1].get("tool_calls"):
        raise _refused("Cannot continue an assistant message that contains tool calls.")


def limit(body: Mapping[str, Any]) -> int | None:
    """Most tokens of the answer that the client allows; -1 means no bound, and 0 is one token.

    Raises:
        Refused: it is no number, or below that.
    """
    told = [_number(name, body[name]) for name in _LIMITS if body.get(name) is not None]
    return None if not told or told[0] == -1 else max(1, told[0])


def properties(model: str, window: int, *, slots: int = 1, tools: bool = False, vision: bool = False) -> dict[str, Any]:
    """`GET /props`. A template that does not know tools leaves them out, and nothing else tells of it."""
    return {
        "default_generation_settings": {"params": {"max_tokens": -1, "stream": False}, "n_ctx": window},
        "total_slots": slots,
        "model_alias": model,
        "model_path": f"/models/{model}.gguf",
        "modalities": {"vision": vision, "audio": False},
        "chat_template_caps": {f"supports_{cap}": tools or "tool" not in cap for cap in _CAPS},
        "build_info": "spillway-demo",
        "is_sleeping": False,
    }


def slot(number: int, window: int, *, busy: bool = False, task: int = 0, tokens: int = 0) -> dict[str, Any]:
    """One of `GET /slots`, with the prompt of the newest `task` in it if there was one."""
    used = {"id_task": task, "n_prompt_tokens": tokens} if task else {}
    return {"id": number, "n_ctx": window, "speculative": False, "is_processing": busy, **used}


def model_object(model: str, created: int) -> dict[str, Any]:
    """One of `GET /v1/models`, without `meta`, which only a loaded model has."""
    return {
        "id": model,
        "aliases": [model],
        "tags": [],
        "object": "model",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "created": created,
        "owned_by": "llamacpp",
    }


def timings(prompt: int, made: int, cached: int = 0, *, token_ms: float = 1.0) -> dict[str, Any]:
    """`timings` of an answer, in tokens, each of which took as long."""
    fresh = prompt - cached
    counts = {"cache_n": cached, "prompt_n": fresh, "predicted_n": made}
    return {**counts, "prompt_ms": fresh * token_ms, "predicted_ms": made * token_ms}


def _check_message(message: Any, *, vision: bool) -> None:
    if not isinstance(message, dict) or ("content" not in message and message.get("role") != "assistant"):
        raise _refused("All non-assistant messages must contain 'content'")
    if "content" not in message and "tool_calls" not in message:
        raise _refused("Assistant message must contain either 'content' or 'tool_calls'!")
    if "role" not in message:
        text = f"Failed to parse messages: Missing 'role' in message: {dumps(message).decode()}"
        raise _refused(text, 500)
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in {"text", *_MEDIA}:
            raise _refused("unsupported content[].type")
        if kind != "text" and not (vision and kind == "image_url"):
            text = f"{_MEDIA[kind]} input is not supported - hint: {_HINT}"
            raise _refused(text, 500)


def _number(name: str, value: Any) -> int:
    if not isinstance(value, int | float) or value < -1:
        raise _refused(f"Field '{name}': Value must be between -1 <= value <= {2**31 - 1}, but got {value}")
    return int(value)


def _refused(message: str, status: int = 400) -> Refused:
    return Refused(status, error(status, message))

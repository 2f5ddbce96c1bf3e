"""Reading backends' errors: every field, however deeply nested, and whether its words are the client's own."""

import re
from functools import cached_property
from typing import Any, Literal

from proxy.core.errors import error_in
from proxy.core.jsontext import JsonObject, dig, loads_object, loads_or_none, omit

EXAMINED = 16 * 1024
"""Bytes of a body that are read; error texts are far shorter."""
_DEPTH = 8
_FIELDS = 256
_OTHER_STATUSES = frozenset({401, 402, 403, 429})
"""Statuses of errors about a key, money or a rate limit."""
_ECHOES = frozenset({"input", "messages", "prompt", "body", "request"})
_ECHO = re.compile(r"""['"]input['"]: ?[\[{]""")
_CONTENTS = ("messages", "prompt", "input")
_ANSWER_BOUNDS = ("max_tokens", "max_completion_tokens", "n_predict")
_NOT_ALPHANUMERIC = bytes(set(range(256)) - set(b"abcdefghijklmnopqrstuvwxyz0123456789"))


class SentRequest:
    """The body of a refused request: backends quote requests in errors, and the client's own words are not evidence."""

    # Backends repeat parameters in validation errors. One request with "temperature": "maximum context length is 1000
    # tokens" once gave every key a window of 1,000 tokens for an hour at vLLM; llama.cpp repeats
    # `response_format.type`, Ollama `reasoning_effort`. Users paste errors into conversations, too.

    def __init__(self, body: bytes) -> None:
        self._body = body

    def place(self, text: str) -> Literal["parameters", "conversation"] | None:
        """Find where a text occurs in it. Only letters and digits are compared, since errors escape and wrap quotations."""
        parameters, conversation = self._texts
        found = _alphanumeric(text)
        return "parameters" if found in parameters else "conversation" if found in conversation else None

    @property
    def answer_bound(self) -> int:
        """Bound of the answer in tokens, the largest of several; 0 without one."""
        bounds = (self._parsed.get(name) for name in _ANSWER_BOUNDS)
        return max((bound for bound in bounds if isinstance(bound, int)), default=0)

    @cached_property
    def _parsed(self) -> JsonObject:
        return loads_object(self._body) or {}

    @cached_property
    def _texts(self) -> tuple[bytes, bytes]:
        """Letters and digits of its parameters, and of its conversation."""
        parameters = omit(self._parsed, *_CONTENTS)
        return _texts_in(parameters), _texts_in([self._parsed.get(name) for name in _CONTENTS])


def _texts_in(value: Any) -> bytes:
    texts, pending = list[bytes](), [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            texts.append(_alphanumeric(value))
        elif isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, list):
            pending += value
    return b"\n".join(texts)


def error_text(status: int, body: bytes, *, money: bool = False) -> str | None:
    """Return an error's complete text, one `"name": value` per line; JSON inside strings is expanded too.

    None for anything but an error, or for an error about a key, money or a rate limit. The parts of the
    request that a validation error repeats are left out, since a conversation may itself talk about errors.

    Args:
        status: HTTP status of the response; 200 for the data of an SSE frame.
        body: body of the response, or data of the frame. With status 200 it must have an error's form, so that an answer
            *about* errors is not mistaken for one.
        money: whether to read errors about money too: a key's budget can bound a prompt or its answer.
    """
    body = body[:EXAMINED]
    parsed = loads_or_none(body)
    others = _OTHER_STATUSES - {402} if money else _OTHER_STATUSES
    if status in others or _status_in(parsed) in others or (status < 400 and not _is_error(parsed)):
        return None
    if parsed is None:
        return _without_echo(body.decode("utf-8", "replace"))
    lines = list[str]()
    pending: list[tuple[str, Any, int]] = [("", parsed, 0)]
    while pending and len(lines) < _FIELDS:
        name, value, depth = pending.pop()
        if name in _ECHOES and isinstance(value, dict | list):
            continue
        lines.append(f'"{name}": {_shown(value)}')
        if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
            value = loads_or_none(value)
        if depth < _DEPTH and isinstance(value, dict):
            pending += [(key, item, depth + 1) for key, item in value.items()]
        elif depth < _DEPTH and isinstance(value, list):
            pending += [("", item, depth + 1) for item in value]
    return "\n".join(lines)


def is_refusal(body: bytes) -> bool:
    """Return whether a complete response is an error in spite of a good status (OpenRouter; LM Studio for unknown paths)."""
    return (b'"error"' in body or b'"choices"' not in body) and _is_error(loads_or_none(body))


def _is_error(parsed: Any) -> bool:
    """Return whether SSE data or a body of status 200 is an error, or an answer that ended in one (z.ai's for a full window)."""
    if not isinstance(parsed, dict):
        return False
    choices = parsed.get("choices")
    if error_in(parsed, answers=bool(choices)) is not None:
        return True
    return isinstance(choices, list) and any(
        isinstance(choice, dict)
        and (choice.get("error") or choice.get("finish_reason") in ("error", "model_context_window_exceeded"))
        for choice in choices
    )


def error_status(status: int, body: bytes) -> int:
    """Return the status inside an error's body, or else the response's own."""
    return _status_in(loads_or_none(body[:EXAMINED])) or status


def _status_in(parsed: Any) -> int | None:
    """Return the status inside an error's body, which a gateway may have wrapped in a 200 or 400; None if there is none."""
    code = dig(parsed, "error", "code")
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        return int(code)
    return code if isinstance(code, int) else None


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{_without_echo(value)}"'
    return "" if isinstance(value, dict | list) else str(value)


def _without_echo(text: str) -> str:
    return _ECHO.split(text, maxsplit=1)[0]


def _alphanumeric(text: str) -> bytes:
    return text.lower().encode("ascii", "ignore").translate(None, _NOT_ALPHANUMERIC)

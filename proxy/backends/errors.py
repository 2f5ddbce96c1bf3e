"""Reading what backends say in errors: every field, however deeply nested, and whether the words are the client's own."""

import re
from functools import cached_property
from typing import Any, Literal

from proxy.core.errors import error_in
from proxy.core.jsontext import JsonObject, dig, loads_object, loads_or_none, omit

EXAMINED = 16 * 1024
"""Bytes of a body that are looked at; error texts are far shorter."""
_DEPTH = 8
_FIELDS = 256
_OTHER_STATUSES = frozenset({401, 402, 403, 429})
"""Of errors about a key, money or a rate limit."""
_ECHOES = frozenset({"input", "messages", "prompt", "body", "request"})
_ECHO = re.compile(r"""['"]input['"]: ?[\[{]""")
_CONTENTS = ("messages", "prompt", "input")
_ANSWER_BOUNDS = ("max_tokens", "max_completion_tokens", "n_predict")
_NOT_ALPHANUMERIC = bytes(set(range(256)) - set(b"abcdefghijklmnopqrstuvwxyz0123456789"))


class SentRequest:
    """The body of a refused request: backends repeat what they refuse, and the client's own words are no evidence."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def place(self, text: str) -> Literal["parameters", "conversation"] | None:
        """Tell where a text stands in it; letters and digits count, since errors escape and wrap what they repeat."""
        parameters, conversation = self._texts
        found = _alphanumeric(text)
        return "parameters" if found in parameters else "conversation" if found in conversation else None

    @property
    def answer_bound(self) -> int:
        """Largest answer that it allows, in tokens; 0 without a bound."""
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
    """All that an error says, one `"name": value` per line, JSON inside strings taken apart as well.

    None for what is no error, or one that has nothing to do with the request: a key, money, a rate limit. What a validation
    error repeats of the request is left out: a conversation may well talk of errors.

    Args:
        status: HTTP status of the response; 200 for the data of an SSE frame.
        body: of the response, or data of the frame. Of a 200 only an error counts, so that an answer *about* errors is not
            mistaken for one.
        money: whether one about money is read as well: what a key may spend can bound a prompt, or its answer.
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
    """Tell an error in SSE data, or a body of status 200: one that says so, or an answer that ended in one (z.ai's for a full window)."""
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
    """Return the status that an error names for itself, or else the one it came with."""
    return _status_in(loads_or_none(body[:EXAMINED])) or status


def _status_in(parsed: Any) -> int | None:
    """The status that an error names for itself: gateways send 200 or 400 around it."""
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

"""Fields that a whole answer always has by OpenAI's schema, and that backends leave out where there is nothing in them.

Fields: OpenAI API reference, "The chat completion object" (2026): `logprobs` of a choice and `refusal` of a message are
required, though they may be null; `annotations` OpenAI never leaves out. llama-server (b11549) has none of the three.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from proxy.wire.jsontext import dumps, loads

_OF_CHOICE: Mapping[str, Any] = {"logprobs": None}
_OF_MESSAGE: Mapping[str, Any] = {"refusal": None, "annotations": []}
_MESSAGE = re.compile(rb'(?<!\\)"message"\s*:\s*\{\s*(\})?')
"""A key, for inside a text its second quotation mark is escaped."""


def complete(raw: bytes, form: dict[str, Any]) -> bytes:
    """A body with the missing fields put in, where all other bytes stay; the same object where nothing is missing.

    `form` is what was read from it.
    """
    whole = completed(form)
    if whole is form:
        return raw
    choices = [choice for choice in form["choices"] if _message(choice) is not None]
    answered = iter(choices)
    made, places = _MESSAGE.subn(lambda place: _spliced(place, next(answered, None)), raw)
    # Where there are more, something else in it has a field of that name.
    return made if places == len(choices) or loads(made) == whole else raw


def completed(form: dict[str, Any]) -> dict[str, Any]:
    """The same of a body that is written anew."""
    choices = form.get("choices")
    if not isinstance(choices, list) or not any(map(_lacking, choices)):
        return form
    return {**form, "choices": list(map(_completed, choices))}


def _lacking(choice: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What a choice lacks, and its message; None if that is nothing."""
    message = _message(choice)
    if message is None:
        return None
    lacking = _missing(choice, _OF_CHOICE), _missing(message, _OF_MESSAGE)
    return lacking if any(lacking) else None


def _message(choice: Any) -> dict[str, Any] | None:
    message = choice.get("message") if isinstance(choice, dict) else None
    return message if isinstance(message, dict) else None


def _missing(said: Mapping[str, Any], required: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in required.items() if name not in said}


def _completed(choice: Any) -> Any:
    if (lacking := _lacking(choice)) is None:
        return choice
    return {**choice, **lacking[0], "message": {**choice["message"], **lacking[1]}}


def _spliced(place: re.Match[bytes], choice: Any) -> bytes:
    """The beginning of a message, with what its choice lacks before it and what it lacks itself behind."""
    if (lacking := _lacking(choice)) is None:
        return place[0]
    before, behind = (dumps(each)[1:-1] for each in lacking)
    opened, closed = (place[0][:-1], b"}") if place[1] else (place[0], b"")
    comma = b"," if behind and not closed else b""
    return (before + b"," if before else b"") + opened + behind + comma + closed

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
_FIELDS = {
    name: dumps({name: value})[1:-1] + b"," for name, value in (*_OF_CHOICE.items(), *_OF_MESSAGE.items())
}
"""Each as it is written, with a comma behind it."""
_PLAIN, _BEFORE, _BEHIND = (
    b'"message":{',
    *(b"".join(_FIELDS[name] for name in each) for each in (_OF_CHOICE, _OF_MESSAGE)),
)
_MESSAGE = re.compile(rb'(?<!\\)"message"\s*:\s*\{\s*(\})?')
"""A key, for inside a text its second quotation mark is escaped."""
_ESCAPED = re.compile(rb"\\u00(?:6[157dD]|73)")
"""A letter of that key as JSON may also have it."""


def complete(raw: bytes, form: dict[str, Any]) -> bytes:
    """A body with the missing fields put in, where all other bytes stay; the same object where nothing is missing.

    `form` is what was read from it.
    """
    sure = b"\\u00" not in raw or _ESCAPED.search(raw) is None
    before, plain, behind = raw.partition(_PLAIN)
    if sure and plain and raw.count(b'"message"') == 1 and _lacks_all(form):  # as llama-server writes it
        return b"".join((before, _BEFORE, plain, _BEHIND, behind))
    whole = completed(form)
    if whole is form:
        return raw
    choices = [choice for choice in form["choices"] if _message(choice) is not None]
    answered = iter(choices)
    made, places = _MESSAGE.subn(lambda place: _spliced(place, next(answered, None)), raw)
    # Where there are more, or the key may be written otherwise, something else in it has a field of that name.
    return made if (sure and places == len(choices)) or loads(made) == whole else raw


def completed(form: dict[str, Any]) -> dict[str, Any]:
    """The same of a body that is written anew."""
    choices = form.get("choices")
    if not isinstance(choices, list) or not any(map(_lacks, choices)):
        return form
    return {**form, "choices": [_completed(each) if _lacks(each) else each for each in choices]}


def _lacks_all(form: dict[str, Any]) -> bool:
    """Whether it has one choice, in whose message there is something, but nothing of what is required."""
    match form:
        case {"choices": [{"message": {} as message} as choice]} if message:
            return "logprobs" not in choice and "refusal" not in message and "annotations" not in message
    return False


def _message(choice: Any) -> dict[str, Any] | None:
    message = choice.get("message") if isinstance(choice, dict) else None
    return message if isinstance(message, dict) else None


def _lacks(choice: Any) -> bool:
    """Whether something is missing in a choice that has a message."""
    message = _message(choice)
    return message is not None and not (
        "logprobs" in choice and "refusal" in message and "annotations" in message
    )


def _completed(choice: dict[str, Any]) -> dict[str, Any]:
    return {
        **choice,
        **_missing(choice, _OF_CHOICE),
        "message": {**choice["message"], **_missing(choice["message"], _OF_MESSAGE)},
    }


def _missing(said: Mapping[str, Any], required: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in required.items() if name not in said}


def _spliced(place: re.Match[bytes], choice: Any) -> bytes:
    """The beginning of a message, with what its choice lacks before it and what it lacks itself behind."""
    if not _lacks(choice):
        return place[0]
    before, behind = _written(choice, _OF_CHOICE), _written(choice["message"], _OF_MESSAGE)
    if place[1]:  # there is nothing in it
        return before + place[0][:-1] + behind[:-1] + b"}"
    return before + place[0] + behind


def _written(said: Mapping[str, Any], required: Mapping[str, Any]) -> bytes:
    """What of it is missing, each with a comma behind it."""
    return b"".join(_FIELDS[name] for name in required if name not in said)

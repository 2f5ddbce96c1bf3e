"""What is wrong with a chat history, as a strict chat template would see it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import orjson

from proxy.core.request import text_of
from tests.fakes.model import Message


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong at a message; an `error` breaks templates, a `note` only some."""

    severity: Literal["error", "note"]
    text: str


def check_history(messages: Sequence[Message]) -> list[Flaw]:
    if not all(isinstance(message, dict) for message in messages):
        return [Flaw("error", "a message is not an object")]
    errors = [*_tool_errors(messages), *_shape_errors(messages)]
    return [Flaw("error", text) for text in errors] + [Flaw("note", text) for text in _notes(messages)]


def _tool_errors(messages: Sequence[Message]) -> list[str]:
    flaws: list[str] = []
    open_calls: list[str] = []
    known: set[str] = set()
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            flaws += _result_errors(index, message, open_calls, known)
            continue
        flaws += [f"message {index}: call {call!r} has no result before it" for call in open_calls]
        open_calls = [str(call.get("id")) for call in message.get("tool_calls") or ()]
        known.update(open_calls)
        flaws += [f"message {index}: {text}" for text in _argument_errors(message)]
    return flaws + [f"at the end: call {call!r} has no result" for call in open_calls]


def _result_errors(index: int, message: Message, open_calls: list[str], known: set[str]) -> list[str]:
    """Errors of a tool result; the call it answers is taken off `open_calls`."""
    name = message.get("tool_call_id")
    if name is None and open_calls:  # Ollama's own API names no ids: results answer in order
        open_calls.pop(0)
        return []
    if name in open_calls:
        open_calls.remove(name)
        return []
    if name in known:
        return [f"message {index}: result of {name!r} does not follow its call, or comes twice"]
    return [f"message {index}: result of {name!r} has no call before it"]


def _argument_errors(message: Message) -> list[str]:
    flaws = []
    for call in message.get("tool_calls") or ():
        arguments: Any = (call.get("function") or {}).get("arguments")
        if isinstance(arguments, dict):
            continue
        try:
            orjson.loads(arguments)
        except (orjson.JSONDecodeError, TypeError):
            flaws.append(f"arguments of call {call.get('id')!r} are not valid JSON")
    return flaws


def _shape_errors(messages: Sequence[Message]) -> list[str]:
    flaws = []
    roles = [message.get("role") for message in messages]
    if "user" not in roles:
        flaws.append("there is no user message")
    for index, message in enumerate(messages):
        if message.get("role") == "assistant" and _is_empty(message):
            flaws.append(f"message {index}: the assistant says nothing")
    middle = [index for index in _system_indexes(roles) if index >= _first_other(roles)]
    if len(middle) > 1:
        flaws.append(f"messages {middle}: several system messages in the middle")
    return flaws


def _is_empty(message: Message) -> bool:
    said = text_of(message).strip() or message.get("tool_calls") or message.get("function_call")
    return not (said or message.get("reasoning_content") or message.get("reasoning"))


def _system_indexes(roles: Sequence[object]) -> list[int]:
    return [index for index, role in enumerate(roles) if role in {"system", "developer"}]


def _first_other(roles: Sequence[object]) -> int:
    return next((index for index, role in enumerate(roles) if role not in {"system", "developer"}), len(roles))


def _notes(messages: Sequence[Message]) -> list[str]:
    notes = []
    roles = [message.get("role") for message in messages]
    for index, (before, after) in enumerate(pairwise(roles), start=1):
        if before == after and after in {"user", "assistant"}:
            notes.append(f"message {index}: two {after} messages in a row")
        elif before in {"system", "developer"} and after == "assistant":
            notes.append(f"message {index}: the assistant speaks before the user")
    if any(index >= _first_other(roles) for index in _system_indexes(roles)):
        notes.append("a system message in the middle")
    return notes

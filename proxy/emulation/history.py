"""A history with tool calls as one that a model without tools understands: calls and results as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from proxy.emulation.offer import Offer
from proxy.emulation.protocol import RESULT, call_text, protocol, rule
from proxy.history.turns import RESULT_ROLES, calls_of
from proxy.neutral.request import Message, leading_system
from proxy.wire.jsontext import dumps, loads

_UNNAMED = "tool"
_LONGEST_NAME = 64
_LONGEST_ARGUMENTS = 200
_MARKUP = re.compile(r"[<>'\n]")
_UNSAFE = re.compile(r"[^\w.:/ -]")
"""Characters that would end the field of a tag."""
_MARK = re.compile(r"(<|\[)(/?tool_result)", re.IGNORECASE)
"""What `proxy.history.tooltext` takes for the beginning or the end of a result."""


def as_text(messages: Sequence[Message], offer: Offer, *, system: bool = True) -> list[Message]:
    """One message out for each in, in order, with the protocol in the last of the leading system messages.

    Where there is none, a system message comes first; without `system`, for templates that have no such role, the
    protocol stands at the beginning of the first user message. What holds for this answer only ends the last message if
    that is the user's or a result, else the protocol. Messages without calls and results stay the same objects but for
    that, and a history that was rewritten already stays as it is.
    """
    names: dict[str, _Called] = {}
    done: list[Message] = []
    for message in messages:
        if message.get("role") in RESULT_ROLES:
            done.append(_result(message, names))
        elif calls_of(message) or isinstance(message.get("function_call"), dict):
            done.append(_called(message, names))
        else:
            done.append(message)
    return _instructed(done, offer, system=system)


def _instructed(messages: list[Message], offer: Offer, *, system: bool) -> list[Message]:
    text, now = protocol(offer), rule(offer)
    if not text:
        return messages
    if now and messages and _is_users(messages[-1]):
        messages[-1] = _ending_with(messages[-1], now)
    elif now:
        text = f"{text}\n\n{now}"
    last = leading_system(messages) - 1
    if last >= 0:
        messages[last] = _ending_with(messages[last], text)
        return messages
    first = None if system else next((i for i, m in enumerate(messages) if _is_users(m)), None)
    if first is None:
        return [{"role": "system" if system else "user", "content": text}, *messages]
    messages[first] = _beginning_with(messages[first], text)
    return messages


def _is_users(message: Message) -> bool:
    """Whether it is a user message to which text can be added."""
    content = message.get("content")
    return message.get("role") == "user" and (content is None or isinstance(content, str | list))


def _ending_with(message: Message, text: str) -> Message:
    """The message with a text behind what it says; the same object if it ends with it."""
    content = message.get("content")
    if isinstance(content, list):
        content = content[-1].get("text") if content and isinstance(content[-1], dict) else None
    done = isinstance(content, str) and content.endswith(text)
    return message if done else _with_text(message, text, "\n\n")


def _beginning_with(message: Message, text: str) -> Message:
    """The message with a text before what it says; the same object if it begins with it."""
    content = message.get("content")
    begins = content
    if isinstance(content, list):
        begins = content[0].get("text") if content and isinstance(content[0], dict) else None
    if isinstance(begins, str) and begins.startswith(text):
        return message
    if isinstance(content, list) and content:
        return {**message, "content": [{"type": "text", "text": f"{text}\n\n"}, *content]}
    return {**message, "content": f"{text}\n\n{content}" if content else text}


def _with_text(message: Message, text: str, between: str) -> Message:
    """The message with a text behind its content."""
    content = message.get("content")
    if isinstance(content, list) and content:
        return {**message, "content": [*content, {"type": "text", "text": between + text}]}
    return {
        **message,
        "content": f"{content}{between}{text}" if isinstance(content, str) and content else text,
    }


class _Called(NamedTuple):
    """A call that a result may belong to; `arguments` only where the name does not tell which one it was."""

    name: str
    arguments: str = ""


def _called(message: Message, names: dict[str, _Called]) -> Message:
    """An assistant message whose calls are text behind its content."""
    calls = [(str(call.get("id")), call.get("function")) for call in calls_of(message)]
    if not calls:
        calls = [("", message["function_call"])]
    named = [str(function.get("name")) if isinstance(function, dict) else _UNNAMED for _, function in calls]
    written = []
    for name, (call_id, function) in zip(named, calls, strict=True):
        arguments = _arguments(function)
        names[call_id] = _Called(name, arguments if named.count(name) > 1 else "")
        written.append(call_text(name, arguments))
    rest = {key: value for key, value in message.items() if key not in {"tool_calls", "function_call"}}
    return _with_text(rest, "\n".join(written), "\n")


def _arguments(function: Any) -> str:
    """Arguments as they were written, where they are JSON."""
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str):
        return dumps({} if arguments is None else arguments).decode()
    text = arguments.strip() or "{}"
    try:
        valid = isinstance(loads(text), dict)
    except ValueError:
        valid = False
    return text if valid else dumps(arguments).decode()


def _result(message: Message, names: dict[str, _Called]) -> Message:
    """A result as a user message. Each part that is text becomes a result of its own; images stay what they are."""
    known = names.get(str(message.get("tool_call_id")), _Called(_UNNAMED))
    name, arguments = message.get("name") or known.name, known.arguments
    rest = {key: value for key, value in message.items() if key not in {"tool_call_id", "name"}}
    content = message.get("content")
    tagged: Any
    if isinstance(content, list):
        tagged = [
            {**part, "text": _tagged(part["text"], name, arguments)} if _is_text(part) else part
            for part in content
        ]
        if not any(map(_is_text, content)):
            tagged.insert(0, {"type": "text", "text": _tagged("", name, arguments)})
    else:
        text = content if isinstance(content, str) or content is None else dumps(content).decode()
        tagged = _tagged(text or "", name, arguments)
    return {**rest, "role": "user", "content": tagged}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _tagged(text: str, name: Any, arguments: str) -> str:
    """A result between its tags, in which there is nothing that looks like one of them."""
    safe = _UNSAFE.sub("_", str(name))[:_LONGEST_NAME]
    plain = len(arguments) <= _LONGEST_ARGUMENTS and not _MARKUP.search(arguments)
    which = f" arguments='{arguments}'" if arguments and plain else ""
    return f"<{RESULT} tool_name='{safe}'{which}>" + _MARK.sub(r"\1\\\2", text) + f"</{RESULT}>"

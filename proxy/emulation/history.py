"""A history with tool calls as one that a model without tools understands: calls and results as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from proxy.core.history.turns import RESULT_ROLES, calls_of
from proxy.core.jsontext import dumps, loads
from proxy.core.request import Message, is_text_part, leading_system
from proxy.emulation.offer import Offer
from proxy.emulation.protocol import RESULT, call_text, protocol, rule

_UNNAMED = "tool"
_LONGEST_NAME = 64
_LONGEST_ARGUMENTS = 200
_MARKUP = re.compile(r"[<>'\n]")
_UNSAFE = re.compile(r"[^\w.:/ -]")
"""Characters that would end the field of a tag."""
_MARK = re.compile(r"(<|\[)(/?tool_result)", re.IGNORECASE)
"""What `proxy.core.history.embedded` takes for the beginning or the end of a result."""


def as_text(messages: Sequence[Message], offer: Offer, *, system: bool = True) -> list[Message]:
    """One message out for each in, in order, with the protocol in the last of the leading system messages.

    Where there is none, a system message comes first; without `system`, for templates that have no such role, the
    protocol stands at the beginning of the first user message. What holds for this answer only ends the last message if
    that is the user's or a result, else the protocol. Messages without calls and results stay the same objects but for
    that, and a history that was rewritten already stays as it is.
    """
    return _instructed(calls_as_text(messages), offer, system=system)


def calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """The same without the protocol."""
    names: dict[str, _Called] = {}
    done: list[Message] = []
    for message in messages:
        if message.get("role") in RESULT_ROLES:
            done.append(_result(message, names))
        elif calls_of(message) or isinstance(message.get("function_call"), dict):
            done.append(_called(message, names))
        else:
            done.append(message)
    return done


def _instructed(messages: list[Message], offer: Offer, *, system: bool) -> list[Message]:
    text, now = protocol(offer), rule(offer)
    if not text:
        return messages
    if now and messages and _is_users(messages[-1]):
        messages[-1] = _with(messages[-1], now)
    elif now:
        text = f"{text}\n\n{now}"
    last = leading_system(messages) - 1
    if last >= 0:
        messages[last] = _with(messages[last], text)
        return messages
    first = None if system else next((i for i, m in enumerate(messages) if _is_users(m)), None)
    if first is None:
        return [{"role": "system" if system else "user", "content": text}, *messages]
    messages[first] = _with(messages[first], text, first=True)
    return messages


def _is_users(message: Message) -> bool:
    """Return whether it is a user message to which text can be added."""
    content = message.get("content")
    return message.get("role") == "user" and (content is None or isinstance(content, str | list))


def _with(message: Message, text: str, *, first: bool = False) -> Message:
    """The message with a text behind what it says, or before it; the same object if it says so already."""
    content = message.get("content")
    text_before = content
    if isinstance(content, list):
        edge = content[0 if first else -1] if content else None
        text_before = edge.get("text") if isinstance(edge, dict) else None
    if isinstance(text_before, str) and (text_before.startswith(text) if first else text_before.endswith(text)):
        return message
    return {**message, "content": _joined(content, text, "\n\n", first=first)}


def _joined(content: Any, text: str, between: str, *, first: bool = False) -> Any:
    """Content with a text behind it, or before it."""
    if isinstance(content, list) and content:
        part = {"type": "text", "text": text + between if first else between + text}
        return [part, *content] if first else [*content, part]
    if not (isinstance(content, str) and content):
        return text
    return between.join((text, content) if first else (content, text))


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
    return {**rest, "content": _joined(rest.get("content"), "\n".join(written), "\n")}


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
    tag = partial(_tagged, name=message.get("name") or known.name, arguments=known.arguments)
    rest = {key: value for key, value in message.items() if key not in {"tool_call_id", "name"}}
    content = message.get("content")
    tagged: Any
    if isinstance(content, list):
        tagged = [{**part, "text": tag(part["text"])} if is_text_part(part) else part for part in content]
        if not any(map(is_text_part, content)):
            tagged.insert(0, {"type": "text", "text": tag("")})
    else:
        text = content if isinstance(content, str) or content is None else dumps(content).decode()
        tagged = tag(text or "")
    return {**rest, "role": "user", "content": tagged}


def _tagged(text: str, name: Any, arguments: str) -> str:
    """A result between its tags, in which there is nothing that looks like one of them."""
    safe = _UNSAFE.sub("_", str(name))[:_LONGEST_NAME]
    plain = len(arguments) <= _LONGEST_ARGUMENTS and not _MARKUP.search(arguments)
    which = f" arguments='{arguments}'" if arguments and plain else ""
    return f"<{RESULT} tool_name='{safe}'{which}>" + _MARK.sub(r"\1\\\2", text) + f"</{RESULT}>"

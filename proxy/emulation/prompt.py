"""Prompt for a model without tools: how to write a call, each tool as a signature, and calls and results of the history as text.

Deterministic, so that the prompt begins with the same bytes on every turn and the backend's prefix cache keeps working. A
demand on one answer only, such as a `tool_choice`, is therefore put at the end of the prompt.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.core.history.embedded import RULE
from proxy.core.history.turns import calls_of
from proxy.core.jsontext import dig, dumps, loads_object, omit
from proxy.core.request import Message, Request, is_text_part, leading_system
from proxy.emulation.forms import CLOSING, OPENING, CallFault
from proxy.emulation.offer import Offer, Tool, alternatives, resolved
from proxy.emulation.values import CUT

_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
_RESULT = "tool_result"
"""Tag of a result; `proxy.core.history.embedded` reads it."""
_TEXT = """\
# Tools

To call a tool, write exactly this and stop:
{example}
Arguments are strict JSON. For several calls, write one such block after the other. Results come in the next message as \
<tool_result tool_name='NAME'>...</tool_result>: never write one yourself. If no tool is needed, answer in plain text.

Tools (? marks optional parameters):
{tools}"""
_COMPLAINT = "The tool call could not be made: {}. Write it again, complete and corrected, and nothing else:\n{}"
_CUT = "it was cut off before its end"
_REASONS, _LONGEST_REASON = 3, 400
_DEEPEST = 6
_NODES = 400
"""Schemas that are written out for one tool; references can multiply them without end."""
_DEFAULT = 40
"""Characters above which a default value is left out."""
_SIMPLE = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_LONGEST_NAME, _LONGEST_ARGUMENTS = 64, 200
_UNSAFE = re.compile(r"[^\w.:/ -]")
"""Characters that would end the field of a tag."""
_MARKUP = re.compile(r"[<>'\n]")
_MARK = re.compile(r"(<|\[)(/?tool_result)", re.IGNORECASE)
"""Text that `proxy.core.history.embedded` takes for the beginning or the end of a result."""


def call_text(name: str, arguments: str) -> str:
    """Write a call in the form that the prompt teaches; `arguments` is JSON text."""
    return f'{OPENING}\n{{"name": {dumps(name).decode()}, "arguments": {arguments}}}\n{CLOSING}'


_EXAMPLE = call_text("NAME", '{"PARAMETER": VALUE}')


def complaint(malformed: Sequence[CallFault]) -> str:
    """Write a user message that asks the model to write its calls again."""
    reasons = dict.fromkeys(_CUT if call.reason == CUT else call.message[:_LONGEST_REASON] for call in malformed)
    return _COMPLAINT.format("; ".join(list(reasons)[:_REASONS]), _EXAMPLE)


def protocol(offer: Offer) -> str:
    """Write the text for the system prompt; it does not depend on which tools may be called. Empty if there are none."""
    if not offer.tools:
        return ""
    tools = "\n".join(map(signature, offer.tools.values()))
    return _TEXT.format(example=_EXAMPLE, tools=tools)


def rule(offer: Offer) -> str:
    """Write the rule for this answer only, for the end of the prompt; empty if there is none."""
    if not offer.tools:
        return ""
    if not offer.callable:
        return RULE.format("do not call a tool")
    names = [name for name in offer.tools if name in offer.callable]
    rules = {"named": [f"you must call {names[0]}"], "required": ["you must call a tool"]}.get(offer.choice, [])
    if offer.choice != "named" and len(names) < len(offer.tools):
        rules.append(f"call none but {', '.join(names)}")
    if not offer.parallel:
        rules.append("write at most one call")
    return RULE.format("; ".join(rules)) if rules else ""


def signature(tool: Tool) -> str:
    """Describe one tool: its purpose, and a line for each parameter."""
    about = f": {tool.description}" if tool.description else ""
    schema, nodes = resolved(tool.schema, tool.schema), iter(range(_NODES))
    return "\n  ".join((f"- {tool.name}{about}", *_members(tool.schema, schema, 0, nodes)))


def _members(root: Any, schema: Mapping[str, Any], depth: int, nodes: Iterator[int]) -> Iterator[str]:
    properties, required = schema.get("properties"), schema.get("required")
    for name, inner in (properties if isinstance(properties, Mapping) else {}).items():
        described = resolved(root, inner)
        optional = "" if isinstance(required, list) and name in required else "?"
        default = "" if described.get("default") is None else f" = {dumps(described['default']).decode()}"
        default = default if len(default) < _DEFAULT else ""
        text = f"{name}{optional}: {_kind(root, described, depth + 1, nodes)}{default}"
        about = described.get("description")
        yield f"{text} /* {' '.join(about.split())} */" if isinstance(about, str) and about.strip() else text


def _kind(root: Any, schema: Any, depth: int, nodes: Iterator[int]) -> str:
    """Describe the type of a value: its options, several types, an array, an object, or the name of a simple type."""
    schema = resolved(root, schema)
    named, room = schema.get("type"), next(nodes, None) is not None
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(options, list) and options:
        return " | ".join(dumps(option).decode() for option in options)
    if room and depth <= _DEEPEST:
        choices = alternatives(schema)
        if isinstance(named, list):
            choices = choices or [{**schema, "type": kind} for kind in named]
        if choices:
            return " | ".join(dict.fromkeys(_kind(root, choice, depth + 1, nodes) for choice in choices))
        if isinstance(items := schema.get("items"), Mapping):
            kind = _kind(root, items, depth + 1, nodes)
            return f"({kind})[]" if " | " in kind and not kind.endswith("}") else f"{kind}[]"
        if isinstance(schema.get("properties"), Mapping):
            return "{" + ", ".join(_members(root, schema, depth, nodes)) + "}"
    return named if isinstance(named, str) and named in _SIMPLE else "any"


# -- the history


def as_text(messages: Sequence[Message], offer: Offer, *, system: bool = True) -> list[Message]:
    """Rewrite calls and results as text, one message out for each in, with the protocol in the last leading system message.

    If there is none, a system message is added in front; without `system`, for templates that lack the role, the protocol
    goes to the beginning of the first user message. The rule for this answer only ends the last message if that is the
    user's or a result, otherwise the protocol. All other messages without calls and results stay the same objects.
    """
    done = calls_as_text(messages)
    text, now = protocol(offer), rule(offer)
    if not text:
        return done
    if now and done and _is_users(done[-1]):
        done[-1] = {**done[-1], "content": extended(done[-1].get("content"), "\n\n", now)}
    elif now:
        text = f"{text}\n\n{now}"
    last = leading_system(done) - 1
    if last >= 0:
        done[last] = {**done[last], "content": extended(done[last].get("content"), "\n\n", text)}
        return done
    first = None if system else next((i for i, message in enumerate(done) if _is_users(message)), None)
    if first is None:
        return [{"role": "system" if system else "user", "content": text}, *done]
    content = done[first].get("content")
    parts = [{"type": "text", "text": f"{text}\n\n"}, *content] if isinstance(content, list) and content else None
    done[first] = {**done[first], "content": parts or (f"{text}\n\n{content}" if content else text)}
    return done


def calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Rewrite calls and results as text, without adding the protocol."""
    called: dict[str, tuple[str, str]] = {}
    return [_as_text(message, called) for message in messages]


def _as_text(message: Message, called: dict[str, tuple[str, str]]) -> Message:
    """Rewrite a message with its calls as text, or a result as a user message.

    `called` collects names and arguments by call id; arguments only where several calls of one message share a name.
    """
    if message.get("role") == "tool":
        return _result(message, called)
    calls = [(str(call.get("id")), call.get("function")) for call in calls_of(message)]
    if not calls:
        return message
    names = [str(function.get("name")) if isinstance(function, dict) else "tool" for _, function in calls]
    written = []
    for name, (call_id, function) in zip(names, calls, strict=True):
        arguments = _arguments(function)
        called[call_id] = name, arguments if names.count(name) > 1 else ""
        written.append(call_text(name, arguments))
    rest = omit(message, "tool_calls")
    return {**rest, "content": extended(rest.get("content"), "\n", "\n".join(written))}


def _is_users(message: Message) -> bool:
    """Return whether it is a user message to which text can be added."""
    content = message.get("content")
    return message.get("role") == "user" and (content is None or isinstance(content, str | list))


def extended(content: Any, between: str, text: str) -> Any:
    """Append a text to content, with `between` in the middle unless the content already ends with it."""
    if isinstance(content, list) and content:
        return [*content, {"type": "text", "text": between + text}]
    if not (isinstance(content, str) and content):
        return text
    return content + text if content.endswith(between) else content + between + text


def _arguments(function: Any) -> str:
    """Return the arguments as they were written if they are a JSON object, otherwise as a JSON value."""
    arguments = dig(function, "arguments")
    if not isinstance(arguments, str):
        return dumps({} if arguments is None else arguments).decode()
    text = arguments.strip() or "{}"
    return dumps(arguments).decode() if loads_object(text) is None else text


def _result(message: Message, called: Mapping[str, tuple[str, str]]) -> Message:
    """Rewrite a result as a user message. Each part with text becomes a result of its own; images stay unchanged."""
    name, arguments = called.get(str(message.get("tool_call_id")), ("tool", ""))
    name = _UNSAFE.sub("_", str(message.get("name") or name))[:_LONGEST_NAME]
    plain = len(arguments) <= _LONGEST_ARGUMENTS and not _MARKUP.search(arguments)
    which = f" arguments='{arguments}'" if arguments and plain else ""

    def tagged(text: str) -> str:
        # A tag inside the text would end the result early, and pass the rest off as the user's words.
        return f"<{_RESULT} tool_name='{name}'{which}>" + _MARK.sub(r"\1\\\2", text) + f"</{_RESULT}>"

    content = message.get("content")
    parts = content if isinstance(content, list) else []
    new: Any = [{**part, "text": tagged(part["text"])} if is_text_part(part) else part for part in parts]
    if not isinstance(content, list):
        new = tagged(content or "" if isinstance(content, str | None) else dumps(content).decode())
    elif not any(map(is_text_part, parts)):
        new.insert(0, {"type": "text", "text": tagged("")})
    return {**omit(message, "tool_call_id", "name"), "role": "user", "content": new}


def emulated(request: Request, offer: Offer, messages: Sequence[Message], *, system: bool) -> Request:
    """Return the request with its tools, and the calls and results in these messages, as text.

    `system`: the model's template may have the role, so a system message may be added.
    """
    gone = {name: None for name in _TOOL_FIELDS if name in request.body}
    return request.changed(messages=as_text(messages, offer, system=system), **gone)

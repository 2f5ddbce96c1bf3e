"""Translation of a conversation's items into neutral messages, and of its tools into functions: chat completions has no other kind.

Kinds: OpenAI API reference, "Create a model response" (2026), and PyPI `openai` 3.54.0, `types/responses/`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.core.errors import BadRequest
from proxy.core.jsontext import are_objects, dumps
from proxy.core.piece import arguments_of
from proxy.core.request import Message
from proxy.dialects.bodies import ONLY_SHOWN, dict_in, dicts_in, enclosed_in, function_of, joined, split_result, text_in

Item: TypeAlias = Mapping[str, Any]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_OMITTED = {
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "tool_search_call"),
    *("tool_search_output", "computer_call", "computer_call_output", "mcp_list_tools", "mcp_call"),
    *("mcp_approval_request", "mcp_approval_response", "configuration_update", "program", "program_output"),
    *("additional_tools", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output"),
    *("apply_patch_call", "apply_patch_call_output"),
}
"""Kinds of items left out: about work on OpenAI's servers, or tools that only OpenAI's models know."""
_SEPARATOR = "__"
_INPUT = "input"
"""Parameter of the function that represents a custom tool, whose input is plain text."""


def items_in(value: Any) -> Sequence[Item]:
    """Return the items of an `input`.

    Raises:
        BadRequest: the input is neither a string nor a list of objects.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not are_objects(value):
        raise BadRequest("`input` must be a string or a list of items.", param="input")
    return value


def messages_of(items: Sequence[Item]) -> list[Message]:
    """Translate items into messages; an assistant's reasoning, text and calls are separate items, and become one message.

    Raises:
        BadRequest: an item is malformed, or of an unknown kind.
    """
    messages: list[Message] = []
    pictures: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        where, kind = f"input[{index}]", text_in(item, "type") or "message"
        if kind in ("function_call_output", "custom_tool_call_output"):
            text, shown = _result(item, where)
            messages.append({"role": "tool", "tool_call_id": _call_id(item), "content": text})
            pictures += shown
        elif kind in _OMITTED:
            continue
        elif kind == "message" and item.get("role") != "assistant":
            _show(pictures, messages)
            messages.append(_message(item, where))
        else:
            _add_to_answer(messages, pictures, item, kind, where)
    _show(pictures, messages)
    return messages


def _show(pictures: list[dict[str, Any]], messages: list[Message]) -> None:
    """Add a user message with the pictures of the results before it, since tool messages take text only; clears `pictures`."""
    if pictures:
        messages.append({"role": "user", "content": [*pictures]})
        pictures.clear()


def _message(item: Item, where: str) -> Message:
    role = _ROLES.get(text_in(item, "role"))
    if role is None:
        raise BadRequest(f"`{where}.role` must be user, assistant, system or developer.", param=where)
    return {"role": role, "content": _content(item.get("content"), where)}


def _add_to_answer(messages: list[Message], pictures: list[dict[str, Any]], item: Item, kind: str, where: str) -> None:
    """Add an assistant's item to its message; text or reasoning begins another message if this one has text or calls already."""
    fields: Message = {}
    if kind == "message":
        content = _content(item.get("content"), where)
        fields["content"] = content if isinstance(content, str) else ""
    elif kind == "reasoning":
        parts = [*dicts_in(item, "content"), *dicts_in(item, "summary")]
        text = "\n\n".join(filter(None, (text_in(part, "text") for part in parts)))
        fields = enclosed_in(text_in(item, "encrypted_content")) | ({"reasoning_content": text} if text else {})
        if not fields:
            return
    elif kind not in ("function_call", "custom_tool_call"):
        raise BadRequest(f"`{where}` is of the type {kind!r}, which is not known here.", param="input")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if last is None or (fields and (last["content"] is not None or "tool_calls" in last)):
        _show(pictures, messages)
        last = {"role": "assistant", "content": None}
        messages.append(last)
    last |= fields
    if not fields:
        last.setdefault("tool_calls", []).append(_call(item, kind))


def _call(item: Item, kind: str) -> dict[str, Any]:
    name = function_name(text_in(item, "name"), text_in(item, "namespace"))
    custom = kind == "custom_tool_call"
    arguments = dumps({_INPUT: text_in(item, "input")}).decode() if custom else text_in(item, "arguments")
    return {"id": _call_id(item), "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(item: Item, where: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a result, and its pictures."""
    content = _content(item.get("output"), where)
    if not isinstance(content, list):
        return content, []
    text, pictures = split_result(content)
    return text or ONLY_SHOWN, pictures


def _call_id(item: Item) -> str:
    return text_in(item, "call_id") or text_in(item, "id")


def _content(content: Any, where: str) -> Any:
    """Return a content as text, or as parts if it has anything else."""
    if content is None or isinstance(content, str):
        return content or ""
    if not are_objects(content):
        raise BadRequest(f"`{where}` must have a string or a list of parts.", param=where)
    return joined([_part(part, where) for part in content])


def _part(part: Item, where: str) -> dict[str, Any]:
    match text_in(part, "type"):
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return {"type": "text", "text": text_in(part, "text")}
        case "refusal":
            return {"type": "text", "text": text_in(part, "refusal")}
        case "input_image" if url := text_in(part, "image_url"):
            detail = text_in(part, "detail")
            return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
        case "input_file" if data := text_in(part, "file_data") or text_in(part, "file_url"):
            return {"type": "file", "file": {"filename": text_in(part, "filename") or "file", "file_data": data}}
        case "input_audio":
            return dict(part)
        case kind:
            raise BadRequest(
                f"`{where}` has a part of the type {kind!r} that cannot be read here: send text, or an image or a file "
                "with its data or URL; files are not kept here.",
                param=where,
            )


# -- tools


def tools_offered(tools: Iterable[Item], namespace: str = "") -> dict[str, tuple[Item, str]]:
    """Return the tools that models can call, each with its namespace, by the name of the function that represents it.

    Tools that OpenAI's servers run are left out.
    """
    offered: dict[str, tuple[Item, str]] = {}
    for tool in tools:
        kind, name = text_in(tool, "type"), text_in(tool, "name")
        # Codex 0.169 sends one with functions inside (`multi_agent_v1`), and a `web_search` without a name.
        if kind == "namespace":
            offered |= tools_offered(dicts_in(tool, "tools"), name)
        elif kind in ("function", "custom") and name:
            offered[function_name(name, namespace)] = tool, namespace
    return offered


def function_name(name: str, namespace: str) -> str:
    """Return the name by which a model calls a tool."""
    return f"{namespace}{_SEPARATOR}{name}" if namespace else name


def free_text(arguments: str) -> str:
    """Return the input text in a call of a custom tool; all of the arguments if they are in another form."""
    text = arguments_of(arguments).get(_INPUT)
    return text if isinstance(text, str) else arguments


def tool_choice(wanted: Any, names: Mapping[str, Any]) -> Any:
    """Translate `tool_choice` for chat completions; None if there is nothing to send.

    Raises:
        BadRequest: the required tool is not among `names`.
    """
    if not isinstance(wanted, dict):
        return wanted if isinstance(wanted, str) else None
    kind = text_in(wanted, "type")
    if kind == "allowed_tools":
        # All tools stay offered: leaving some out would change the beginning of the prompt, which the backend has cached.
        return "required" if wanted.get("mode") == "required" else "auto"
    name = function_name(text_in(wanted, "name") or kind, text_in(wanted, "namespace"))
    if name not in names:
        raise BadRequest(
            f"`tool_choice` demands {name}, which is not among the tools that can be called here.", param="tool_choice"
        )
    return {"type": "function", "function": {"name": name}}


def function_for(name: str, tool: Item) -> dict[str, Any]:
    """Return the function that represents a tool; for a custom tool it takes one text."""
    schema = tool.get("parameters")
    if text_in(tool, "type") == "custom":
        grammar = text_in(dict_in(tool, "format"), "definition")
        parameter = {"type": "string", "description": f"Follows this grammar:\n{grammar}" if grammar else "A text."}
        schema = {"type": "object", "properties": {_INPUT: parameter}, "required": [_INPUT]}
    return function_of(name, tool, schema)

"""The tools of Responses: as functions, which is all that models behind chat completions can call, and back again.

Kinds: OpenAI API reference, "Create a model response" (2026), and PyPI `openai` 3.54.0, `types/responses/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.piece import arguments_of
from proxy.dialects.bodies import text_in

_Tool = Mapping[str, Any]

_TEXTS = {"type": "array", "items": {"type": "string"}}
_LOCAL_SHELL = {
    "type": "object",
    "properties": {
        "command": {**_TEXTS, "description": "The program and its arguments, one a string."},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}
_SHELL = {
    "type": "object",
    "properties": {
        "commands": {**_TEXTS, "description": "Shell commands, run in this order."},
        "timeout_ms": {"type": "integer"},
        "max_output_length": {"type": "integer"},
    },
    "required": ["commands"],
}
_APPLY_PATCH = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        "path": {"type": "string"},
        "diff": {"type": "string", "description": "The change as a V4A diff; none to delete."},
    },
    "required": ["type", "path"],
}
_BUILT_IN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "local_shell": ("Run a command on the user's machine.", _LOCAL_SHELL),
    "shell": ("Run shell commands on the user's machine.", _SHELL),
    "apply_patch": ("Create, change or delete a file.", _APPLY_PATCH),
}
"""Tools that the client runs and whose parameters OpenAI's models know unasked: description and schema."""
SEARCH = "tool_search"
"""The tool by which a model looks for further tools; OpenAI's servers run it, or with `execution: "client"` the client."""
_SEPARATOR = "__"
_INPUT = "input"


@dataclass(frozen=True, slots=True)
class ToolName:
    """The tool that a function stands for."""

    kind: str
    """`function`, `custom`, or one of the built-in ones."""
    name: str
    namespace: str = ""

    def item(self, call_id: str, arguments: str, item_id: str, status: str) -> dict[str, Any]:
        """A call as an item of the output, of which `arguments` is the JSON text that the model wrote."""
        item: dict[str, Any] = {"id": item_id, "type": f"{self.kind}_call", "call_id": call_id, "status": status}
        match self.kind:
            case "function":
                item |= {"name": self.name, "arguments": arguments}
            case "custom":
                item |= {"type": "custom_tool_call", "name": self.name, "input": free_text(arguments)}
            case "local_shell":
                item["action"] = {"type": "exec", "command": [], "env": {}, **arguments_of(arguments)}
            case "shell":
                item["action"] = {"commands": [], **arguments_of(arguments)}
            case _ if self.kind == SEARCH:
                item |= {"execution": "client", "arguments": arguments_of(arguments)}
            case _:
                item["operation"] = arguments_of(arguments)
        return {**item, "namespace": self.namespace} if self.namespace else item


def functions_offered(tools: Iterable[_Tool]) -> dict[str, tuple[dict[str, Any], ToolName]]:
    """The functions to offer, by their names, each with what it stands for; tools that OpenAI's servers run are left out."""
    found: dict[str, tuple[dict[str, Any], ToolName]] = {}
    for tool, named in _each(tools, ""):
        name = function_name(named.name, named.namespace)
        found[name] = (_function(tool, name), named)
    return found


def is_run_by_client(searching: _Tool) -> bool:
    """Return whether a search for tools (the tool, its call or its output) is the client's."""
    return text_in(searching, "execution") == "client"


def run_by_openai(tools: Iterable[_Tool]) -> tuple[str, ...]:
    """Kinds of tools that OpenAI's servers run, each once: the client can do without them."""
    kinds = (text_in(tool, "type") for tool in tools if next(_each([tool], ""), None) is None)
    return tuple(dict.fromkeys(kinds))


def function_name(name: str, namespace: str) -> str:
    """The name under which a model knows a tool."""
    return f"{namespace}{_SEPARATOR}{name}" if namespace else name


def written_freely(text: str) -> dict[str, str]:
    """The arguments of a call whose input is a text."""
    return {_INPUT: text}


def free_text(arguments: str) -> str:
    """The text that such a call gives; all that was written where it is not said in that form."""
    text = arguments_of(arguments).get(_INPUT)
    return text if isinstance(text, str) else arguments


def choice(wanted: Any, names: Mapping[str, Any]) -> Any:
    """`tool_choice` as chat completions has it; None: nothing that it could say.

    Raises:
        BadRequest: a tool is demanded that is not here.
    """
    if isinstance(wanted, str):
        return wanted
    if not isinstance(wanted, dict):
        return None
    kind = text_in(wanted, "type")
    if kind == "allowed_tools":
        # The others stay offered: leaving them out would change the beginning of the prompt.
        return "required" if wanted.get("mode") == "required" else "auto"
    name = function_name(text_in(wanted, "name") or kind, text_in(wanted, "namespace"))
    if name not in names:
        raise BadRequest(
            f"`tool_choice` demands {name}, which is not among the tools that can be called here.", param="tool_choice"
        )
    return {"type": "function", "function": {"name": name}}


def _each(tools: Iterable[_Tool], namespace: str) -> Iterator[tuple[_Tool, ToolName]]:
    for tool in tools:
        kind = text_in(tool, "type")
        if kind == "namespace":
            inner = tool.get("tools")
            listed = [each for each in inner if isinstance(each, dict)] if isinstance(inner, list) else []
            yield from _each(listed, text_in(tool, "name"))
        elif kind in ("function", "custom") and (name := text_in(tool, "name")):
            yield tool, ToolName(kind, name, namespace)
        elif kind in _BUILT_IN or (kind == SEARCH and is_run_by_client(tool)):
            yield tool, ToolName(kind, kind, namespace)


def _function(tool: _Tool, name: str) -> dict[str, Any]:
    kind = text_in(tool, "type")
    description, schema = text_in(tool, "description"), tool.get("parameters")
    if kind in _BUILT_IN:
        description, schema = _BUILT_IN[kind]
    elif kind == "custom":
        form = tool.get("format")
        grammar = text_in(form, "definition") if isinstance(form, dict) else ""
        parameter = {"type": "string", "description": f"Follows this grammar:\n{grammar}" if grammar else "A text."}
        schema = {"type": "object", "properties": {_INPUT: parameter}, "required": [_INPUT]}
    elif kind == SEARCH:
        description = description or "Look for further tools."
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if tool.get("strict") is True and kind == "function":
        function["strict"] = True
    return {"type": "function", "function": function}

"""The tools of Messages as functions, which is all that models behind chat completions can call.

Kinds: Anthropic API reference, "Tool use" (2026), and PyPI `anthropic` 2.12.0, `types/beta/`. Anthropic's models know the
parameters of the tools that Anthropic defines and the client runs; others have to be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from proxy.dialects.bodies import text_in
from proxy.errors import BadRequest

_Block = Mapping[str, Any]

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ANSWERED_BY_ANTHROPIC = (
    *("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_", "mcp_toolset"),
)
"""Tools that no client runs: Anthropic's servers do, while they answer."""
_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_LINES = {"type": "array", "items": _NUMBER, "description": "First and last line, from 1."}
_ON_FILES = ["view", "create", "str_replace", "insert"]
_FILE_COMMANDS: Mapping[str, Any] = {
    "command": {"type": "string", "enum": _ON_FILES},
    "path": _TEXT,
    "view_range": _LINES,
    "file_text": {"type": "string", "description": "For create."},
    "old_str": {"type": "string", "description": "For str_replace: has to occur once."},
    "new_str": {"type": "string", "description": "For str_replace."},
    "insert_line": {"type": "integer", "description": "For insert: the line after which."},
    "insert_text": {"type": "string", "description": "For insert."},
}
_MEMORY_COMMANDS: Mapping[str, Any] = {
    **_FILE_COMMANDS,
    "command": {"type": "string", "enum": [*_ON_FILES, "delete", "rename"]},
    "old_path": {"type": "string", "description": "For rename."},
    "new_path": {"type": "string", "description": "For rename."},
}
_ACTIONS = (
    *(
        "screenshot",
        "left_click",
        "right_click",
        "middle_click",
        "double_click",
        "mouse_move",
        "left_click_drag",
    ),
    *("type", "key", "hold_key", "scroll", "wait", "cursor_position"),
)
_COMPUTER: Mapping[str, Any] = {
    "action": {"type": "string", "enum": list(_ACTIONS)},
    "coordinate": {"type": "array", "items": _NUMBER, "description": "x and y in pixels."},
    "start_coordinate": {"type": "array", "items": _NUMBER, "description": "For left_click_drag."},
    "text": {"type": "string", "description": "What to type, or the key."},
    "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
    "scroll_amount": _NUMBER,
    "duration": {"type": "number", "description": "Seconds."},
}
_DEFINED: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "bash_": (
        "Run a command in a shell that stays open.",
        {"command": _TEXT, "restart": {"type": "boolean", "description": "Begin a new shell instead."}},
        (),
    ),
    "text_editor_": ("View, create and edit files.", _FILE_COMMANDS, ("command", "path")),
    "memory_": ("Keep notes in files below /memories, and look them up.", _MEMORY_COMMANDS, ("command",)),
    "computer_": ("Use the screen, mouse and keyboard of a computer.", _COMPUTER, ("action",)),
}
"""By how their types begin: what they do, their parameters, and which of them are required."""


def tools_in(asked: Mapping[str, Any], offered: Iterable[_Block]) -> dict[str, Any]:
    """The functions to offer, with how they may be called.

    Raises:
        BadRequest: there are only such as Anthropic's servers run.
    """
    if asked.get("mcp_servers"):
        raise BadRequest(
            "`mcp_servers` are called by Anthropic's servers, which are not here: have the client call them, and offer "
            "their tools in `tools`.",
            param="mcp_servers",
        )
    listed = list(offered)
    tools = {text_in(tool, "name"): _function(tool) for tool in listed if not is_answered(tool)}
    if not tools:
        if listed:
            names = ", ".join(text_in(tool, "name") or text_in(tool, "type") for tool in listed)
            raise BadRequest(
                f"The tools {names} run on Anthropic's servers, which are not here: offer tools that the client runs.",
                param="tools",
            )
        return {}
    made: dict[str, Any] = {"tools": list(tools.values())}
    choice = asked.get("tool_choice")
    if isinstance(choice, dict):
        kind = text_in(choice, "type")
        if kind == "tool":
            made["tool_choice"] = {"type": "function", "function": {"name": text_in(choice, "name")}}
        elif kind in _CHOICES:
            made["tool_choice"] = _CHOICES[kind]
        if choice.get("disable_parallel_tool_use") is True:
            made["parallel_tool_calls"] = False
    return made


def offered_after(tools: Iterable[_Block], blocks: Iterable[_Block]) -> list[_Block]:
    """The tools that are offered once a client has added and removed some in the middle of the conversation.

    In the order in which they were first known, so that the beginning of the prompt changes as little as may be.
    """
    known = {text_in(tool, "name") or str(place): tool for place, tool in enumerate(tools)}
    gone = set[str]()
    for block in blocks:
        change = block.get("tool") if text_in(block, "type") in ("tool_addition", "tool_removal") else None
        if not isinstance(change, dict):
            continue
        definition = change.get("definition")
        name = text_in(definition if isinstance(definition, dict) else change, "name")
        if block["type"] == "tool_removal":
            gone.add(name)
            continue
        gone.discard(name)
        if isinstance(definition, dict):
            known[name] = definition
    return [tool for name, tool in known.items() if name not in gone]


def is_answered(tool: _Block) -> bool:
    """Whether Anthropic's servers would run it."""
    return text_in(tool, "type").startswith(_ANSWERED_BY_ANTHROPIC)


def _function(tool: _Block) -> dict[str, Any]:
    kind, schema, description = text_in(tool, "type"), tool.get("input_schema"), text_in(tool, "description")
    known = next((made for begin, made in _DEFINED.items() if kind.startswith(begin)), None)
    if known is not None and not isinstance(schema, dict):
        does, properties, required = known
        description = description or does
        schema = {"type": "object", "properties": dict(properties), "required": list(required)}
    function: dict[str, Any] = {"name": text_in(tool, "name")}
    if description:
        function["description"] = description
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}

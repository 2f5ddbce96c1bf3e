"""The tools of Messages as functions, which is all that models behind chat completions can call.

Kinds: Anthropic API reference, "Tool use" (2026), and PyPI `anthropic` 2.12.0, `types/beta/`. Anthropic's models know the
parameters of the tools that Anthropic defines and the client runs; others have to be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from proxy.core.errors import BadRequest
from proxy.dialects.bodies import text_in
from proxy.dialects.messages.conversation import ContentBlock, blocks_in
from proxy.dialects.messages.managing import COMPACTION

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ANSWERED_BY_ANTHROPIC = (
    *("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_", "mcp_toolset"),
)
"""Tools that no client runs: Anthropic's servers do, while they answer."""
_ADDITION, _REMOVAL = "tool_addition", "tool_removal"
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
_ACTIONS = [
    *("screenshot", "left_click", "right_click", "middle_click", "double_click", "mouse_move"),
    *("left_click_drag", "type", "key", "hold_key", "scroll", "wait", "cursor_position"),
]
_COMPUTER: Mapping[str, Any] = {
    "action": {"type": "string", "enum": _ACTIONS},
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


def tools_in(form: Mapping[str, Any], offered: Iterable[ContentBlock]) -> dict[str, Any]:
    """The functions to offer, with how they may be called.

    Raises:
        BadRequest: there are only such as Anthropic's servers run.
    """
    if form.get("mcp_servers"):
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
    fields: dict[str, Any] = {"tools": list(tools.values())}
    choice = form.get("tool_choice")
    if isinstance(choice, dict):
        kind = text_in(choice, "type")
        if kind == "tool":
            fields["tool_choice"] = {"type": "function", "function": {"name": text_in(choice, "name")}}
        elif kind in _CHOICES:
            fields["tool_choice"] = _CHOICES[kind]
        if choice.get("disable_parallel_tool_use") is True:
            fields["parallel_tool_calls"] = False
    return fields


def offered_in(form: Mapping[str, Any]) -> list[ContentBlock]:
    """The tools of a request, with those that were added in the middle of the conversation, less those that were removed.

    In the order in which they were first known, so that the beginning of the prompt changes as little as may be.

    Raises:
        BadRequest: `tools` is malformed.
    """
    return list(_known_after(form).values())


def _known_after(form: Mapping[str, Any]) -> dict[str, ContentBlock]:
    known, gone = _named(form), set[str]()
    for change in _changes(form["messages"]):
        tool = change.get("tool")
        if not isinstance(tool, dict):
            continue
        definition = tool.get("definition")
        name = text_in(definition if isinstance(definition, dict) else tool, "name")
        if change["type"] == _REMOVAL:
            gone.add(name)
            continue
        gone.discard(name)
        if isinstance(definition, dict):
            known[name] = definition
    return {name: tool for name, tool in known.items() if name not in gone}


def changed_in(form: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The changes that take a request's `tools` to those it has at its end: a compaction takes the place of what made them."""
    before, after = _named(form), _known_after(form)
    removed = [(_REMOVAL, {"type": "tool_reference", "name": name}) for name in before if name not in after]
    added = [
        (_ADDITION, {"type": "tool_definition", "definition": _bare(tool)})
        for name, tool in after.items()
        if before.get(name) != tool
    ]
    return [{"type": kind, "tool": tool} for kind, tool in (*removed, *added)]


def _bare(tool: ContentBlock) -> ContentBlock:
    return {name: value for name, value in tool.items() if name != "cache_control"}


def _named(form: Mapping[str, Any]) -> dict[str, ContentBlock]:
    return {
        text_in(tool, "name") or str(place): tool for place, tool in enumerate(blocks_in(form.get("tools"), "tools"))
    }


def _changes(messages: Iterable[Any]) -> Iterator[ContentBlock]:
    """Additions and removals, oldest first, with those that a compaction remembers."""
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    blocks = (block for content in contents if isinstance(content, list) for block in content)
    for block in (block for block in blocks if isinstance(block, dict)):
        remembered = block.get("tool_changes") if text_in(block, "type") == COMPACTION else [block]
        for change in remembered if isinstance(remembered, list) else ():
            if isinstance(change, dict) and text_in(change, "type") in (_ADDITION, _REMOVAL):
                yield change


def is_answered(tool: ContentBlock) -> bool:
    """Return whether Anthropic's servers would run it."""
    return text_in(tool, "type").startswith(_ANSWERED_BY_ANTHROPIC)


def _function(tool: ContentBlock) -> dict[str, Any]:
    kind, schema, description = text_in(tool, "type"), tool.get("input_schema"), text_in(tool, "description")
    known = next((defined for begin, defined in _DEFINED.items() if kind.startswith(begin)), None)
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

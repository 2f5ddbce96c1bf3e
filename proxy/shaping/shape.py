"""Shape a request by the policy before anything else looks at it.

Fewer and shorter tools, a cap on the answer, another system prompt, a shorter guide: all decided by the request and the window
alone, so that the prompt begins the same on every turn.

A diet cuts the descriptions of tools and of their parameters to the first sentence; deeper descriptions, examples and titles are
removed. If even that takes too much room under the local policy, only the most used tools keep a description. The facts needed
for a call (names, types, required fields, enums, defaults, bounds) never change.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from proxy.compaction.policy import BYTES_PER_TOKEN, answer_cap_for, prune_limits
from proxy.core.history.turns import calls_of, newest_user
from proxy.core.jsontext import dumps
from proxy.core.request import Message, Request, leading_system, text_of
from proxy.core.settings import OFF, Settings
from proxy.shaping.agent import guided, is_agent, shortened_prompt

SHARE = 1 / 4
"""Share of the window above which tool definitions are too large."""
DEEPEST = 64
"""Levels of a schema that are shortened; deeper levels stay unchanged."""
TOOLS_FIRST = (
    *("*bash*", "*shell*", "exec*", "*run*command*", "read*", "edit*", "*replace*", "apply_patch", "write*"),
    *("*grep*", "*search*", "glob*", "list*", "ls"),
)
"""Tools that coding agents need most, the most used first: globs on lower-case names."""
_TEXTS = ("description", "title", "$comment", "$schema", "example")
_WORDS: dict[str, Any] = {**dict.fromkeys(_TEXTS, str), "examples": list}
"""Keywords that only explain, each with its type: in a sloppy schema a parameter of the same name has another type."""
_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Keywords whose values map names to schemas (JSON Schema 2020-12): a parameter may be called `title`."""
_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"}
    | {"anyOf", "allOf", "oneOf", "not", "if", "then", "else", "contains", "propertyNames"}
)
"""Keywords whose values are schemas or lists of them. All others hold data, which must not be searched for keywords."""
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s+[^\sa-z]|\s*\Z)|[\u3002\uff01\uff1f])", re.DOTALL)
_PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class ShapedPart:
    """One part of the prompt that the policy shortened: the request before and after it."""

    kind: Literal["guide", "system", "tools", "on_demand"]
    before: Request
    after: Request

    @property
    def removed(self) -> list[Message]:
        """Messages that are only in the request before; tools are shown as a message."""
        return _unlike(self.before, self.after)

    @property
    def added(self) -> list[Message]:
        """Messages that replace them."""
        return _unlike(self.after, self.before)


def shaped(request: Request, settings: Settings, window: int | None) -> tuple[Request, list[ShapedPart]]:
    """Apply the policy to a request; return it, the same object if nothing changes, with the steps taken.

    `window` is in tokens, or None if unknown.
    """
    if request.body.get("tools") == []:  # OpenAI and vLLM refuse an empty list
        request = request.changed(**_no_tools(request))
    parts = steps(request, settings, window)
    request = parts[-1].after if parts else request
    cap = None if request.max_tokens is not None else answer_cap_for(settings, window)
    return (request if cap is None else request.bounded(cap)), parts


def steps(request: Request, settings: Settings, window: int | None) -> list[ShapedPart]:
    """Return the parts of a prompt that the policy changes, in order; empty if it leaves the prompt alone."""
    parts: list[ShapedPart] = []
    limits = None if window is None else prune_limits(settings, window)
    guide = None if limits is None else limits.guide
    if guide is not None or settings.policy == "local":  # otherwise neither guides nor the system prompt change
        before, messages = request, guided(request.messages, guide)
        if messages is not request.messages:
            request = request.changed(messages=messages)
            parts.append(ShapedPart("guide", before, request))
        if (prompted := _prompted(request, settings, window)) is not request:
            parts.append(ShapedPart("system", request, prompted))
        request = prompted
    if fields := _tools(request, settings, None if limits is None else limits.tools):
        parts.append(ShapedPart("tools", request, request.changed(**fields)))
    return parts


def _unlike(request: Request, other: Request) -> list[Message]:
    known = set(map(id, other.messages))
    messages = [message for message in request.messages if id(message) not in known]
    tools = request.body.get("tools")
    if tools and tools != other.body.get("tools"):
        messages.append({"role": "system", "content": dumps(tools).decode()})
    return messages


def _prompted(request: Request, settings: Settings, window: int | None) -> Request:
    text = settings.system_prompt
    if settings.policy != "local" or text == OFF:
        return request
    lead = leading_system(request.messages)
    if text is None and lead and window is not None:
        text = _of_agent(request, lead, window)
    if text is None or not lead:
        # A request without a system prompt gets none: it may be a background task of the client's own.
        return request
    system = {"role": request.messages[0]["role"], "content": text}
    return request.changed(messages=[system, *request.messages[lead:]])


def _of_agent(request: Request, lead: int, window: int) -> str | None:
    """Write a short prompt for a coding agent whose own prompt and tools take too much of the window; None to keep its own."""
    text = "\n\n".join(map(text_of, request.messages[:lead]))
    tools = request.body.get("tools")
    if not isinstance(tools, list) or len(text) + len(dumps(tools)) <= diet_from(window):
        return None
    return shortened_prompt(text, window) if is_agent(text, [*map(tool_name, tools)]) else None


def allows_tool(settings: Settings, name: str) -> bool:
    """Return whether a tool of this name may be offered to the model."""
    allowed = settings.tools_allowed
    return not allowed or any(fnmatchcase(name, glob) for glob in allowed)


def _tools(request: Request, settings: Settings, tokens: int | None) -> dict[str, Any]:
    """Return the request fields that the policy changes, with tool definitions of at most this number of tokens."""
    tools, chosen = request.body.get("tools"), request.body.get("tool_choice")
    if not isinstance(tools, list) or not tools:
        return {}
    allowed = [tool for tool in tools if allows_tool(settings, tool_name(tool))]
    if not allowed:
        return _no_tools(request)
    slim = diet(allowed) if settings.policy == "local" else allowed
    if tokens is not None:
        slim = tool_set(slim, _called(request), tokens * BYTES_PER_TOKEN)
    fields: dict[str, Any] = {"tools": slim} if slim is not allowed or len(allowed) < len(tools) else {}
    if isinstance(chosen, dict) and not allows_tool(settings, tool_name(chosen)):
        fields["tool_choice"] = "auto"
    return fields


def _no_tools(request: Request) -> dict[str, Any]:
    return dict.fromkeys({"tools", "tool_choice", "parallel_tool_calls"} & request.body.keys())


def _called(request: Request) -> frozenset[str]:
    """Return the tools called in earlier turns. The current turn is ignored, so that the prompt does not change within it."""
    earlier = request.messages[: newest_user(request.messages) or 0]
    return frozenset(tool_name(call) for message in earlier for call in calls_of(message))


# Definitions of tools with fewer words


def diet_from(window: int) -> int:
    """Return the bytes of JSON above which tool definitions are too large for a window, given in tokens."""
    return int(window * SHARE * BYTES_PER_TOKEN)


def tool_name(tool: Any) -> str:
    """Return the name of a tool that settings refer to: its function's, its own, or its type (tools that the backend runs)."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    named = function if isinstance(function, dict) else tool
    return str(named.get("name") or tool.get("type") or "")


def diet(tools: Sequence[Any]) -> Sequence[Any]:
    """Shorten tools (OpenAI's `tools`, or its older `functions`) to a diet; return the same object if nothing is gained.

    Deterministic and idempotent. Anything but an object stays unchanged.
    """
    # Not cached: it takes 0.07 ms.
    slim = [_shortened(tool, described=True) for tool in tools]
    return slim if slim != list(tools) else tools


def named_only(tools: Sequence[Any], used: Collection[str]) -> Sequence[Any]:
    """Strip the descriptions from tools that are not `used`, leaving names, types and required fields.

    They can still be called correctly. Idempotent; returns the same object if nothing is gained.
    """
    bare = [tool if tool_name(tool) in used else _shortened(tool, described=False) for tool in tools]
    return bare if bare != list(tools) else tools


def tool_set(tools: Sequence[Any], called: Collection[str], room: int) -> Sequence[Any]:
    """Keep the descriptions of the tools that fit into `room` bytes of JSON, in the order of `TOOLS_FIRST`.

    Tools that were `called` keep theirs in any case. Returns the same object if all fit.
    """
    if len(dumps(tools)) <= room:
        return tools
    bare = named_only(tools, ())
    spare = room - len(dumps(bare))
    described = set(called)
    names = [tool_name(tool) for tool in tools]
    matches = (at for glob in TOOLS_FIRST for at, name in enumerate(names) if fnmatchcase(name.lower(), glob))
    for at in dict.fromkeys(matches):
        more = len(dumps(tools[at])) - len(dumps(bare[at]))
        if more <= spare:
            described.add(names[at])
            spare -= more
    return named_only(tools, described)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text: up to a full stop before a new sentence, or to the end of the paragraph.

    A stop before a small letter does not end a sentence ("e.g. a file").
    """
    paragraph = _PARAGRAPH.split(text.strip(), maxsplit=1)[0]
    found = _SENTENCE.match(paragraph)
    return (found.group() if found is not None else paragraph).strip()


def _shortened(tool: Any, *, described: bool) -> Any:
    """Strip a definition of its explanations; if `described`, keep the first sentence about the tool and each parameter."""
    inner = tool.get("function") if isinstance(tool, dict) else None
    function = inner if isinstance(inner, dict) else tool
    if not isinstance(function, dict) or "name" not in function:
        return tool
    slim: dict[str, Any] = {}
    for name, value in function.items():
        if name == "parameters" and isinstance(value, dict):
            slim[name] = _schema(value, described=described, depth=0)
        elif name != "description" or not isinstance(value, str):
            slim[name] = value
        elif described:
            slim[name] = first_sentence(value)
    return {**tool, "function": slim} if function is inner else slim


def _schema(schema: Any, *, described: bool, depth: int) -> Any:
    """Strip a schema, or a list of them, like `_shortened`; `$ref` is not followed."""
    if isinstance(schema, list):
        return [_schema(inner, described=described, depth=depth) for inner in schema]
    if not isinstance(schema, dict) or depth >= DEEPEST:
        return schema
    slim: dict[str, Any] = {}
    for name, value in schema.items():
        # Parameters are at depth 1, directly under the top `properties`; any other nesting counts two, and so is never 1.
        below = depth + (1 if name == "properties" else 2)
        if name in _MAPS and isinstance(value, dict):
            slim[name] = {key: _schema(inner, described=described, depth=below) for key, inner in value.items()}
        elif name in _SCHEMAS:
            slim[name] = _schema(value, described=described, depth=below)
        elif name not in _WORDS or not isinstance(value, _WORDS[name]):
            slim[name] = value
        elif name == "description" and described and depth == 1:
            slim[name] = first_sentence(value)
    return slim

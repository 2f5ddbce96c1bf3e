"""The tool-schema diet: definitions of tools with fewer words, so that they leave room in a small window.

Where even those take too much, the tools that are used most say what they do, and the others only how they are called.

Descriptions of tools and of their parameters are cut to the first sentence; those further down, examples and
titles go. What a call is made of (names, types, required fields, enums, defaults, bounds) never changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from proxy.compaction.policy import BYTES_PER_TOKEN
from proxy.core.jsontext import dumps

SHARE = 1 / 4
"""Fraction of the window from which tool definitions are too large."""
DEEPEST = 64
"""Levels of a schema that are looked at; what lies below stays as it is."""

_WORDS = {"description": str, "title": str, "$comment": str, "examples": list, "example": str}
"""Keywords that only explain, with the type that tells them from a parameter of that name in a sloppy schema."""
_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Keywords whose values map names to schemas (JSON Schema 2020-12): a parameter may be called `title`."""
_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"}
    | {"anyOf", "allOf", "oneOf", "not", "if", "then", "else", "contains", "propertyNames"}
)
"""Keywords whose values are schemas or lists of them. All others hold data, in which nothing is a keyword."""
_SAFE = 2**53 - 1
"""The largest whole number that JavaScript is sure of: as a bound it says only that a number is whole."""
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s+[^\sa-z]|\s*\Z)|[\u3002\uff01\uff1f])", re.DOTALL)
_PARAGRAPH = re.compile(r"\n\s*\n")


def diet_from(window: int) -> int:
    """Bytes of tool definitions, as JSON, above which they are too large for a window of so many tokens."""
    return int(window * SHARE * BYTES_PER_TOKEN)


def diet(tools: Sequence[Any]) -> Sequence[Any]:
    """The tools (OpenAI's `tools`, or its older `functions`) on a diet; the same object if nothing is gained.

    Deterministic, and applying it again changes nothing. What is no object stays as it is.
    """
    slim = [_tool(tool) for tool in tools]
    return slim if slim != list(tools) else tools


def named_only(tools: Sequence[Any], used: Collection[str]) -> Sequence[Any]:
    """The tools, of which those that are not `used` tell nothing but how they are called: names, types, what is required.

    So a call of one is as good as ever. Applying it again changes nothing; the same object if nothing is gained.
    """
    bare = [_bare(tool, used) for tool in tools]
    return bare if bare != list(tools) else tools


def tool_set(tools: Sequence[Any], called: Collection[str], first: Sequence[str], room: int) -> Sequence[Any]:
    """The tools, of which as many tell what they do as fit into `room` bytes of JSON, in the order of `first`.

    `first` are globs on names in small letters. All keep their places, their names and what a call is made of: a call of one that tells no more is
    as good as ever. Those that were `called` tell all they do beside the others. The same object if all have room.
    """
    if _size(tools) <= room:
        return tools
    lean = [_lean(tool) for tool in tools]
    bare = named_only(lean, ())
    sizes = [(_size(full), _size(least)) for full, least in zip(lean, bare, strict=True)]
    spare = room - _size(bare)
    full = set(called)
    for index in _ranked(tools, first):
        more = sizes[index][0] - sizes[index][1]
        if more <= spare:
            full.add(_name(tools[index]))
            spare -= more
    return named_only(lean, full)


def first_sentence(text: str) -> str:
    """The first sentence of a text: up to a full stop before a new sentence, or to the end of the paragraph.

    A stop before a small letter ends no sentence ("e.g. a file").
    """
    paragraph = _PARAGRAPH.split(text.strip(), maxsplit=1)[0]
    found = _SENTENCE.match(paragraph)
    return (found.group() if found is not None else paragraph).strip()


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    if isinstance(tool.get("function"), Mapping):
        return {**tool, "function": _function(tool["function"])}
    return _function(tool) if "name" in tool else tool


def _bare(tool: Any, used: Collection[str]) -> Any:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or function.get("name") in used:
        return tool
    bare = {name: value for name, value in function.items() if name != "description"}
    if isinstance(function.get("parameters"), Mapping):
        bare["parameters"] = _schema(function["parameters"], 0)
    return {**tool, "function": bare}


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    slim = _described(function)
    if isinstance(function.get("parameters"), Mapping):
        slim["parameters"] = _parameters(function["parameters"])
    return slim


def _parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The object of a tool's parameters: each keeps the first sentence about it."""
    slim = _schema(schema, 0)
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return slim
    for name, parameter in properties.items():
        if isinstance(parameter, dict) and isinstance(parameter.get("description"), str):
            bare = slim["properties"][name]
            # In the place where it was: the order of the words is part of the prompt.
            keys = [key for key in parameter if key in bare or key == "description"]
            about = first_sentence(parameter["description"])
            slim["properties"][name] = {key: about if key == "description" else bare[key] for key in keys}
    return slim


def _described(function: Mapping[str, Any]) -> dict[str, Any]:
    about = function.get("description")
    return {**function, "description": first_sentence(about)} if isinstance(about, str) else {**function}


def _schema(schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """A schema without words; recursion ends at `DEEPEST`, and `$ref` is not followed."""
    return {
        name: _keyword(name, value, depth + 1)
        for name, value in schema.items()
        if name not in _WORDS or not isinstance(value, _WORDS[name])
    }


def _keyword(name: str, value: Any, depth: int) -> Any:
    if depth >= DEEPEST:
        return value
    if name in _MAPS and isinstance(value, dict):
        return {key: _any(inner, depth) for key, inner in value.items()}
    return _any(value, depth) if name in _SCHEMAS else value


def _any(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        return [_schema(inner, depth) if isinstance(inner, dict) else inner for inner in value]
    return _schema(value, depth) if isinstance(value, dict) else value


def _ranked(tools: Sequence[Any], first: Sequence[str]) -> list[int]:
    """The places of those that match, by the first glob that they match."""
    names = [_name(tool).lower() for tool in tools]
    matched = (at for glob in first for at, name in enumerate(names) if fnmatchcase(name, glob.lower()))
    return list(dict.fromkeys(matched))


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return str(function.get("name")) if isinstance(function, Mapping) else ""


def _size(value: Any) -> int:
    return len(dumps(value))


def _lean(tool: Any) -> Any:
    """Without what says nothing about a call: the version of the schema's language, and bounds that bound nothing."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    if not isinstance(parameters, Mapping) or function is None:
        return tool
    lean = {name: value for name, value in parameters.items() if name != "$schema"}
    if isinstance(lean.get("properties"), Mapping):
        lean["properties"] = {name: _unbounded(value) for name, value in lean["properties"].items()}
    return {**tool, "function": {**function, "parameters": lean}}


def _unbounded(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: value
        for name, value in schema.items()
        if name not in _BOUNDS or not isinstance(value, int | float) or abs(value) < _SAFE
    }

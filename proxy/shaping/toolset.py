"""The tool set: where tools take too much room, those that are used most tell what they do, and the others how they are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from proxy.shaping.diet import named_only
from proxy.wire.jsontext import dumps

_SAFE = 2**53 - 1
"""The largest whole number that JavaScript is sure of: as a bound it says only that a number is whole."""
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


def tool_set(tools: Sequence[Any], called: Collection[str], first: Sequence[str], room: int) -> Sequence[Any]:
    """The tools, of which as many tell what they do as fit into `room` bytes of JSON, in the order of `first`.

    `first` are globs on names in small letters. All keep their places, their names and what a call is made of: a call of one that tells no more is
    as good as ever. Those that were `called` tell all they do beside the others. The same object if all have room.
    """
    if _size(tools) <= room:
        return tools
    lean = [_lean(tool) for tool in tools]
    bare = named_only(lean, ())
    sizes = [(_size(whole), _size(least)) for whole, least in zip(lean, bare, strict=True)]
    left = room - _size(bare)
    whole = set(called)
    for index in _ranked(tools, first):
        more = sizes[index][0] - sizes[index][1]
        if more <= left:
            whole.add(_name(tools[index]))
            left -= more
    return named_only(lean, whole)


def _ranked(tools: Sequence[Any], first: Sequence[str]) -> list[int]:
    """The places of those that match, by the first glob that they match."""
    ranks = {
        index: rank
        for index, tool in enumerate(tools)
        if (rank := next((at for at, glob in enumerate(first) if _matches(tool, glob)), None)) is not None
    }
    return sorted(ranks, key=ranks.__getitem__)


def _matches(tool: Any, glob: str) -> bool:
    return fnmatchcase(_name(tool).lower(), glob.lower())


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

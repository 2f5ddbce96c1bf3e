"""Prompt for a model without tools: how to write a call, and each tool as a signature, in fewer words than its JSON schema.

Deterministic, so that the prompt begins with the same bytes on every turn and the backend's prefix cache keeps working. What
holds for one answer only, such as a `tool_choice`, is told apart from it, at the end of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.core.history.embedded import RULE
from proxy.core.jsontext import dumps
from proxy.emulation.calls import Malformed
from proxy.emulation.forms import CLOSING, OPENING
from proxy.emulation.offer import Offer, Tool
from proxy.emulation.repair import CUT
from proxy.emulation.schema import resolved

RESULT = "tool_result"
"""Tag of a result; `proxy.core.history.embedded` reads it."""
_SEVERAL = "For several calls, write one such block after the other."
_RESULTS = (
    f"Results come in the next message as <{RESULT} tool_name='NAME'>...</{RESULT}>: never write one yourself. "
    "If no tool is needed, answer in plain text."
)
_DEEPEST = 6
_NODES = 400
"""Schemas that are written out for one tool: references can multiply them without end."""
_DEFAULT = 40
"""Characters of the longest default value that is told."""
_JOINED = ("anyOf", "oneOf")
_SIMPLE = frozenset({"object", "string", "integer", "number", "boolean", "null"})


def call_text(name: str, arguments: str) -> str:
    """A call in the form that is taught; `arguments` is JSON."""
    return f'{OPENING}\n{{"name": {dumps(name).decode()}, "arguments": {arguments}}}\n{CLOSING}'


EXAMPLE = call_text("NAME", '{"PARAMETER": VALUE}')
_CUT = "it was cut off before its end"
_REASONS = 3
_LONGEST_REASON = 400


def complaint(malformed: Sequence[Malformed]) -> str:
    """A user message that has the model write its calls once more."""
    reasons = (_CUT if call.reason == CUT else call.reason[:_LONGEST_REASON] for call in malformed)
    listed = "; ".join(list(dict.fromkeys(reasons))[:_REASONS])
    return (
        f"The tool call could not be made: {listed}. Write it again, complete and corrected, and nothing else:\n"
        f"{EXAMPLE}"
    )


def protocol(offer: Offer) -> str:
    """The text for the system prompt: the same whichever of the tools may be called; empty where there are none."""
    if not offer.tools:
        return ""
    listed = (_Signature(tool).render() for tool in offer.tools.values())
    return "\n".join(
        (
            f"# Tools\n\nTo call a tool, write exactly this and stop:\n{EXAMPLE}",
            f"Arguments are strict JSON. {_SEVERAL} {_RESULTS}\n",
            "Tools (? marks optional parameters):",
            *listed,
        )
    )


def rule(offer: Offer) -> str:
    """Rule for this answer only, for the end of the prompt; empty where there is none."""
    if not offer.tools:
        return ""
    if not offer.callable:
        return RULE.format("do not call a tool")
    rules: list[str] = []
    names = [name for name in offer.tools if name in offer.callable]
    if offer.choice == "named":
        rules.append(f"you must call {names[0]}")
    elif offer.choice == "required":
        rules.append("you must call a tool")
    if offer.choice != "named" and len(names) < len(offer.tools):
        rules.append(f"call none but {', '.join(names)}")
    if not offer.parallel:
        rules.append("write at most one call")
    return RULE.format("; ".join(rules)) if rules else ""


class _Signature:
    """One tool: its parameters with their types on one line, what is said of them on lines of their own."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._root: Mapping[str, Any] = tool.schema if isinstance(tool.schema, Mapping) else {}
        self._left = _NODES
        self._words: list[tuple[str, str]] = []

    def render(self) -> str:
        inside = ", ".join(self._members(resolved(self._root, self._root), "", 0))
        described = f": {self._tool.description}" if self._tool.description else ""
        lines = [f"- {self._tool.name}({inside}){described}"]
        return "\n".join((*lines, *(f"  {path}: {words}" for path, words in self._words)))

    def _members(self, schema: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        properties = schema.get("properties")
        required = schema.get("required")
        for name, inner in (properties if isinstance(properties, Mapping) else {}).items():
            described = resolved(self._root, inner)
            place = f"{path}.{name}" if path else str(name)
            # A description beside a reference is about this parameter, one behind it about the type.
            description = next((s.get("description") for s in (inner, described) if isinstance(s, Mapping)), None)
            if isinstance(description, str) and description.strip() and self._left > 0:
                self._words.append((place, " ".join(description.split())))
            mark = "" if isinstance(required, list) and name in required else "?"
            yield f"{name}{mark}: {self._kind(described, place, depth + 1)}{_default(described)}"

    def _kind(self, schema: Mapping[str, Any], path: str, depth: int) -> str:
        """The type of a value: its options, several types, an array, an object, or the name of a simple type."""
        self._left -= 1
        deeper = depth <= _DEEPEST and self._left > 0
        named = schema.get("type")
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(options, list) and options:
            return " | ".join(dumps(option).decode() for option in options)
        choices = next((schema[key] for key in _JOINED if isinstance(schema.get(key), list)), None)
        if choices is None and isinstance(named, list):
            choices = [{**schema, "type": kind} for kind in named]
        if choices:
            kinds = (self._kind(resolved(self._root, choice), path, depth + 1) for choice in choices)
            return " | ".join(dict.fromkeys(kinds)) if deeper else "any"
        if named == "array" or "items" in schema:
            return self._array(schema.get("items"), path, depth) if deeper else "array"
        if isinstance(schema.get("properties"), Mapping) and deeper:
            return "{" + ", ".join(self._members(schema, path, depth)) + "}"
        return named if isinstance(named, str) and named in _SIMPLE else "any"

    def _array(self, items: Any, path: str, depth: int) -> str:
        if not isinstance(items, Mapping):
            return "array"
        kind = self._kind(resolved(self._root, items), f"{path}[]", depth + 1)
        return f"({kind})[]" if " | " in kind and not kind.endswith("}") else f"{kind}[]"


def _default(schema: Mapping[str, Any]) -> str:
    if schema.get("default") is None:
        return ""
    text = dumps(schema["default"]).decode()
    return f" = {text}" if len(text) <= _DEFAULT else ""

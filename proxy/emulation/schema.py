"""Arguments of a call against the schema of its tool: wrong types are mended, and what is wrong in spite of that is put in words.

Checked are types, required and additional parameters, `enum`, `const`, and whether one of several alternatives fits. All other
keywords (bounds, formats, patterns) are the tool's own to check, as with models that call tools natively. A client may send anything
as a schema: what is none checks nothing, only references within it are followed, and the work is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.core.jsontext import dumps
from proxy.emulation.values import Unreadable, json_text, read_json

_MOST = 10_000
"""Schemas that are looked at for one call: alternatives of alternatives multiply."""
_DEEPEST = 64
_REFERENCES = 8
"""References that lead to one schema, one after the other."""
_MISTAKES = 3
_SHOWN = 60
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})(?:\.\d{1,20})?")
_WORDS: dict[str, dict[str, Any]] = {"boolean": {"true": True, "false": False}, "null": {"null": None, "none": None}}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_Fitted = tuple[Any, list[str]]
"""A value as the schema wants it, the same object if it fits, and what is wrong with it."""


class Checker:
    """Checks arguments against a schema, and mends types that were mistaken."""

    def __init__(self, schema: Any) -> None:
        """Take any JSON value as a schema."""
        self._root = schema

    def check(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Arguments with their types mended, the same object if none was, and what is wrong in spite of that."""
        self._left = _MOST
        fitted, wrong = self._fit(arguments, self._root, "", 0)
        return fitted, "; ".join([*dict.fromkeys(wrong)][:_MISTAKES])

    def _fit(self, value: Any, schema: Any, path: str, depth: int) -> _Fitted:
        schema = resolved(self._root, schema)
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            return value, []
        if choices := alternatives(schema):
            fitted = [self._fit(value, each, path, depth + 1) for each in choices]
            good = [new for new, faults in fitted if not faults]
            if not good:
                return fitted[0]
            value = next((new for new in good if new is value), good[0])  # as it is if it fits one of them so
        value, wrong = _fit_type(value, schema, path)
        if wrong:
            return value, [wrong]
        if isinstance(value, dict):
            return self._fit_object(value, schema, path, depth)
        if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
            return self._fit_array(value, items, path, depth)
        return value, []

    def _fit_array(self, value: list[Any], items: Mapping[str, Any], path: str, depth: int) -> _Fitted:
        fitted = [self._fit(item, items, f"{path}[{at}]", depth + 1) for at, item in enumerate(value)]
        same = all(new is old for (new, _), old in zip(fitted, value, strict=True))
        return (value if same else [new for new, _ in fitted]), [fault for _, faults in fitted for fault in faults]

    def _fit_object(self, value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int) -> _Fitted:
        properties, more, required = (schema.get(key) for key in ("properties", "additionalProperties", "required"))
        known = properties if isinstance(properties, Mapping) else {}
        inside = f' in "{path}"' if path else ""
        wrong: list[str] = []
        if missing := [name for name in required if name not in value] if isinstance(required, list) else []:
            wrong.append(f"{_names(missing)} missing{inside}")
        unknown = [name for name in value if name not in known]
        if more is False and unknown and "patternProperties" not in schema:
            wrong.append(f"{_names(unknown)} not known{inside}")
        changed: dict[str, Any] = {}
        for name, item in value.items():
            new, faults = self._fit(item, known.get(name, more), f"{path}.{name}" if path else name, depth + 1)
            wrong += faults
            if new is not item:
                changed[name] = new
        return ({**value, **changed} if changed else value), wrong


def resolved(root: Any, schema: Any) -> Mapping[str, Any]:
    """The schema that a reference within `root` means, with what stands beside it; an empty one for what can't be followed."""
    for _ in range(_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str):
            break
        found: Any = root if reference.startswith("#") else None
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        siblings = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**found, **siblings} if isinstance(found, Mapping) else siblings
    return schema if isinstance(schema, Mapping) else {}


def alternatives(schema: Mapping[str, Any]) -> list[Any]:
    """Schemas of which a value has to fit one; of `allOf` nearly always a single one, around a reference."""
    return next((schema[key] for key in ALTERNATIVES if isinstance(schema.get(key), list)), [])


def _fit_type(value: Any, schema: Mapping[str, Any], path: str) -> tuple[Any, str]:
    """The value in a type that the schema names, and what is wrong with it."""
    named = schema.get("type")
    kinds = [
        kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str) and kind in _TYPES
    ]
    if kinds and path and not any(_is(value, kind) for kind in kinds):
        mended = _mended(value, kinds)
        if mended is None:
            return value, f'"{path}" must be {" or ".join(kinds)}, not {_short(value)}'
        value = mended[0]
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(options, list) and value not in options:
        return value, f'"{path}" must be one of {", ".join(map(_short, options))}'
    return value, ""


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    integral = kind == "integer" and isinstance(value, float) and value.is_integer()
    return integral or isinstance(value, _TYPES[kind])


def _mended(value: Any, kinds: Sequence[str]) -> tuple[Any] | None:
    """The value that was meant; None if that is not known."""
    if isinstance(value, str):
        return next((found for kind in kinds if (found := _from_text(value.strip(), kind))), None)
    if isinstance(value, int | float) and not isinstance(value, bool) and "string" in kinds:
        return (json_text(value),)
    return ([value],) if "array" in kinds and value is not None else None


def _from_text(text: str, kind: str) -> tuple[Any] | None:
    if kind in {"integer", "number"} and _NUMBER.fullmatch(text):
        number = json.loads(text)
        return (number,) if kind == "number" or isinstance(number, int) else None
    if kind == "array" and text[:1] not in {"[", "{"}:
        return ([text],)
    if kind in {"array", "object"} and text[:1] == {"array": "[", "object": "{"}[kind]:
        try:
            return (read_json(text)[0],)
        except Unreadable:
            return None
    words = _WORDS.get(kind, {})
    return (words[text.lower()],) if text.lower() in words else None


def _names(names: Sequence[Any]) -> str:
    return f"{', '.join(map(_short, names))} {'is' if len(names) == 1 else 'are'}"


def _short(value: Any) -> str:
    text = dumps(value).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"

"""Arguments of a call against the schema of its tool: wrong types are mended, and what is wrong in spite of that is put in words.

Checked are types, required and additional parameters, `enum`, `const`, and the alternatives of `anyOf` and `oneOf`. All other keywords
(bounds, formats, patterns) are the tool's own to check, as with models that call tools natively. A client may send anything as a
schema: what is none checks nothing, only references within it are followed, and the work is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.core.jsontext import dumps
from proxy.emulation.repair import Unreadable, json_text, read_json

_MOST = 10_000
"""Schemas that are looked at for one call: alternatives of alternatives multiply."""
_DEEPEST = 100
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


class Checker:
    """Checks arguments against a schema, and mends types that were mistaken."""

    def __init__(self, schema: Any) -> None:
        """Take any JSON value as a schema."""
        self._root = schema

    def kinds_of(self, name: str) -> frozenset[str]:
        """The types that the schema of a parameter names; empty if it names none."""
        properties = self._root.get("properties") if isinstance(self._root, Mapping) else None
        return frozenset(self._kinds(properties.get(name)) if isinstance(properties, Mapping) else ())

    def check(self, value: dict[str, Any]) -> tuple[dict[str, Any], bool, str | None]:
        """Arguments with their types mended, whether any was, and what is wrong in spite of that.

        Arguments with nothing to mend are the same object.
        """
        self._left = _MOST
        fitted, wrong = self._fit(value, self._root, "", 0)
        return fitted, fitted is not value, "; ".join([*dict.fromkeys(wrong)][:_MISTAKES]) or None

    def _fit(self, value: Any, schema: Any, path: str, depth: int) -> tuple[Any, list[str]]:
        """The value as the schema wants it, the same object if it fits, and what is wrong."""
        schema = resolved(self._root, schema)
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            return value, []
        where = f'"{path}"' if path else "the arguments"
        kinds = self._kinds(schema)
        if kinds and not any(_is(value, kind) for kind in kinds):
            mended = _mended(value, kinds) if path else None  # arguments are an object, whatever else is wanted
            if mended is None:
                return value, [f"{where} must be {' or '.join(kinds)}, not {_short(value)}"]
            value = mended[0]
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(options, list) and value not in options:
            return value, [f"{where} must be one of {', '.join(map(_short, options))}"]
        wrong: list[str] = []
        for part in _listed(schema, "allOf"):
            value, faults = self._fit(value, part, path, depth + 1)
            wrong += faults
        fitted = [self._fit(value, each, path, depth + 1) for each in _alternatives(schema)]
        good = [new for new, faults in fitted if not faults]
        if good:  # as it is if it fits one of them so
            value = next((new for new in good if new is value), good[0])
        elif fitted:
            wrong += fitted[0][1]
        if isinstance(value, dict):
            value, faults = self._object(value, schema, path, depth)
        elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
            value, faults = self._array(value, schema["items"], path, depth)
        else:
            faults = []
        return value, [*wrong, *faults]

    def _object(
        self, value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int
    ) -> tuple[dict[str, Any], list[str]]:
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        known = properties if isinstance(properties, Mapping) else {}
        inside = f' in "{path}"' if path else ""
        wrong: list[str] = []
        if missing := [name for name in _listed(schema, "required") if name not in value]:
            wrong.append(f"{_names(missing)} missing{inside}")
        unknown = [name for name in value if name not in known]
        if more is False and unknown and "patternProperties" not in schema:
            wrong.append(f"{_names(unknown)} not known{inside}")
        changed: dict[str, Any] = {}
        for name, item in value.items():
            below = f"{path}.{name}" if path else name
            new, faults = self._fit(item, known.get(name, more), below, depth + 1)
            wrong += faults
            if new is not item:
                changed[name] = new
        return ({**value, **changed} if changed else value), wrong

    def _array(self, value: list[Any], items: Any, path: str, depth: int) -> tuple[list[Any], list[str]]:
        fitted = [self._fit(item, items, f"{path}[{at}]", depth + 1) for at, item in enumerate(value)]
        same = all(new is old for (new, _), old in zip(fitted, value, strict=True))
        wrong = [fault for _, faults in fitted for fault in faults]
        return (value if same else [new for new, _ in fitted]), wrong

    def _kinds(self, schema: Any) -> list[str]:
        """The types that a schema names, or those of its alternatives, if each of them names some."""
        schema = resolved(self._root, schema)
        below = [_types(resolved(self._root, each)) for each in _alternatives(schema)]
        kinds = _types(schema) or ([kind for each in below for kind in each] if all(below) else [])
        return list(dict.fromkeys(kinds))


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


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _alternatives(schema: Mapping[str, Any]) -> list[Any]:
    return _listed(schema, "anyOf") or _listed(schema, "oneOf")


def _types(schema: Mapping[str, Any]) -> list[str]:
    named = schema.get("type")
    kinds = named if isinstance(named, list) else [named]
    return [kind for kind in kinds if isinstance(kind, str) and kind in _TYPES]


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

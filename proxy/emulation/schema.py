"""The schema of a tool's parameters: what fits, what fits once its type is mended, and what to say of the rest.

A client may send anything as a schema. One that is invalid, refers to other documents or asks for more work than a call
is worth checks nothing: any object is accepted then. Regular expressions are never run, because they may run for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from proxy.emulation.repair import Unreadable, json_text, read_json
from proxy.wire.jsontext import dumps

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

_REFERENCES = 10_000
"""References followed for one call: they can multiply like rabbits."""
_NESTED = 100
"""References followed inside one another. At the end of Python's stack the registry, which is not written in Python, would
end the request with a panic instead of an error."""
_UNIQUE = 1_000
"""Items that are compared with each other."""
_MISTAKES = 20
_ROUNDS = 3
"""Mending one value may bring another to light: text that holds an object that holds text."""
_DESCRIBED = 3
_SHOWN = 60
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})(?:\.\d{1,20})?")
_WORDS: dict[str, dict[str, Any]] = {
    "boolean": {"true": True, "false": False},
    "null": {"null": None, "none": None},
}
_UNCHECKED = ("pattern", "patternProperties", "unevaluatedProperties")
_REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")
_Keyword: TypeAlias = "Callable[..., Iterator[ValidationError] | None]"
_Guard: TypeAlias = Callable[[Any, Any], bool]
"""Whether a keyword is to be checked, given the instance and the schema that it stands in."""
_GUARDS: dict[str, _Guard] = {
    "additionalProperties": lambda _, schema: "patternProperties" not in schema,
    "uniqueItems": lambda instance, _: not isinstance(instance, list) or len(instance) <= _UNIQUE,
}


class _TooMuch(Exception):
    """More work than a call is worth."""


def prepare() -> None:
    """Load what checking takes, so that the first call does not wait for it."""
    import jsonschema.validators  # noqa: F401, PLC0415 - see `_build`


class Checker:
    """Checks arguments against a schema, and mends types that were mistaken."""

    def __init__(self, schema: Any) -> None:
        """Take any JSON value as a schema; nothing is looked at before the first call."""
        self._schema = schema
        self._validator: Validator | None = None
        self._built = False
        self._references = self._nested = 0

    def kinds_of(self, name: str) -> frozenset[str]:
        """The types that the schema of a parameter names; empty if it names none."""
        properties = self._schema.get("properties") if isinstance(self._schema, Mapping) else None
        found = properties.get(name) if isinstance(properties, Mapping) else None
        if not isinstance(found, Mapping):
            return frozenset()
        choices = found.get("anyOf") or found.get("oneOf")
        schemas = [found, *choices] if isinstance(choices, list) else [found]
        return frozenset(
            kind for schema in schemas if isinstance(schema, Mapping) for kind in _kinds(schema.get("type"))
        )

    def check(self, value: dict[str, Any]) -> tuple[dict[str, Any], bool, str | None]:
        """Arguments with their types mended, whether any was, and what is wrong in spite of that.

        Arguments with nothing to mend are the same object.
        """
        original, mistakes = value, self._mistakes(value)
        for _ in range(_ROUNDS):
            mended = [(mistake, new) for mistake in mistakes if (new := _mended(mistake))]
            if not mended:
                break
            for mistake, (new,) in mended:
                value = _replaced(value, list(mistake.absolute_path), new)
            mistakes = self._mistakes(value)
        wrong = list(dict.fromkeys(map(_described, mistakes)))
        return value, value is not original, "; ".join(wrong[:_DESCRIBED]) or None

    def _mistakes(self, value: dict[str, Any]) -> list[ValidationError]:
        self._references = self._nested = 0
        try:
            if not self._built:
                self._built = True
                self._validator = self._build()
            validator = self._validator
            return [] if validator is None else list(islice(validator.iter_errors(value), _MISTAKES))
        except Exception:  # noqa: BLE001 - a schema may be anything, and fail in any way: then it checks nothing
            return []

    def _build(self) -> Validator | None:
        if not isinstance(self._schema, Mapping):
            return None
        # Only those need these whose models call tools.
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - 35 ms and 3 MB
        from jsonschema.validators import extend, validator_for  # noqa: PLC0415 - as above
        from referencing import Registry  # noqa: PLC0415 - as above

        base = validator_for(self._schema, default=Draft202012Validator)
        base.check_schema(dict(self._schema))
        keywords: dict[str, Any] = dict.fromkeys(_UNCHECKED)
        for name, keyword in base.VALIDATORS.items():
            if name in _REFERRING:
                keywords[name] = partial(self._followed, keyword)
            elif name in _GUARDS:
                keywords[name] = partial(_guarded, keyword, _GUARDS[name])
        # This registry fetches nothing: a reference to another document can't be resolved.
        made: Validator = extend(base, keywords)(self._schema, registry=Registry())  # type: ignore[no-untyped-call]
        return made

    def _followed(self, keyword: _Keyword, *checked: Any) -> Iterator[ValidationError]:
        """A reference, unless there were too many."""
        self._references += 1
        self._nested += 1
        try:
            if self._references > _REFERENCES or self._nested > _NESTED:
                raise _TooMuch
            yield from keyword(*checked) or ()
        finally:
            self._nested -= 1


def _guarded(
    keyword: _Keyword, allowed: _Guard, validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """A keyword that is checked only where that is allowed."""
    if allowed(instance, schema):
        yield from keyword(validator, value, instance, schema) or ()


def _kinds(named: Any) -> list[str]:
    return [kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)]


def _wanted(mistake: ValidationError) -> list[str]:
    """The types that would do where a mistake is: its own, or those of the schemas of which none fits."""
    here = [mistake, *(m for m in mistake.context or () if not m.relative_path)]
    return [kind for m in here if m.validator == "type" for kind in _kinds(m.validator_value)]


def _mended(mistake: ValidationError) -> tuple[Any] | None:
    """The value that was meant; None if that is not known."""
    value, kinds = mistake.instance, _wanted(mistake)
    if isinstance(value, str):
        return next((found for kind in kinds if (found := _from_text(value.strip(), kind))), None)
    if isinstance(value, int | float) and not isinstance(value, bool) and "string" in kinds:
        return (json_text(value),)
    if "array" in kinds and not isinstance(value, list | None):
        return ([value],)
    return None


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


def _replaced(value: Any, path: Sequence[str | int], new: Any) -> Any:
    """The value with another one in a place inside of it."""
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = _replaced(value[path[0]], path[1:], new)
    return changed


def _described(mistake: ValidationError) -> str:
    """What is wrong, for the model."""
    instance: Any = mistake.instance
    wished: Any = mistake.validator_value
    where = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in mistake.absolute_path)
    where = f'"{where.removeprefix(".")}"' if where else "the arguments"
    if mistake.validator == "required":
        missing = [name for name in wished if name not in instance]
        inside = "" if where == "the arguments" else f" in {where}"
        names = ", ".join(f'"{name}"' for name in missing)
        return f"{names} {'is' if len(missing) == 1 else 'are'} missing{inside}"
    if wanted := _wanted(mistake):
        return f"{where} must be {' or '.join(dict.fromkeys(wanted))}, not {_short(instance)}"
    if mistake.validator == "enum":
        return f"{where} must be one of {', '.join(map(_short, wished))}"
    if mistake.validator == "additionalProperties":
        return f"{where}: {mistake.message[:200]}"
    return f"{where} must keep to {mistake.validator} {_short(wished)}"


def _short(value: Any) -> str:
    text = dumps(value).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"

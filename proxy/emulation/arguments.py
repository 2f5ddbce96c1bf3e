"""The arguments of a written call: parsed, mended where it is clear what was meant, and checked by the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from proxy.emulation.schema import Checker
from proxy.emulation.tolerant import CUT, DEEPEST, TOO_DEEP, WRONG_ARGUMENTS, Unreadable, parse
from proxy.wire.jsontext import dumps


@dataclass(frozen=True, slots=True)
class Arguments:
    """JSON text of an object that fits the schema: as it was written if nothing was repaired."""

    text: str
    repairs: tuple[str, ...] = ()


def read_arguments(text: str, checker: Checker) -> Arguments:
    """Arguments from JSON, from a string that holds JSON, or from nothing.

    Raises:
        Unreadable: says what is wrong in words for the model, or `cut`; it may quote the arguments.
    """
    text = text.strip()
    value, repairs = _parsed(text)
    if isinstance(value, str):
        # The form of OpenAI's API: the object as a string.
        text = value.strip()
        value, more = _parsed(text)
        repairs = (*repairs, *more)
    if value is None:
        text, value = "{}", {}
    if not isinstance(value, dict):
        raise Unreadable("the arguments must be one JSON object", WRONG_ARGUMENTS)
    return _checked(value, checker, repairs, text)


def read_parameters(written: Iterable[tuple[str, str]], checker: Checker) -> Arguments:
    """Arguments from names and bare texts, which the schema tells how to read (Qwen3-Coder's own parser does so).

    Raises:
        Unreadable: says what is wrong in words for the model.
    """
    value = {}
    for name, text in written:
        plain = text.removeprefix("\n").removesuffix("\n")
        value[name] = _typed(plain, checker.kinds_of(name))
    return _checked(value, checker, (), None)


def _typed(text: str, kinds: frozenset[str]) -> Any:
    if not kinds or "string" in kinds:
        return text
    try:
        return parse(text.strip())[0]
    except Unreadable:
        return text


def _checked(
    value: dict[str, Any], checker: Checker, repairs: tuple[str, ...], text: str | None
) -> Arguments:
    checked, more, wrong = checker.check(value)
    if wrong is not None:
        raise Unreadable(wrong, WRONG_ARGUMENTS)
    if text is None or repairs or more:
        text = dumps(checked).decode()
    return Arguments(text, tuple(dict.fromkeys((*repairs, *more))))


def _parsed(text: str) -> tuple[Any, tuple[str, ...]]:
    """The strict parser first: where it agrees, the text can be passed on as it is."""
    if not text:
        return None, ()
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise Unreadable(TOO_DEEP) from None
    except ValueError:
        return parse(text)
    if text.count("{") + text.count("[") > DEEPEST and _deeper_than(value, DEEPEST):
        raise Unreadable(TOO_DEEP)
    return value, ()


def _refuse(constant: str) -> Any:
    """NaN and Infinity are no JSON: clients' parsers refuse them."""
    raise ValueError(constant)


def _deeper_than(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_deeper_than(each, depth - 1) for each in inner)


__all__ = ["CUT", "Arguments", "Unreadable", "read_arguments", "read_parameters"]

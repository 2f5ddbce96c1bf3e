"""JSON in and out: with orjson, and where that refuses, with the standard library's tolerant parser.

orjson refuses lone surrogates (half of an emoji, which backends and models produce by cutting strings), NaN, and
numbers beyond a double. A stream that ended at one of these would break a conversation, so they are accepted from
backends, but not from clients.

Every value that is read can safely be computed with, written and traversed: a number outside the range of a double is
read as null (RFC 8259, section 6, lets a reader set the range), and nesting is limited.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeGuard

import orjson

JsonObject: TypeAlias = dict[str, Any]

_TOO_DEEP = "nested too deeply"
_FLAT = 500
"""Length in bytes up to which JSON cannot be nested more deeply than the 254 levels that orjson writes (3.11)."""
_NESTED = 250
_DIGITS = 19
"""Number of digits from which an integer may not fit into 64 bits."""
_SURROGATES = (b"\\ud", b"\\uD", b"\xed")
"""Beginnings of half a surrogate pair in JSON. Some Korean letters and whole pairs begin alike, so a hit proves nothing."""


class BadText(ValueError):
    """JSON with a string that is not valid text: it has bytes that are not UTF-8, or half of a surrogate pair."""


def loads(data: bytes | str, *, strict: bool = False) -> Any:
    """Parse JSON; bytes are UTF-8 (RFC 8259, section 8.1), with or without a byte order mark.

    Integers of more than 64 bits become floats; NaN and numbers beyond a float become None.

    Raises:
        ValueError: not JSON (also for bytes that are not UTF-8, and more than about 250 levels); `strict`: or half of a pair.
    """
    try:
        value = orjson.loads(data)  # refuses invalid text by itself
    except orjson.JSONDecodeError:
        text = data if isinstance(data, str) else data.decode("utf-8-sig", "surrogatepass")
        value = _tolerant(text)
        if strict and isinstance(data, bytes) and any(mark in data for mark in _SURROGATES):
            orjson.dumps(value)
    if len(data) > _FLAT:
        _check_depth(value, data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    return value


def loads_or_none(data: bytes | str) -> Any:
    """Parse JSON; None for anything else."""
    try:
        return loads(data)
    except ValueError:
        return None


def loads_object(data: bytes | str) -> JsonObject | None:
    """Parse a JSON object; None for anything else."""
    value = loads_or_none(data)
    return value if isinstance(value, dict) else None


def same_json(one: str, other: str) -> bool:
    """Compare two texts as JSON: white space outside of strings does not count."""
    return one == other or ((value := loads_or_none(one)) is not None and value == loads_or_none(other))


def dig(value: Any, *path: str) -> Any:
    """Return the value at the end of `path` through nested objects of any JSON, or None."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def are_objects(value: Any) -> TypeGuard[list[JsonObject]]:
    """Return whether a value is a list of nothing but objects."""
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def omit(value: Mapping[str, Any], *names: str) -> JsonObject:
    """Return an object without the fields of these names."""
    return {name: each for name, each in value.items() if name not in names}


def loads_text(data: bytes) -> Any:
    """Parse JSON from a client. Every string has to be valid text, since it goes to logs, stores and backends.

    Raises:
        BadText: a string or a key in it is not valid text.
        ValueError: not JSON, or nested too deeply.
    """
    try:
        return loads(data, strict=True)
    except (UnicodeDecodeError, orjson.JSONEncodeError):
        raise BadText(
            "it holds text that is not Unicode text: half of a pair, as \\ud83d, or bytes that are not UTF-8"
        ) from None


def _tolerant(text: str) -> Any:
    text = text.strip(" \t\r\n")  # json skips white space a hundred times more slowly
    try:
        return json.loads(text, parse_int=_as_integer, parse_float=_as_float, parse_constant=_as_float)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


# orjson cannot write longer integers, and `int` itself refuses more than 4,300 digits.
def _as_integer(digits: str) -> int | float | None:
    return int(digits) if len(digits) < _DIGITS else _as_float(digits)


def _as_float(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _check_depth(value: Any, data: bytes) -> None:
    """Refuse JSON that is nested too deeply to be traversed.

    Raises:
        ValueError: nested too deeply.
    """
    if data.count(b"[") + data.count(b"{") > _NESTED:
        try:
            orjson.dumps(value)  # the fastest way to find out
        except orjson.JSONEncodeError as error:
            if "surrogates" not in str(error):
                raise ValueError(_TOO_DEEP) from None


def dumps(value: Any) -> bytes:
    """Serialise compactly as UTF-8; text that UTF-8 cannot hold is escaped.

    Raises:
        ValueError: nested too deeply (up to 900 levels are written).
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        try:
            return json.dumps(value, separators=(",", ":")).encode()
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None


_SLICE = 256 * 1024


def may_hold_more(data: bytes, values: int) -> bool:
    """Return whether JSON may hold more than this number of values, by a cheap count that includes marks in strings."""
    return _values(data, values) > values


def holds_more(data: bytes, values: int) -> bool:
    """Return whether JSON holds more than this number of values, without parsing it; in steps of some milliseconds.

    A list or an object counts as at least two, because it costs more than other values.
    """
    if not may_hold_more(data, values):
        return False
    count, at, inside = 0, 0, False
    while at < len(data):
        end = at + _SLICE
        while data[end - 1 : end] == b"\\":
            end += 1  # a backslash and the character that it escapes stay in one slice
        pieces = data[at:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[inside::2])
        count += _values(outside, values)
        if count > values:
            return True
        inside ^= len(pieces) % 2 == 0
        at = end
    return False


def _values(data: bytes, enough: int) -> int:
    """Return an upper bound on the number of values, since marks in strings count too. Stops soon after `enough`.

    `bytes.replace` with a limit is an order of magnitude faster than `bytes.count` where marks are rare.
    """
    size, most = len(data), enough + 1
    without = (len(data.replace(mark, b"", most)) for mark in (b",", b"{", b"["))
    values, objects, lists = (size - rest for rest in without)
    return values + 2 * (objects + lists)


HEAVY = 64 * 1024
"""Weight above which a value is processed in a thread, not on the event loop: some milliseconds, 50 at the very worst."""
_TEXT = {str}
_EACH = 64
"""Weight of a value, in addition to its characters."""


def is_heavy(value: Any, limit: int = HEAVY) -> bool:
    """Return whether a JSON value weighs more than `limit`: 1 per character, 64 per value in a list, tuple or object."""
    remaining, stack = limit, [value]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is str:
            remaining -= len(value)
        elif kind is dict or kind is list or kind is tuple:
            remaining -= _EACH * len(value)
            if remaining < 0:
                return True
            parts = value.values() if kind is dict else value
            if {*map(type, parts)} == _TEXT:  # as in most messages
                remaining -= sum(map(len, parts))
            else:
                stack.extend(parts)
        if remaining < 0:
            return True
    return False

"""JSON in and out: the fast parser first, the tolerant one of the standard library where it refuses.

orjson refuses lone surrogates (half of an emoji, which clients produce by cutting strings) and NaN; a proxy that
answered 400 to those would break conversations that the backend accepts.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

_TOO_DEEP = "nested too deeply"


def loads(data: bytes | str) -> Any:
    """Parse JSON; bytes are UTF-8, as RFC 8259, section 8.1 has it, with or without a byte order mark.

    Integers of more than 64 bits come out as floats.

    Raises:
        ValueError: not JSON (also for bytes that are not UTF-8, and nesting too deep to parse).
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data if isinstance(data, str) else data.decode("utf-8-sig", "surrogatepass")
        try:
            return json.loads(text)
        except RecursionError:
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
            return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None

"""JSON that no schema foresees, in each field of requests and of what backends say."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from proxy.core.jsontext import dumps, loads

_MARK = "@hostile@"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*path, key)
            yield from places(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], text: str) -> bytes:
    made = deepcopy(value)
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = _MARK
    return dumps(made).replace(dumps(_MARK), text.encode())


_FIELDS = loads((Path(__file__).parent / "hostile.json").read_bytes())
VALUES: dict[str, str] = _FIELDS["values"]
"""JSON texts by what they are; some of them no parser takes."""
REQUESTS: dict[str, dict[str, Any]] = _FIELDS["requests"]
"""A request in each dialect, with about every field that is known."""
CHUNKS: list[dict[str, Any]] = _FIELDS["chunks"]
"""A stream with about every field that backends send."""
WHOLE: dict[str, Any] = _FIELDS["whole"]
ERROR: dict[str, Any] = _FIELDS["error"]

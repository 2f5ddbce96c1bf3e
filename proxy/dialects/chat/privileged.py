"""What a backend must not say to a client: keys that Open WebUI 0.12 obeys, one of which runs code in the page.

They are Spillway's to send. Open WebUI reads a stream line by line, so a line that is privileged when it is
read alone counts, too.
"""

from __future__ import annotations

from typing import Any

from proxy.wire import sse
from proxy.wire.jsontext import loads

_KEYS = ("event", "selected_model_id")
_TYPE = "response."
_MEANINGFUL = {"choices", "error", "usage"}


def unprivileged(chunk: dict[str, Any]) -> dict[str, Any]:
    """The chunk without what is privileged; the same object if nothing is, empty if nothing else is in it."""
    if not is_privileged(chunk):
        return chunk
    clean = {key: value for key, value in chunk.items() if key not in _KEYS}
    if str(clean.get("type", "")).startswith(_TYPE):
        del clean["type"]
    return clean if _MEANINGFUL & clean.keys() else {}


def is_privileged(chunk: dict[str, Any]) -> bool:
    """Whether anything in it is privileged."""
    return (
        _KEYS[0] in chunk or _KEYS[1] in chunk or ("type" in chunk and str(chunk["type"]).startswith(_TYPE))
    )


def smuggles(frame: bytes) -> bool:
    """Whether one line of a frame whose data are several lines is privileged by itself."""
    if frame.count(b"data:") < 2:
        return False
    lines = sse.data_lines(frame)
    return len(lines) > 1 and any(map(_privileged_line, lines))


def _privileged_line(line: bytes) -> bool:
    try:
        value = loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and is_privileged(value)

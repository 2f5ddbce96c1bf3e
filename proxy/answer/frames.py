"""Small questions about frames of a stream of chunks."""

from __future__ import annotations

from typing import Any

from proxy.answer.privileged import is_privileged, unprivileged
from proxy.wire import sse
from proxy.wire.jsontext import loads

_FRAME_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


def object_of(data: bytes | None) -> dict[str, Any] | None:
    """The JSON object in the data of a frame; None for anything else."""
    try:
        value = None if data is None else loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_done(data: bytes | None) -> bool:
    """Whether it is the mark that ends a stream."""
    return data is not None and data.strip() == b"[DONE]"


def is_torn(frame: bytes) -> bool:
    """Whether the last frame of a stream was cut off in the middle of its JSON."""
    data = sse.data_of(frame)
    if data is None or frame.endswith(_FRAME_ENDS) or is_done(data):
        return False
    try:
        loads(data)
    except ValueError:
        return True
    return False


def is_open(out: list[bytes]) -> bool:
    """Whether what was sent last still lacks the blank line that ends a frame."""
    last = next((frame for frame in reversed(out) if frame.strip(b"\r\n")), _FRAME_ENDS[0])
    return not last.endswith(_FRAME_ENDS)


def clean(frame: bytes, chunk: dict[str, Any]) -> bytes:
    """The frame without what is privileged; as it came if nothing is."""
    rest = unprivileged(chunk)
    return frame if rest is chunk else encoded(rest)


def encoded(chunk: dict[str, Any]) -> bytes:
    """A frame; nothing for a chunk that is empty, or nested too deeply to be written."""
    try:
        return sse.encode(chunk) if chunk else b""
    except ValueError:
        return b""


def with_timings(finish: bytes, usage: bytes) -> bytes:
    """A finish frame with the `timings` that the usage frame after it took over.

    llama-server (b11549) puts them on the last chunk, which is another one when usage is asked for. They are moved
    as bytes, so that the client gets the very frame that it would have got unasked.
    """
    at = usage.find(b',"timings":')
    if at < 0 or b'"timings":' in finish:
        return finish
    end = finish.rstrip(b"\r\n")
    moved = end[:-1] + usage[at:].rstrip(b"\r\n") + finish[len(end) :]
    value = object_of(sse.data_of(moved))
    return finish if value is None or is_privileged(value) else moved

"""Server-sent events: cutting a byte stream into whole frames, and making frames.

WHATWG HTML, "Server-sent events": lines end with CRLF, LF or CR and nothing else. U+2028 and U+0085 inside
JSON are ordinary characters, so bytes are searched, never text.

Some servers send lines of JSON (NDJSON) instead of events, or among them. Such a line cannot be a field of an event, so it
is a frame of its own, and all of it is data.
"""

import re
from typing import Any

from proxy.core.jsontext import dumps

_FRAME_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\r\n", b"\n\r")
_EOL = re.compile(rb"\r\n|\n|\r")
# A blank line ends a frame. A CR at the very end may be half of a CRLF, so it is left for the next read.
_JSON_LINE = rb"^\{[^\r\n]*\}[ \t]*+(?:\r?\n|\Z)"
_FRAME_END = re.compile(rb"(?:\r\n|\n|\r(?=[^\n])){2}|" + _JSON_LINE.replace(rb"|\Z", b""), re.MULTILINE)
_FRAME = re.compile(rb"[\r\n]+|" + _JSON_LINE + rb"|(?:[^\r\n]++(?:\r\n|\n|\r|\Z))++(?:\r\n|\n|\r)?", re.MULTILINE)
"""Piece of a block: blank lines, a line of JSON, or an event's lines with the blank line that ends them."""


# Read as an empty answer, an overflow at such a server was neither recognised nor remedied.
ERROR_FIELD = b"error: {"
"""Beginning of an error in the stream of older llama.cpp servers: JSON in a field of its own, without `data`."""
LARGEST_FRAME = 32 * 2**20
"""Bytes of the largest frame that is held in memory: an image in an answer takes several MiB."""


class FrameTooLong(ValueError):
    """The stream has a frame that exceeds the limit; the text is for the client."""


class FrameSplitter:
    """Holds back the unfinished frame at the end of the bytes read; linear however small the chunks are."""

    def __init__(self, limit: int = LARGEST_FRAME) -> None:
        """`limit`: bytes of the largest unfinished frame."""
        self.held = bytearray()
        """Bytes held back; read-only for others. An attribute, not a method, because it is read for every chunk."""
        self._limit = limit

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of all frames that are now complete; may be empty.

        Raises:
            FrameTooLong: the unfinished frame exceeds the limit.
        """
        rest = self.held
        if not rest and data.endswith(b"\n\n"):
            return data
        # A blank line that this read completed begins at most three bytes before it (CR LF CR | LF).
        start = max(0, len(rest) - 3)
        if b"\n" in data:  # the line that it ends may be JSON by itself
            start = min(start, rest.rfind(b"\n") + 1)
        rest += data
        end = _last_end(rest, start)
        if end == 0:
            if len(rest) > self._limit:
                raise FrameTooLong(f"an event of more than {self._limit} bytes")
            return b""
        frames = bytes(rest[:end])
        del rest[:end]
        return frames

    def flush(self) -> bytes:
        """Return the remaining bytes when the stream has ended."""
        rest = bytes(self.held)
        self.held.clear()
        return rest


def _last_end(data: bytearray, start: int) -> int:
    """Find the end of the last complete frame, if that is after `start`; else return 0."""
    if data.find(b"\r", start) < 0 and not data.startswith(b"{", start) and data.find(b"\n{", start) < 0:
        at = data.rfind(b"\n\n", start)
        return at + 2 if at >= 0 else 0
    end = 0
    for match in _FRAME_END.finditer(data, start):
        end = match.end()
    return end


def frames(block: bytes) -> list[bytes]:
    """Split a block of complete frames; each keeps its bytes, including the blank line that ends it.

    Further blank lines mean nothing and become pieces of their own, so that the beginning of a frame does not depend on
    how the stream was cut into reads.
    """
    if b"\r" in block or b"\n\n\n" in block or block.startswith((b"\n", b"{")) or b"\n{" in block:
        return _FRAME.findall(block)
    *parts, last = block.split(b"\n\n")
    return [part + b"\n\n" for part in parts] + ([last] if last else [])


def data_of(frame: bytes) -> bytes | None:
    """Return the data of one frame, its lines joined by LF; None if it has none (a comment, a bare `event:`)."""
    if frame.startswith(b"data: ") and frame.endswith(b"\n\n"):
        # JSON has no line ends inside, so nearly every frame is one line.
        data = frame[6:-2]
        if b"\n" not in data and b"\r" not in data:
            return data
    lines = [line[5:].removeprefix(b" ") for line in _EOL.split(frame) if line.startswith(b"data:")]
    if not lines and frame.startswith((b"{", ERROR_FIELD)):
        return frame[frame.find(b"{") :]
    return b"\n".join(lines) if lines else None


def is_closed(frame: bytes) -> bool:
    """Return whether a blank line ends the frame."""
    return frame.endswith(_FRAME_ENDS)


def is_open(out: list[bytes]) -> bool:
    """Return whether the output so far lacks the blank line that ends a frame."""
    last = next((frame for frame in reversed(out) if frame.strip(b"\r\n")), _FRAME_ENDS[0])
    return not is_closed(last)


def encode(value: Any) -> bytes:
    """Make a frame that carries a JSON value."""
    return b"data: " + dumps(value) + b"\n\n"


def comment(text: str = "") -> bytes:
    """Make a comment, a frame that every client ignores."""
    return b": " + text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n\n"

"""Reading the text of a frame without parsing it.

Backends send frame after frame that differ in nothing but a word. Once one of them was parsed, the bytes
before and after its text are known; a frame that has the same ones around plain text (no quote, no escape, no
control character) is the same JSON with that text in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


class Template:
    """The last parsed frame, as a form to be filled in: what comes from the backend, what goes to the client."""

    __slots__ = ("_after", "_before", "known", "thought", "write")

    def __init__(self) -> None:
        self.known = False
        """Whether there is a form to read by; whoever sends anything else to the client clears it."""
        self.thought = False
        """Whether the text is reasoning."""
        self.write: Callable[[str], bytes] | None = None
        """Makes of a text what goes to the client; None: frames go out as they come."""
        self._before = self._after = b""

    def learn(self, frame: bytes, sent: bytes, name: str, text: str) -> None:
        """Take a parsed frame that says only `text`, in the field `name`, as the form.

        `sent` is what was sent to the client for it.
        """
        literal = text.encode("utf-8", "replace")
        form, to = _around(frame, name, literal), _around(sent, name, literal)
        if form is not None and to is not None and _plain(text):
            self._before, self._after = form
            self.write = None if sent == frame else partial(_between, *to)
            self.known, self.thought = True, name != "content"

    def read(self, frame: bytes) -> str | None:
        """The text of a frame that fits; None if it has to be parsed."""
        before, after = self._before, self._after
        if not self.known or len(frame) <= len(before) + len(after):
            return None
        if not (frame.startswith(before) and frame.endswith(after)):
            return None
        try:
            text = frame[len(before) : -len(after)].decode()
        except UnicodeDecodeError:
            return None
        return text if _plain(text) else None


def _between(before: bytes, after: bytes, text: str) -> bytes:
    return before + text.encode() + after


def _plain(text: str) -> bool:
    return text.isprintable() and '"' not in text and "\\" not in text


def _around(frame: bytes, name: str, literal: bytes) -> tuple[bytes, bytes] | None:
    """Return what stands before and after a value in a frame, if it stands there as it is and the key stands there once."""
    key = b'"%b"' % name.encode()
    if frame.count(key) != 1:
        return None
    colon = frame.index(key) + len(key)
    start = frame.find(b'"', colon) + 1
    end = start + len(literal)
    if frame[colon : start - 1].strip() != b":" or frame[start : end + 1] != literal + b'"':
        return None
    return frame[:start], frame[end:]

"""Reading the text of a chunk without parsing it.

Backends send frame after frame that differ in nothing but a word. Once one of them was parsed, the bytes
before and after its text are known; a frame that has the same ones around plain text (no quote, no escape, no
control character) is the same JSON with that text in it.
"""

from __future__ import annotations


class Template:
    """The last parsed frame, as a form to be filled in: what comes from the backend, what goes to the client."""

    __slots__ = ("_after", "_before", "_shortest", "_to_after", "_to_before", "name", "verbatim")

    def __init__(self) -> None:
        self.name = ""
        """The field of the delta that holds the text; empty: nothing is known yet."""
        self._before = self._after = self._to_before = self._to_after = b""
        self.verbatim = True
        """Whether frames go out as they come."""
        self._shortest = 0

    def forget(self) -> None:
        """Read nothing until the next `learn`."""
        self.name = ""

    def learn(self, frame: bytes, sent: bytes, name: str, text: str) -> None:
        """Take a parsed frame that says only `text`, and what was sent to the client for it, as the form."""
        literal = text.encode("utf-8", "replace")
        form, to = _around(frame, name, literal), _around(sent, name, literal)
        if form is None or to is None or not _plain(text):
            self.name = ""
            return
        self.name = name
        self._before, self._after = form
        self._to_before, self._to_after = to
        self.verbatim = frame == sent
        self._shortest = len(self._before) + len(self._after)

    def read(self, frame: bytes) -> str | None:
        """The text of a frame that fits; None if it has to be parsed."""
        if (
            not self.name
            or len(frame) <= self._shortest
            or not frame.startswith(self._before)
            or not frame.endswith(self._after)
        ):
            return None
        try:
            text = frame[len(self._before) : -len(self._after)].decode()
        except UnicodeDecodeError:
            return None
        return text if _plain(text) else None

    def read_all(self, block: bytes) -> list[str] | None:
        """The texts of several frames that all fit and go out as they came; None if any has to be looked at."""
        before, after = self._before, self._after
        if not self.name or not self.verbatim or not block.startswith(before) or not block.endswith(after):
            return None
        parts = block[len(before) : -len(after)].split(after + before)
        try:
            joined = b"\n".join(parts).decode()
        except UnicodeDecodeError:
            return None
        texts = joined.split("\n")
        return texts if len(texts) == len(parts) and all(texts) and _plain("".join(texts)) else None

    def fill(self, frame: bytes, text: str) -> bytes:
        """What to send to the client for a frame with this text."""
        return frame if self.verbatim else self._to_before + text.encode() + self._to_after


def _plain(text: str) -> bool:
    return text.isprintable() and '"' not in text and "\\" not in text


def _around(frame: bytes, name: str, literal: bytes) -> tuple[bytes, bytes] | None:
    """What stands before and after a value in a frame, if it stands there as it is and the key stands there once."""
    key = b'"%b"' % name.encode()
    if frame.count(key) != 1:
        return None
    colon = frame.index(key) + len(key)
    start = frame.find(b'"', colon) + 1
    end = start + len(literal)
    if frame[colon : start - 1].strip() != b":" or frame[start : end + 1] != literal + b'"':
        return None
    return frame[:start], frame[end:]

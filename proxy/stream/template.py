"""Reading the text of a frame without parsing it.

Backends send frame after frame that differ in nothing but a word. Once one of them was parsed, the bytes
before and after its text are known; a frame that has the same ones around plain text (no quote, no escape, no
control character) is the same JSON with that text in it. Where the backend counts in every frame, one flat object
of numbers behind the text may differ, too: the one number that matters is read from its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

_LONGEST_COUNT = 16


class Template:
    """The last parsed frame, as a form to be filled in: what comes from the backend, what goes to the client."""

    __slots__ = (
        *("_after", "_at", "_before", "_count", "_end", "_inner", "_shortest"),
        *("counts", "known", "suspects", "thought", "write"),
    )

    def __init__(self) -> None:
        self.known = False
        """Whether there is a form to read by."""
        self.thought = False
        """Whether the text is reasoning."""
        self.write: Callable[[str], bytes] | None = None
        """Makes of a text what goes to the client; None: frames go out as they come."""
        self.counts = False
        """Whether frames tell running counts."""
        self.suspects: re.Pattern[str] | None = None
        """What in a text that is no reasoning wants its frame to be parsed; None: nothing does."""
        self._before = self._after = b""
        self._inner = b""
        """What stands between the text and the counts."""
        self._count = b""
        """The key of the one count that is read; empty: there are none."""
        self._shortest = self._at = self._end = 0

    def forget(self) -> None:
        """Read nothing until the next `learn`."""
        self.known = False

    def learn(self, frame: bytes, sent: bytes, name: str, text: str, tally: tuple[bytes, bytes] | None = None) -> None:
        """Take a parsed frame that says only `text` as the form.

        `sent` is what was sent to the client for it. `name` is the field that holds the text. `tally` are the keys of
        the object of running counts in the frame, and of the completion tokens in it.
        """
        self.known, self._count = False, b""
        if not _plain(text):
            return
        literal = text.encode("utf-8", "replace")
        form, to = _around(frame, name, literal), _around(sent, name, literal)
        if form is None or to is None:
            return
        self._before, self._after = form
        self.thought = name != "content"
        self.write = None if frame == sent else partial(_between, *to)
        self.known = tally is None or self._learn_counts(*tally, to[1])
        self._at, self._end = len(self._before), -len(self._after)
        self._shortest = self._at - self._end
        self.counts = bool(self._count)

    def _learn_counts(self, key: bytes, count: bytes, to_after: bytes) -> bool:
        """Cut the object of counts out of what follows the text; False if it is not there, or goes to the client.

        `to_after` is what follows the text there.
        """
        inner, found, rest = self._after.partition(key + b"{")
        _, closing, after = rest.partition(b"}")
        if not closing or key in rest or (self.write is not None and key in to_after):
            return False
        self._inner, self._count, self._after = inner + found, count, closing + after
        return True

    def read(self, frame: bytes) -> str | None:
        """The text of a frame that fits; None if it has to be parsed."""
        if (
            not self.known
            or len(frame) <= self._shortest
            or not frame.startswith(self._before)
            or not frame.endswith(self._after)
        ):
            return None
        at, end = self._at, self._end
        if self.counts:
            # What stands where the counts belong can't be anything else as long as no brace closes it early.
            stop, end = len(frame) + end, frame.find(b'"', at)
            if not frame.startswith(self._inner, end) or frame.find(b"}", end + len(self._inner)) != stop:
                return None
        try:
            text = frame[at:end].decode()
        except UnicodeDecodeError:
            return None
        if self.suspects is not None and not self.thought and self.suspects.search(text):
            return None
        # The same as `_plain`, without a call: this runs for every chunk.
        return text if text and text.isprintable() and '"' not in text and "\\" not in text else None

    def completion_tokens(self, frame: bytes) -> int:
        """Completion tokens that a frame tells of that was read; 0 where frames tell of none."""
        if not self.counts:
            return 0
        found = frame[frame.rfind(self._inner) :].partition(self._count)[2][:_LONGEST_COUNT]
        number = found.partition(b",")[0].partition(b"}")[0]
        return int(number) if number.isdigit() else 0

    def fill(self, frame: bytes, text: str) -> bytes:
        """Return what to send to the client for a frame with this text."""
        return frame if self.write is None else self.write(text)


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

"""Notices to the user inside the stream: their forms, and how their text is recognised when a client sends it back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from proxy.core.piece import Piece

_COMPACTING = "⚙️ Compacting conversation history…"
_IN_VAIN = "⚠️ Compacting did not help, continuing as it is"
_NO_ROOM = "⚠️ No room is left to go on with this answer, it ends here"
_LOST = "⚠️ The backend does not continue this answer, it ends here"
_COMPACTED = "✅ Context compacted, continuing…"
_OMITTED = "✅ Context compacted, the middle of your message was left out, continuing…"
_EXTRACT = "✅ Context compacted, kept an extract, continuing…"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. `done` closes the one before it; token figures where they are known."""

    done: bool
    before: int | None = None
    after: int | None = None
    failed: bool = False
    ended: bool = False
    """The answer ends here for want of room."""
    lost: bool = False
    """It ends because the backend does not continue it."""
    cut: bool = False
    """The backend was found to have cut the prompt in silence; told beside the answer, never in its text."""
    extract: bool = False
    """What was taken out is told by an extract made by code, because no summary was fit to be used."""
    recalled: int = 0
    """Passages of the covered history that stood in front of the newest message; told beside the answer, too."""
    left_out: int = 0
    """Tokens from the middle of the newest user message that were not sent."""
    left_out_of: int = 0
    """Tokens of all of that message; with them it is told beside the answer, too, else in the line of a compaction."""
    fixed: int = 0
    """Percent of the window that system prompt and tools take, where that is the problem; told beside the answer, too."""
    written: int = 0
    """Tokens of the summary that are written, while it is; told beside the answer, too."""

    @property
    def separate(self) -> bool:
        """True if the notice never appears in the text of an answer, so that no client sends it back."""
        return bool(self.cut or self.recalled or self.written or self.fixed or self.left_out_of)

    @property
    def text(self) -> str:
        """One line of plain text."""
        if self.separate:
            return self._separate_text
        if not self.done:
            return _COMPACTING
        if self.ended:
            return _LOST if self.lost else _NO_ROOM
        if self.failed:
            return _IN_VAIN
        summary = _OMITTED if self.left_out else _EXTRACT if self.extract else _COMPACTED
        if self.before is None or self.after is None:
            return summary
        return f"{summary} ({_short(self.before)} → {_short(self.after)} tokens)"

    @property
    def _separate_text(self) -> str:
        if self.written:
            return f"{_COMPACTING} ({self.written} tokens of its summary written)"
        if self.fixed:
            return (
                f"⚠️ System prompt and tools take {self.fixed} % of the window: little is left for the conversation. "
                "Fewer tools or a larger window help"
            )
        if self.left_out_of:
            return (
                f"⚠️ Your message alone exceeds the window: {_short(self.left_out)} of its {_short(self.left_out_of)} "
                "tokens, in its middle, were left out"
            )
        if self.cut:
            return "⚠️ The backend cut the beginning of this conversation; it is compacted on the next turn"
        return f"🔎 {self.recalled} earlier {'passage' if self.recalled == 1 else 'passages'} recalled"


Form: TypeAlias = Callable[[Notice], Piece]
"""Makes the piece that carries a notice; the client's dialect writes it."""

_SELECTOR = "\ufe0f"
_DONE = (_OMITTED, _EXTRACT, _COMPACTED)
_TEXTS = (*(text.replace(_SELECTOR, "") for text in (_COMPACTING, _IN_VAIN, _NO_ROOM, _LOST)), *_DONE)
_FIGURES = r"(?:\s+\([\d.]+k?\s+→\s+[\d.]+k?\s+tokens\))?"
_SHORTEST = 12
"""Characters of a notice by which half of one is recognised."""


def _pattern() -> re.Pattern[str]:
    """Clients trim the ends of a text, change its white space, and some drop the selector that makes an emoji."""
    bodies = [r"\s+".join(map(re.escape, text.split())) for text in _TEXTS]
    bodies = [f"{body[0]}{_SELECTOR}?{body[1:]}" for body in bodies]
    blank = r"[^\S\r\n]*"
    before = rf"(?:\r?\n(?:{blank}\r?\n)?{blank})?"
    after = rf"(?:{blank}\r?\n){{0,2}}"
    return re.compile(rf"{before}>\s+\*(?:{'|'.join(bodies)}){_FIGURES}\*{after}")


_NOTICE = _pattern()
_REST = re.compile(r"[ (\d.k→tokens)]*\*?")
_MARK = re.compile(r"(?:\r?\n[^\S\r\n]*){0,2}>\s+\*[⚙⚠✅]")


def quoted(notice: Notice) -> str:
    """The notice as it stands in content or reasoning."""
    return f"\n\n> *{notice.text}*\n\n"


def strip_status(text: str) -> str:
    """The text without notices that an earlier answer carried."""
    pieces, at = [], 0
    for start, end in status_spans(text):
        pieces.append(text[at:start])
        at = end
    return "".join((*pieces, text[at:])) if at else text


def status_spans(text: str) -> list[tuple[int, int]]:
    """Find the spans of notices in a text, with the white space around them; the last may be a truncated notice."""
    if ">" not in text or not any(sign in text for sign in "⚙⚠✅"):
        return []
    spans = [found.span() for found in _NOTICE.finditer(text)]
    starts = [found.start() for found in _MARK.finditer(text, spans[-1][1] if spans else 0)]
    if starts and _is_truncated(text[starts[-1] :]):
        spans.append((starts[-1], len(text)))
    return spans


def _is_truncated(tail: str) -> bool:
    """Return whether a text is the beginning of a notice, cut off by the client."""
    tail = " ".join(tail.replace(_SELECTOR, "").split())
    if len(tail) < _SHORTEST:
        return False
    lines = [f"> *{text}*" for text in _TEXTS]
    prefixes = [f"> *{text}" for text in _DONE]
    return any(line.startswith(tail) for line in lines) or any(
        tail.startswith(text) and _REST.fullmatch(tail.removeprefix(text)) is not None for text in prefixes
    )


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"


def comment_form(notice: Notice) -> Piece:
    """Return a comment line of the event stream: every client ignores it, a person with curl sees it."""
    return Piece(comment=notice.text)


def content_form(notice: Notice) -> Piece:
    """Return a quoted line of the answer: shown everywhere, removed again when the client sends it back."""
    return Piece(text=quoted(notice))


def event_form(notice: Notice) -> Piece:
    """Return Open WebUI's own status event on a delta with empty text (Open WebUI 0.12).

    Open WebUI shows it above the answer and never sends it back; other clients see an empty delta.
    """
    return Piece(event={"type": "status", "data": {"description": notice.text, "done": notice.done}})


def reasoning_form(notice: Notice) -> Piece:
    """Return a quoted line of the reasoning, which clients fold."""
    return Piece(thought=quoted(notice))


FORMS: dict[str, tuple[Form, ...]] = {
    "auto": (event_form, comment_form),
    "event": (event_form,),
    "reasoning": (reasoning_form,),
    "content": (content_form,),
    "comment": (comment_form,),
    "off": (),
}
"""Forms by the value of `SPILLWAY_STATUS`."""


def carries_chunks(form: str) -> bool:
    """Return whether notices of this form are chunks of the answer, which need its identity."""
    return any(each is not comment_form for each in FORMS[form])

"""Forms in which a notice reaches the client: a new one is a function and a line in `FORMS`."""

from __future__ import annotations

from proxy.core.piece import Piece
from proxy.stream.status.base import Form, Notice, quoted


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

"""Telling the user what is going on, inside the stream. A new form is one file and one line here."""

from __future__ import annotations

from proxy.status.base import Form, Notice, strip_status
from proxy.status.comment import comment_form
from proxy.status.content import content_form
from proxy.status.event import event_form
from proxy.status.reasoning import reasoning_form

FORMS: dict[str, tuple[Form, ...]] = {
    "auto": (event_form, comment_form),
    "event": (event_form,),
    "reasoning": (reasoning_form,),
    "content": (content_form,),
    "comment": (comment_form,),
    "off": (),
}
"""What each value of `SPILLWAY_STATUS` sends."""


def carries_chunks(form: str) -> bool:
    """Whether notices of this form are chunks of the answer, which need its identity."""
    return any(each is not comment_form for each in FORMS[form])


__all__ = ["FORMS", "Form", "Notice", "carries_chunks", "strip_status"]

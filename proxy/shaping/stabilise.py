"""Strips what has no meaning by specification from a prompt: billing lines at its front, and marks for caches.

All else goes as the client sent it: a clock, a counter or an id in prose has meaning.
"""

from __future__ import annotations

from typing import Any

from proxy.core.history.chain import CACHE_MARK, without_cache_marks
from proxy.core.request import SYSTEM_ROLES, Message, Request

BILLING, MARKS = "billing", "marks"
"""Kinds of what is stripped, as they are counted."""
_BILLING_HEADER = "x-anthropic-billing-header:"
"""First words of Claude Code's (2.1) system prompt. The line holds no instruction and differs from conversation to conversation,
in older versions from request to request (`cc_version`, `cch`): a backend could reuse nothing of its cached prompt behind it."""
_MARK_BYTES = CACHE_MARK.encode()


def stabilised(request: Request, *, takes_marks: bool) -> tuple[Request, list[str]]:
    """Return the request without them, and the kinds that were found; the same object if there were none.

    `takes_marks`: the backend knows cache marks and receives them.
    """
    messages = _without_billing(request.messages)
    fields: dict[str, Any] = {} if messages is None else {"messages": messages}
    found = [] if messages is None else [BILLING]
    if not takes_marks and (request.raw is None or _MARK_BYTES in request.raw):
        marked = {"messages": fields.get("messages", request.messages), "tools": request.body.get("tools")}
        bare = {name: without_cache_marks(value) for name, value in marked.items() if isinstance(value, list)}
        changed = {name: value for name, value in bare.items() if value is not marked[name]}
        fields |= changed
        found += [MARKS] if changed else []
    return (request.changed(**fields) if fields else request), found


def _without_billing(messages: list[Message]) -> list[Message] | None:
    """Return the messages without a billing line at their front; None if there is none."""
    if not messages or messages[0].get("role") not in SYSTEM_ROLES:
        return None
    first = messages[0]
    content: Any = first.get("content")
    if isinstance(content, str) and content.startswith(_BILLING_HEADER):
        content = content.partition("\n")[2].lstrip("\n")
    elif isinstance(content, list) and content and _is_billing(content[0]):
        content = content[1:]
    else:
        return None
    return [{**first, "content": content}, *messages[1:]] if content else messages[1:]


def _is_billing(part: Any) -> bool:
    """Return whether a part of a message holds a billing line and nothing else."""
    text = part.get("text") if isinstance(part, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING_HEADER) and "\n" not in text.strip()

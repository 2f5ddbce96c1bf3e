"""Taking out of a request what is in front of its prompt without being of it: billing lines, and marks for caches.

What else changes there without meaning is kept back where the conversation is known: `proxy.history.stable`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from proxy.history.cachemarks import MARK, all_unmarked
from proxy.history.stable import BILLING, MARKS
from proxy.neutral.request import SYSTEM_ROLES, Message, Request

_BILLING = "x-anthropic-billing-header:"
"""How the first line of Claude Code's (2.1) system prompt begins. It is no instruction, and another one in every conversation,
in older ones in every request (`cc_version`, `cch`): in front of all else it would keep backends from using any of their cached prompt."""
_WORD = MARK.encode()


def stabilised(request: Request, kinds: Collection[str], *, takes_marks: bool) -> tuple[Request, list[str]]:
    """The request without them, and of which kinds there were any; the same object if there were none.

    `takes_marks`: the backend knows what marks mean, and is told them.
    """
    messages = _unbilled(request.messages) if BILLING in kinds else None
    unmarks = MARKS in kinds and not takes_marks and (request.raw is None or _WORD in request.raw)
    if messages is None and not unmarks:
        return request, []
    fields: dict[str, Any] = {}
    found = []
    if messages is not None:
        fields["messages"] = messages
        found.append(BILLING)
    if unmarks:
        marked = {"messages": fields.get("messages", request.messages), "tools": request.body.get("tools")}
        bare = {name: all_unmarked(value) for name, value in marked.items() if isinstance(value, list)}
        changed = {name: value for name, value in bare.items() if value is not marked[name]}
        if changed:
            fields |= changed
            found.append(MARKS)
    return (request.changed(**fields) if fields else request), found


def _unbilled(messages: list[Message]) -> list[Message] | None:
    """The messages without the line at their front; None if there is none."""
    if not messages or messages[0].get("role") not in SYSTEM_ROLES:
        return None
    first = messages[0]
    content = first.get("content")
    if isinstance(content, str) and content.startswith(_BILLING):
        rest = content.partition("\n")[2].lstrip("\n")
        return [{**first, "content": rest}, *messages[1:]] if rest else messages[1:]
    if isinstance(content, list) and content and _billed(content[0]):
        kept = content[1:]
        return [{**first, "content": kept}, *messages[1:]] if kept else messages[1:]
    return None


def _billed(part: Any) -> bool:
    """Whether it is a part that says nothing else."""
    text = part.get("text") if isinstance(part, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING) and "\n" not in text.strip()

"""By what clients name their conversations: for what is told of them, never for what is kept of them."""

from __future__ import annotations

from hashlib import blake2b

from proxy.exchange import Exchange
from proxy.neutral.request import Request

_NAMED = (
    b"x-claude-code-session-id",  # Claude Code 2.1
    b"thread-id",  # Codex 0.169; its session may hold several
    b"session-id",
    b"session_id",  # Codex before 0.100
    b"x-openwebui-chat-id",  # Open WebUI 0.12, where it forwards what it knows of the user
)
"""Headers in which a client names the conversation, the most exact first."""
_ANY_NAME = frozenset(_NAMED)


def conversation_of(exchange: Exchange, request: Request) -> str:
    """A digest of the name that a client gives the conversation, and of whose it is; empty: it gives none.

    Another client may give the same name to another conversation: checkpoints are found by content alone.
    """
    name = request.conversation
    if not _ANY_NAME.isdisjoint(exchange.by_name):
        name = next(filter(None, map(exchange.header, _NAMED)), name)
    if not name:
        return ""
    said = f"{exchange.tenant}|{name}".encode("utf-8", "surrogatepass")
    return blake2b(said, digest_size=8, person=b"spillway-conv").hexdigest()

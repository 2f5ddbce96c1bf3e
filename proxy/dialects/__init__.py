"""The wire forms of a conversation: read into the neutral form at the edge, and written there again.

A new one for clients is one folder and one line here.
"""

from __future__ import annotations

from proxy.core.dialect import Dialect
from proxy.dialects.chat import CHAT
from proxy.dialects.messages import MESSAGES
from proxy.dialects.ollama import OLLAMA
from proxy.dialects.responses import COMPACTED_RESPONSES, RESPONSES

DIALECTS: dict[str, Dialect] = {
    dialect.path: dialect for dialect in (CHAT, MESSAGES, RESPONSES, COMPACTED_RESPONSES, OLLAMA)
}
"""By the paths that they own."""

__all__ = ["CHAT", "DIALECTS"]
